"""An export serves what `predict` answers, bit for bit, with TensorFlow's own ops alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import served_models as models
import tensorflow as tf
from served_models import ASKED, DIM, answered, assert_same_bits, predicted, trained

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed.serving import export
from sok_embed.serving import rows as rows_files

COMBINERS = ("sum", "mean", "sqrtn", "max")
FORMS = ("dense", "ragged", "sparse")


def dynamic(combiner, **options):
    return sok.DynamicEmbedding(DIM, "ones", combiner=combiner, **options)


def adaptive(combiner, **options):
    return sok.AdaptiveEmbedding(DIM, static_buckets=5, combiner=combiner, seed=1, **options)


def collection(combiner, **options):
    return sok.DistributedEmbedding(sok.FeatureConfig("a", models.table(combiner), **options))


def bag(combiner, **options):
    return sok.HashedEmbeddingBag(1000, DIM, 0.02, mode=combiner, sign=True, **options)


LAYERS = {"dynamic": dynamic, "adaptive": adaptive, "collection": collection}
WEIGHTED = ("dynamic", "collection")


def check(model, fed, expected, path, **arguments):
    """Raises unless exports of both kinds answer the bits that are expected."""
    for ops in ("native", "stock"):
        folder = export(model, path / ops, ops=ops, **arguments)
        assert_same_bits(answered(folder, fed), expected)


def cases():
    for name in LAYERS:
        for form in FORMS:
            for combiner in COMBINERS[: 3 if name == "adaptive" else 4]:
                yield name, form, combiner, False
                if name in WEIGHTED and combiner != "max":
                    yield name, form, combiner, True


@pytest.mark.cover(16)
@pytest.mark.parametrize("name, form, combiner, weighted", list(cases()))
def test_pooled_layers_answer_as_predict(name, form, combiner, weighted, tmp_path):
    model, fed = trained(LAYERS[name](combiner), form, "weights" if weighted else "")
    check(model, fed, predicted(model, fed), tmp_path)


@pytest.mark.cover("values")
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
    values, lengths = answered(export(model, tmp_path), {"ids": rows})[::-1]
    expected = model(rows, training=False)
    np.testing.assert_array_equal(values, expected.flat_values)
    np.testing.assert_array_equal(lengths, expected.row_lengths())


@pytest.mark.cover("values")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_hashed_bags_answer_as_predict(mode, form, tmp_path):
    layer = bag(mode, block_size=3, padding_idx=7)
    keys = [[abs(key) % 1000 for key in row] for row in ASKED]
    flags = {"ragged": form == "ragged", "sparse": form == "sparse"}
    shape = (2,) if form == "dense" else (None,)
    inputs = {"ids": keras.Input(shape, dtype="int64", name="ids", **flags)}
    fed = {"ids": models.of_form(form, keys, np.int64)}
    arguments = {}
    if mode == "sum":
        inputs["weights"] = keras.Input(shape, name="weights", **flags)
        fed["weights"] = models.of_form(form, models.weights_of(keys), np.float32)
        arguments["per_sample_weights"] = inputs["weights"]
    model = keras.Model(inputs, layer(inputs["ids"], **arguments))
    check(model, fed, predicted(model, fed), tmp_path)


@pytest.mark.cover("values")
@pytest.mark.parametrize("hash", ["mixed", "original", "modulo"])
@pytest.mark.parametrize("size, block, sign", [(101, 1, False), (37, 5, True), (3, 7, True)])
def test_hashed_embeddings_answer_as_predict(hash, size, block, sign, tmp_path):
    layer = sok.HashedEmbedding(
        2**40, 70, size=size, hash=hash, seed=2**63 - 1, sign=sign, block_size=block
    )
    model = keras.Sequential([keras.Input((3,), dtype="int64", name="ids"), layer])
    ids = np.random.default_rng(0).integers(0, 2**40, (50, 3))
    folder = export(model, tmp_path)
    assert_same_bits(answered(folder, {"ids": ids}), [model.predict(ids, batch_size=50, verbose=0)])


@pytest.mark.parametrize("output, ops", [("structure", "stock"), ("concat", "native")])
def test_shared_tables_are_written_once(output, ops, tmp_path):
    shared = sok.TableConfig("shared", None, DIM, initializer="zeros")
    small = sok.TableConfig("small", 20, DIM, seed=3)  # of positions, with random start vectors
    layer = sok.DistributedEmbedding(
        [
            sok.FeatureConfig("a", shared, combiner="mean"),
            sok.FeatureConfig("b", shared, combiner="sum", max_length=9),
            sok.FeatureConfig("c", small, combiner="max"),
        ],
        output=output,
    )
    inputs = [keras.Input((3,), dtype="int64", name=name) for name in "abc"]
    outputs = layer(inputs)
    joined = outputs if output == "concat" else keras.layers.Concatenate()(outputs)
    model = keras.Model(inputs, keras.layers.Dense(2, activation="relu")(joined))
    model.compile("adam", "mse")
    random = np.random.default_rng(0)
    keys = [random.integers(-9, 9, (8, 3)), random.integers(0, 99, (8, 3)),
            random.integers(0, 20, (8, 3))]  # fmt: skip
    model.fit(keys, np.ones((8, 2)), epochs=2, verbose=0)
    folder = export(model, tmp_path, ops=ops)
    fed = dict(zip("abc", keys, strict=True))
    assert_same_bits(answered(folder, fed), [model.predict(keys, verbose=0)])
    if ops == "native":
        assert sorted(os.listdir(f"{folder}/assets")) == ["shared.safetensors", "small.safetensors"]
        return
    names = [name for name, _ in tf.train.list_variables(f"{folder}/variables/variables")]
    shapes = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    matrices = [name for name in names if len(shapes[name]) == 2 and shapes[name][1] == DIM]
    assert len(matrices) == 2


def test_nothing_of_training_is_written(tmp_path):
    model, _ = trained(dynamic("sum"), "dense")
    rows, dense = model.layers[1].table.size(), 2 * DIM + 1
    folder = export(model, tmp_path, ops="stock")
    variables = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    numbers = sum(int(np.prod(shape)) for shape in variables.values() if shape)
    # Rows, their keys with some beyond the end, where buckets begin, and dense weights.
    assert rows * (DIM + 1) + dense < numbers <= rows * (DIM + 2) + 16 + dense
    folder = export(model, tmp_path)
    variables = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    assert sum(int(np.prod(shape)) for shape in variables.values() if shape) == DIM + 1
    assert sorted(os.listdir(folder)) == ["assets", "fingerprint.pb", "saved_model.pb", "variables"]
    (name,) = os.listdir(f"{folder}/assets")
    with rows_files.open(f"{folder}/assets/{name}") as file:
        file.verify()
        keys, vectors = model.layers[1].table.export()
        assert len(file) == rows
        np.testing.assert_array_equal(file.lookup(keys), vectors)


def test_a_mixed_model_with_layers_of_keras_answers_as_predict(tmp_path):
    words = keras.Input((1,), dtype="string", name="words")
    number = keras.Input((3,), name="number")
    looked_up = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
    vectors = [
        keras.layers.Flatten()(keras.layers.Embedding(3, 2)(looked_up)),
        keras.layers.Flatten()(dynamic(None)(words)),
        keras.layers.BatchNormalization()(number),
    ]
    joined = keras.layers.Dropout(0.5)(keras.layers.Concatenate()(vectors))
    model = keras.Model([words, number], keras.layers.Dense(2, activation="sigmoid")(joined))
    model.compile("adam", "mse")
    fed = {
        "words": tf.constant([["a"], ["b"], ["never seen"], [""]]),
        "number": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32),
    }
    model.fit([fed["words"], fed["number"]], np.ones((4, 2)), epochs=2, verbose=0)
    expected = model.predict([fed["words"], fed["number"]], verbose=0)
    check(model, fed, [expected], tmp_path)


def test_columns_with_masks_answer_as_predict(tmp_path):
    item = fc.categorical_column_with_adaptive_embedding("item", 6, tf.int64)
    layer = fc.DenseFeatures([fc.embedding_column(item, DIM, "mean")], name="features")
    inputs = {
        "item": keras.Input((3,), dtype="int64", name="item"),
        "mask": keras.Input((3,), dtype="int32", name="mask"),
    }
    outputs = layer({"item": inputs["item"]}, {"item": inputs["mask"]})
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile("adam", "mse")
    random = np.random.default_rng(0)
    fed = {
        "item": random.integers(-9, 9, (16, 3)),
        "mask": random.integers(0, 2, (16, 3)).astype(np.int32),
    }
    model.fit(fed, np.ones((16, 1)), epochs=2, verbose=0)
    fed["item"][0] = 12345
    check(model, fed, predicted(model, fed), tmp_path)


@pytest.mark.parametrize("filtered", [False, True])
def test_embedding_variables_answer_as_predict(filtered, tmp_path):
    option = fc.EmbeddingVariableOption(
        filter_option=fc.CounterFilter(2) if filtered else None,
        init_option=fc.InitializerOption(None, 8, 0.25 if filtered else None),
    )
    item = fc.categorical_column_with_embedding("item", tf.int64, ev_option=option)
    layer = fc.DenseFeatures([fc.embedding_column(item, DIM, "sqrtn")], name="features")
    inputs = keras.Input((3,), dtype="int64", name="item")
    model = keras.Model({"item": inputs}, layer({"item": inputs}))
    model.compile("adam", "mse")
    fed = {"item": np.random.default_rng(0).integers(-20, 20, (16, 3))}
    model.fit(fed, np.ones((16, DIM)), epochs=1, verbose=0)
    fed["item"][0] = [12345, 5, -7]
    check(model, fed, predicted(model, fed), tmp_path)


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


def test_rows_on_disk_are_served_from_the_export_alone(tmp_path):
    with sok.kv.Storage(tmp_path / "rows") as storage:
        model, fed = trained(dynamic("mean", storage=storage), "dense")
        expected = predicted(model, fed)
        folders = [export(model, tmp_path / ops, ops=ops) for ops in ("native", "stock")]
    for folder in folders:
        assert_same_bits(answered(folder, fed), expected)


def test_rows_that_have_expired_are_left_out(tmp_path):
    with sok.kv.Storage(tmp_path / "rows", ttl=100) as storage:
        layer = dynamic(None, storage=storage)
        inputs = keras.Input((1,), dtype="int64", name="ids")
        model = keras.Model(inputs, layer(inputs))
        layer.table.assign([5], np.full((1, DIM), 2.5))
        storage.flush()
        storage.ready().set_now(int(time.time()) + 200)
        layer.table.assign([6], np.full((1, DIM), 3.5))
        folders = [export(model, tmp_path / ops, ops=ops) for ops in ("native", "stock")]
    (file,) = os.listdir(f"{folders[0]}/assets")
    with rows_files.open(f"{folders[0]}/assets/{file}") as opened:
        assert opened.keys().tolist() == [6]
    for folder in folders:
        (found,) = answered(folder, {"ids": np.array([[5], [6]])})
        np.testing.assert_array_equal(found[:, 0], [[1.0] * DIM, [3.5] * DIM])


@pytest.mark.parametrize("row_dtype", ["bfloat16", "float16", "int8"])
def test_rows_in_fewer_bytes_are_served_as_they_are_read(row_dtype, tmp_path):
    model, fed = trained(dynamic("sqrtn", row_dtype=row_dtype), "ragged")
    check(model, fed, predicted(model, fed), tmp_path)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_outputs_of_a_policy_are_those_of_predict(policy, tmp_path):
    layer = dynamic("mean", dtype=policy)
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), layer])
    layer.table.assign([5, 7], np.random.default_rng(0).normal(size=(2, DIM)))
    fed = {"ids": np.array([[5, 7], [5, 5], [1, 2]])}
    check(model, fed, predicted(model, fed), tmp_path)


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


def test_a_second_export_gets_the_next_number(tmp_path):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    (tmp_path / "7").mkdir()
    (tmp_path / "notes").mkdir()
    assert export(model, tmp_path) == str(tmp_path / "8")
    assert export(model, tmp_path) == str(tmp_path / "9")
    assert sorted(os.listdir(tmp_path)) == ["7", "8", "9", "notes"]


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    save = tf.saved_model.save

    def fail(*args, **kwargs):
        save(*args, **kwargs)
        raise OSError("No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="No space"):
        export(model, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_keras_file_is_exported(tmp_path):
    model, fed = trained(dynamic("mean"), "ragged")
    model.save(tmp_path / "m.keras")
    folder = export(str(tmp_path / "m.keras"), tmp_path / "served")
    assert_same_bits(answered(folder, fed), predicted(model, fed))


def test_a_subclassed_model_is_exported_with_a_signature(tmp_path):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = dynamic("mean")
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return {"score": self.dense(self.embedding(inputs["ids"]))}

    model = Model()
    fed = {"ids": np.array([[5, 7], [8, 9]])}
    model(fed)
    with pytest.raises(ValueError, match="input_signature"):
        export(model, tmp_path)
    signature = [{"ids": tf.TensorSpec([None, None], tf.int64, "ids")}]
    folder = export(model, tmp_path, input_signature=signature)
    assert_same_bits(answered(folder, fed), predicted(model, fed))


def test_other_arguments_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    for arguments, message in (
        ({"dtype": "float64"}, "dtype to be one of"),
        ({"missing": "nan"}, "missing to be one of"),
        ({"ops": "tfra"}, "ops to be one of"),
        ({"min_count": -1}, "min_count"),
    ):
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path, **arguments)
    with pytest.raises(ValueError, match="or the path of a .keras file"):
        export(7, tmp_path)
    with pytest.raises(ValueError, match=r"or one that is not built.*Begin a Sequential"):
        export(keras.Sequential([dynamic("sum")]), tmp_path)
    for path, message in (
        ("s3://bucket/served", "folder of this machine"),
        (__file__, "is a file. Pass the path of a folder"),
    ):
        with pytest.raises(ValueError, match=message):
            export(model, path)


def test_several_workers_are_refused(tmp_path, first_of_two):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    with pytest.raises(ValueError, match="Expected one worker"):
        export(model, tmp_path)


@pytest.mark.parametrize("ops", ["native", "stock"])
@pytest.mark.parametrize("dtype, steps", [("float16", 2**11), ("int8", 510), ("int4", 30)])
def test_rows_of_fewer_bytes_are_within_the_bound(dtype, steps, ops, tmp_path):
    """float16 has 11 bits; integers are off by half a step of a row's range, and float16 scales."""
    table = sok.TableConfig("small", 50, DIM, initializer="zeros")  # of positions
    layers = [
        sok.DynamicEmbedding(DIM, "ones", name="dynamic"),
        sok.DistributedEmbedding(sok.FeatureConfig("a", table), name="direct"),
        adaptive(None, name="adaptive"),
    ]
    inputs = keras.Input((1,), dtype="int64", name="ids")
    model = keras.Model(inputs, [layer(inputs) for layer in layers])
    keys = np.arange(50)
    vectors = np.random.default_rng(0).normal(size=(50, DIM)).astype(np.float32)
    layers[0].table.assign(keys, vectors)
    layers[1].tables["small"].assign(keys, vectors)
    layers[2].table.promote(keys)
    fed = {"ids": keys[:, np.newaxis]}
    folder = export(model, tmp_path, dtype, ops=ops)
    for found, expected in zip(answered(folder, fed), predicted(model, fed), strict=True):
        if dtype == "float16":
            bound = np.abs(expected) / steps
        else:
            # The bias is a float16 too, which the scale makes up for.
            spread = np.ptp(expected, axis=-1, keepdims=True) + np.abs(expected).max() / 2**10
            bound = spread / steps * 1.01
        assert (np.abs(found - expected) <= bound).all()
        assert (found != expected).any()


@pytest.mark.parametrize("dtype", ["float16", "int8", "int4"])
def test_both_kinds_of_ops_read_the_same_bits(dtype, tmp_path):
    layer = sok.DynamicEmbedding(3, "zeros")  # of int4 the last byte of a row has one value
    model = keras.Sequential([keras.Input((1,), dtype="int64", name="ids"), layer])
    vectors = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    layer.table.assign(np.arange(1000), vectors)
    fed = {"ids": np.arange(-10, 1000)[:, np.newaxis]}
    native, stock = (
        answered(export(model, tmp_path / ops, dtype, ops=ops), fed) for ops in ("native", "stock")
    )
    assert_same_bits(stock, native)


def test_keys_of_a_checkpoint_beyond_the_models_are_refused(tmp_path):
    def make(size):
        keras.utils.clear_session()
        layer = sok.All2AllDenseEmbedding(size, DIM, 1, 1, use_hashtable=False, name="all")
        model = keras.Sequential([keras.Input((1, 1), dtype="int64", name="ids"), layer])
        model.compile("sgd", "mse")
        return model

    model = make(10)
    model.fit(np.array([[[9]]]), np.ones([1, 1, 1, DIM]), verbose=0)
    sok.checkpoint.Checkpoint(model).save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"keys in \[0, 5\).*Received: key 9"):
        export(make(5), tmp_path / "served", source=tmp_path / "saved")
    assert os.listdir(tmp_path / "served") == []


@pytest.mark.parametrize("ops", ["native", "stock"])
def test_a_checkpoint_is_exported_and_the_model_is_left_as_it_was(ops, tmp_path):
    def make():
        keras.utils.clear_session()
        table = sok.TableConfig("small", 20, DIM)  # of positions
        inputs = keras.Input((3,), dtype="int64", name="ids")
        layers = [
            dynamic("sum", name="dynamic"),
            adaptive("mean", name="adaptive"),
            sok.DistributedEmbedding(sok.FeatureConfig("a", table), name="direct"),
        ]
        vectors = keras.layers.Concatenate()([layer(inputs) for layer in layers])
        model = keras.Model(inputs, keras.layers.Dense(2)(vectors))
        model.compile("adam", "mse")
        return model

    keys = np.random.default_rng(0).integers(0, 20, (16, 3))
    model = make()
    model.fit(keys, np.ones((16, 2)), epochs=2, verbose=0)
    sok.checkpoint.Checkpoint(model).save(tmp_path / "saved")
    expected = model.predict(keys, verbose=0)
    other = make()
    other.fit(keys, np.zeros((16, 2)), epochs=1, verbose=0)
    before = other.predict(keys, verbose=0)
    folder = export(other, tmp_path / "served", ops=ops, source=tmp_path / "saved")
    assert_same_bits(answered(folder, {"ids": keys}), [expected])
    assert_same_bits([other.predict(keys, verbose=0)], [before])
    with pytest.raises(FileNotFoundError):
        export(other, tmp_path / "served", source=tmp_path / "no")
    assert os.listdir(tmp_path / "served") == ["1"]


# A process with TensorFlow alone: no module of this project can be imported in it.
ALONE = """
import json, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "sok_embed":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import numpy as np
import tensorflow as tf
folder, given = sys.argv[1], json.loads(sys.argv[2])
serve = tf.saved_model.load(folder).signatures["serving_default"]
tensors = {name: tf.constant(values, dtype) for name, (dtype, values) in given.items()}
outputs = serve(**tensors)
np.savez(sys.argv[3], *[outputs[name].numpy() for name in sorted(outputs)])
assert "sok_embed" not in sys.modules
"""


@pytest.mark.parametrize("name", [*LAYERS])
def test_a_process_with_tensorflow_alone_answers_as_predict(name, tmp_path):
    model, fed = trained(LAYERS[name]("mean"), "ragged")
    folder = export(model, tmp_path / "served", ops="stock")
    given = {key: [part.dtype.name, part.numpy().tolist()]
             for key, part in models.parts_of(fed).items()}  # fmt: skip
    subprocess.run(
        [sys.executable, "-I", "-c", ALONE, folder, json.dumps(given), tmp_path / "out.npz"],
        check=True,
    )
    found = np.load(tmp_path / "out.npz")
    assert_same_bits([found[each] for each in found.files], predicted(model, fed))
