"""An export serves rows in fewer bytes: those of the file, of the table, and of the model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from served_models import (
    DIM,
    adaptive,
    answered,
    assert_same_bits,
    check,
    dynamic,
    predicted,
    trained,
)

import sok_embed as sok
from sok_embed.serving import export


@pytest.fixture(scope="module")
def three_kinds():
    """Returns a model with tables of three kinds, what it is fed, and what it answers."""
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
    return model, fed, predicted(model, fed)


@pytest.mark.cover("values")
@pytest.mark.parametrize("ops", ["native", "stock"])
@pytest.mark.parametrize("dtype, steps", [("float16", 2**11), ("int8", 510), ("int4", 30)])
def test_rows_of_fewer_bytes_are_within_the_bound(dtype, steps, ops, three_kinds, tmp_path):
    """float16 has 11 bits; integers are off by half a step of a row's range, and float16 scales."""
    model, fed, all_expected = three_kinds
    folder = export(model, tmp_path, dtype, ops=ops)
    for found, expected in zip(answered(folder, fed), all_expected, strict=True):
        if dtype == "float16":
            bound = np.abs(expected) / steps
        else:
            # The bias is a float16 too, which the scale makes up for.
            spread = np.ptp(expected, axis=-1, keepdims=True) + np.abs(expected).max() / 2**10
            bound = spread / steps * 1.01
        assert (np.abs(found - expected) <= bound).all()
        assert (found != expected).any()


@pytest.mark.cover(1)
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


def test_rows_in_fewer_bytes_are_served_as_they_are_read(tmp_path):
    dtypes = ("bfloat16", "float16", "int8")
    layers = [dynamic(None, row_dtype=row_dtype) for row_dtype in dtypes]
    model, fed = trained(layers, "dense")
    check(model, fed, predicted(model, fed), tmp_path)


def test_outputs_of_a_policy_are_those_of_predict(tmp_path):
    layers = [dynamic("mean", dtype=policy) for policy in ("mixed_bfloat16", "mixed_float16")]
    inputs = keras.Input((2,), dtype="int64", name="ids")
    model = keras.Model(inputs, [layer(inputs) for layer in layers])
    for layer in layers:
        layer.table.assign([5, 7], np.random.default_rng(0).normal(size=(2, DIM)))
    fed = {"ids": np.array([[5, 7], [5, 5], [1, 2]])}
    check(model, fed, predicted(model, fed), tmp_path)
