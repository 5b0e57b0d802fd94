"""An export serves the vector of any key that `predict` has: known, unknown, extreme or refused."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from served_models import (
    ASKED,
    DIM,
    adaptive,
    answered,
    assert_same_bits,
    check,
    collection,
    dynamic,
    predicted,
    trained,
)

import sok_embed as sok
from sok_embed.serving import export
from sok_embed.serving import rows as rows_files


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32"])
@pytest.mark.parametrize(
    "name, layer",
    [
        ("dynamic", lambda dtype: dynamic(None)),
        ("adaptive", lambda dtype: adaptive(None)),
        (
            "all2all",
            lambda dtype: sok.All2AllDenseEmbedding(
                100, DIM, 1, 2, embedding_initializer="ones", key_dtype=dtype
            ),
        ),
        ("collection", lambda dtype: collection(None)),
    ],
)
def test_vectors_of_keys_are_those_of_predict(name, layer, dtype, tmp_path):
    keys = np.array([[5, 2**40], [2**63 - 1, -(2**63)], [-1, 0], [7, 7]])
    keys = keys.astype(dtype) if dtype != "int32" else keys.clip(-(2**31), 2**31 - 1).astype(dtype)
    asked = np.concatenate([keys, np.array([[12345, 54321]], dtype)])
    if name == "all2all":
        keys, asked = keys[:, np.newaxis], asked[:, np.newaxis]
    inputs = keras.Input(keys.shape[1:], dtype=dtype, name="ids")
    model = keras.Model(inputs, layer(dtype)(inputs))
    model.compile("adam", "mse")
    model.fit(keys, np.zeros([*keys.shape, DIM], np.float32), epochs=2, verbose=0)
    check(model, {"ids": asked}, [model.predict(asked, verbose=0)], tmp_path)


def test_ragged_vectors_without_a_combiner_come_in_parts(tmp_path):
    inputs = keras.Input((None,), dtype="int64", ragged=True, name="ids")
    model = keras.Model(inputs, dynamic(None)(inputs))
    rows = tf.ragged.constant(ASKED, tf.int64)
    model.layers[-1].table.assign([5, 7], np.random.default_rng(0).normal(size=(2, DIM)))
    values, lengths = answered(export(model, tmp_path), {"ids": rows})
    expected = model(rows, training=False)
    np.testing.assert_array_equal(values, expected.flat_values)
    np.testing.assert_array_equal(lengths, expected.row_lengths())


def test_a_mask_of_an_adaptive_table_says_which_rows_are_read(tmp_path):
    ids = keras.Input((3,), dtype="int64", name="ids")
    mask = keras.Input((3,), dtype="int32", name="mask")
    model = keras.Model([ids, mask], adaptive(None)(ids, mask=mask))
    model.compile("adam", "mse")
    keys = np.random.default_rng(0).integers(-5, 5, (12, 3))
    routes = np.random.default_rng(1).integers(-1, 2, (12, 3)).astype(np.int32)
    model.fit([keys, routes], np.ones((12, 3, DIM)), epochs=3, verbose=0)
    assert 0 < model.layers[-1].table.size() <= 10
    expected = model.predict([keys, routes], verbose=0)
    check(model, {"ids": keys, "mask": routes}, [expected], tmp_path)
    folder = export(model, tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="mask of -1, 0 and 1"):
        answered(folder, {"ids": keys, "mask": routes + 2})


@pytest.mark.cover(1)
@pytest.mark.parametrize("default", ["zeros", 5])
def test_a_default_vector_is_that_of_unknown_keys(default, tmp_path):
    layer = sok.DynamicEmbedding(
        DIM, "uniform" if default == "zeros" else "ones", default_vector=default
    )
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), layer])
    layer.table.assign([5, 7], np.random.default_rng(0).normal(size=(2, DIM)))
    fed = {"ids": np.array([[5, 7], [8, 9]])}
    check(model, fed, predicted(model, fed), tmp_path)


def test_unknown_keys_have_zeros_where_that_is_asked_for(tmp_path):
    layer = sok.DynamicEmbedding(DIM, "uniform")
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), layer])
    layer.table.assign([5], np.full((1, DIM), 2.5))
    with pytest.raises(ValueError, match=r"initializer that is constant.*missing='zeros'"):
        export(model, tmp_path, ops="stock")
    assert os.listdir(tmp_path) == []
    expected = np.array([[[2.5] * DIM, [0.0] * DIM]], np.float32)
    fed = {"ids": np.array([[5, 6]])}
    check(model, fed, [expected], tmp_path, missing="zeros")
    # The ops of this library know what an initializer draws for a key.
    assert_same_bits(answered(export(model, tmp_path), fed), predicted(model, fed))


def test_rows_that_were_updated_less_often_are_left_out(tmp_path):
    layer = dynamic(None)
    model = keras.Sequential([keras.Input((1,), dtype="int64", name="ids"), layer])
    model.compile("sgd", "mse")
    for keys in ([[1], [2]], [[1], [3]], [[1], [2]]):
        model.fit(np.array(keys), np.zeros((2, 1, DIM)), verbose=0)
    expected = layer.table.lookup([1, 2, 3])
    expected[2] = 1.0
    fed = {"ids": np.array([[1], [2], [3]])}
    check(model, fed, [expected[:, np.newaxis]], tmp_path, min_count=2)


def test_the_file_of_an_adaptive_table_that_has_its_name_has_own_rows(tmp_path):
    model, _ = trained(adaptive("sum", name="ads", promote_after=1), "dense")
    assets = f"{export(model, tmp_path)}/assets"
    table = model.get_layer("ads").table
    keys = table.export()[0]
    with rows_files.open(f"{assets}/ads.safetensors") as own:
        assert len(own) == len(keys) and own.contains(keys).all()
        np.testing.assert_array_equal(own.lookup(keys), table.lookup(keys))
    with rows_files.open(f"{assets}/ads-2.safetensors") as static:
        assert (static.keys() < 5).all()


def test_keys_beyond_a_vocabulary_are_refused(tmp_path):
    table = sok.TableConfig("t", 10, DIM, initializer="uniform")
    layer = sok.DistributedEmbedding(sok.FeatureConfig("a", table))
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), layer])
    fed = {"ids": np.array([[0, 9]])}
    check(model, fed, predicted(model, fed), tmp_path)
    for ops in ("native", "stock"):
        for key in (10, -1):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"keys in \[0, 10\)"):
                answered(str(tmp_path / ops / "1"), {"ids": np.array([[0, key]])})


def test_a_table_without_rows_is_served(tmp_path):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    expected = np.full([1, DIM], 2, np.float32)
    check(model, {"ids": np.array([[5, 7]])}, [expected], tmp_path)
