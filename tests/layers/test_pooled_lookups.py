"""A `DynamicEmbedding` with a combiner gives the vectors that NumPy makes of its rows."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from pooled_cases import (
    COMBINERS,
    DIM,
    FORMS,
    KEYS,
    LENGTH,
    pooled,
    random_bags,
    start_of,
)

from sok_embed import DynamicEmbedding

# Sums of at most LENGTH products of about 1 in float32, against float64.
TOLERANCE = {"rtol": 0, "atol": 1e-6}


def make_layer(combiner: str | None, **arguments: Any) -> DynamicEmbedding:
    return DynamicEmbedding(DIM, combiner=combiner, weights=(KEYS, start_of()), **arguments)


def call(layer: Any, how: str, *inputs: Any, **keywords: Any) -> Any:
    """Calls a layer eagerly, or in a function whose trace knows kinds, types and ranks alone."""
    if how == "eager":
        return layer(*inputs, **keywords)

    def spec(tensor: Any) -> Any:
        shape = [None] * tensor.shape.rank
        if isinstance(tensor, tf.RaggedTensor):
            return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank)
        if isinstance(tensor, tf.SparseTensor):
            return tf.SparseTensorSpec(shape, tensor.dtype)
        return tf.TensorSpec(shape, tensor.dtype)

    inputs = tuple(tf.constant(x) if isinstance(x, np.ndarray) else x for x in inputs)
    traced = tf.function(
        lambda *given: layer(*given, **keywords), input_signature=[*map(spec, inputs)]
    )
    return traced(*inputs)


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_bags_are_what_numpy_makes_of_the_rows(combiner, form, how):
    bags, layer = random_bags(form), make_layer(combiner)
    found = call(layer, how, bags.keys(form))
    np.testing.assert_allclose(found, pooled(start_of(), bags, combiner, False), **TOLERANCE)


@pytest.mark.cover("values")
@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weights_multiply_the_vectors(combiner, form, how):
    bags, layer = random_bags(form), make_layer(combiner)
    found = call(layer, how, bags.keys(form), bags.weights_as(form))
    np.testing.assert_allclose(found, pooled(start_of(), bags, combiner, True), **TOLERANCE)


@pytest.mark.parametrize("form", ["ragged", "sparse"])
def test_flat_weights_beside_ragged_and_sparse_keys_are_one_a_key(form):
    bags, layer = random_bags(form), make_layer("mean")
    flat = bags.weights_as("ragged").flat_values
    found = layer(bags.keys(form), weights=flat)
    np.testing.assert_allclose(found, pooled(start_of(), bags, "mean", True), **TOLERANCE)


@pytest.mark.parametrize("shape", [(LENGTH,), (2, LENGTH), (2, 1, 2, LENGTH), (0, LENGTH), (3, 0)])
def test_the_last_axis_of_dense_keys_of_any_shape_is_pooled(shape):
    numbers = np.random.default_rng(0).integers(0, len(KEYS), shape)
    layer, expected = make_layer("sum"), start_of().astype(np.float64)[numbers].sum(-2)
    found = layer(KEYS[numbers])
    assert found.shape == layer.compute_output_shape(shape) == expected.shape
    np.testing.assert_allclose(found, expected, **TOLERANCE)
    np.testing.assert_allclose(call(layer, "function", KEYS[numbers]), expected, **TOLERANCE)


def test_the_last_axis_of_deeper_ragged_keys_is_pooled():
    nested = [[[1, 2], []], [], [[5, 5, 3]]]
    layer = make_layer("sum")
    found = layer(tf.ragged.constant(nested, dtype=tf.int64))
    for bags, vectors in zip(nested, found, strict=True):
        assert vectors.shape == (len(bags), DIM)
        for bag, vector in zip(bags, vectors, strict=True):
            expected = layer.table.lookup(bag).astype(np.float64).sum(0)
            np.testing.assert_allclose(vector, expected, **TOLERANCE)


def test_dense_bags_within_a_ragged_tensor_are_pooled():
    inner = np.array([[1, 2], [3, 5], [1, 1]])
    layer = make_layer("mean")
    found = layer(tf.RaggedTensor.from_row_lengths(inner, [2, 0, 1]))
    np.testing.assert_array_equal(found.row_lengths(), [2, 0, 1])
    expected = layer.table.lookup(inner).astype(np.float64).mean(1)
    np.testing.assert_allclose(found.flat_values, expected, **TOLERANCE)


@pytest.mark.parametrize("how", ["eager", "function"])
def test_a_ragged_input_without_a_combiner_gives_ragged_vectors(how):
    bags, layer = random_bags("ragged"), make_layer(None)
    found = call(layer, how, bags.keys("ragged"))
    np.testing.assert_array_equal(found.row_lengths(), bags.lengths)
    numbers = tf.RaggedTensor.from_tensor(bags.numbers, bags.lengths).flat_values.numpy()
    np.testing.assert_array_equal(found.flat_values, start_of()[numbers])


def test_bags_without_keys_and_with_a_divisor_of_zero_are_zeros():
    keys = tf.ragged.constant([[], [5, 1]], dtype=tf.int64)
    for combiner in COMBINERS:
        np.testing.assert_array_equal(make_layer(combiner)(keys)[0], np.zeros(DIM))
    weights = keys.with_values([0.5, -0.5])
    np.testing.assert_array_equal(make_layer("mean")(keys, weights)[1], np.zeros(DIM))
    weights = keys.with_values([0.0, 0.0])
    np.testing.assert_array_equal(make_layer("sqrtn")(keys, weights)[1], np.zeros(DIM))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_keys_of_every_type_find_the_same_rows(form, dtype):
    values = tf.constant([[1, 2, 3], [5, 5, 1]], tf.int64)
    ragged = tf.RaggedTensor.from_tensor(values).with_row_splits_dtype(tf.int32)
    keys = {"dense": values, "ragged": ragged, "sparse": tf.sparse.from_dense(values)}[form]
    layer = make_layer("sum")
    np.testing.assert_array_equal(layer(tf.cast(keys, dtype)), layer(keys))


def test_lists_are_keys_and_weights_too():
    layer = make_layer("sum")
    expected = layer(np.array([[1, 2]]), weights=np.array([[3.0, -1.0]], np.float32))
    np.testing.assert_array_equal(layer([[1, 2]], weights=[[3.0, -1.0]]), expected)
    assert np.abs(expected).max() > 0.1


@pytest.mark.cover("values")
@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("combiner", "weighted"), [("mean", False), ("mean", True), ("max", False)]
)
def test_key_zero_is_left_out_of_bags_with_mask_zero(combiner, form, weighted, how):
    bags = random_bags(form)
    bags.numbers[-1] = list(KEYS).index(0)  # nothing else is in the bag
    weights = [bags.weights_as(form)] if weighted else []
    found = call(make_layer(combiner, mask_zero=True), how, bags.keys(form), *weights)
    expected = pooled(start_of(), bags, combiner, weighted, without_zeros=True)
    assert not expected[-1].any()
    assert np.abs(expected - pooled(start_of(), bags, combiner, weighted)).max() > 0.1
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_key_zero_gets_no_row_with_mask_zero_and_a_combiner():
    layer = DynamicEmbedding(DIM, combiner="sum", mask_zero=True)
    layer(np.array([[3, 0], [0, 4]]), training=True)
    assert sorted(layer.table.export()[0]) == [3, 4]


def test_the_mean_over_key_zero_as_padding_is_that_of_keras_with_a_mask():
    bags = random_bags("dense")
    keys = bags.keys("dense")
    ours = make_layer("mean", mask_zero=True)(keys)
    vectors = make_layer(None, mask_zero=True)(keys)
    theirs = keras.layers.GlobalAveragePooling1D()(vectors, mask=tf.not_equal(keys, 0))
    np.testing.assert_allclose(ours, theirs, **TOLERANCE)


def test_pooled_vectors_have_no_mask_and_ragged_ones_neither():
    keys = keras.Input((LENGTH,), dtype="int64")
    ragged = keras.Input((None,), dtype="int64", ragged=True)

    def mask_of(vectors: Any) -> Any:
        return getattr(vectors, "_keras_mask", None)

    assert mask_of(make_layer("mean", mask_zero=True)(keys)) is None
    assert mask_of(make_layer(None, mask_zero=True)(ragged)) is None
    assert mask_of(make_layer(None, mask_zero=True)(keys)) is not None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_vectors_of_half_precision_are_rounded_once(form, dtype):
    bags = random_bags(form)
    full = make_layer("mean")(bags.keys(form), bags.weights_as(form))
    half = make_layer("mean", dtype=f"mixed_{dtype}")(bags.keys(form), bags.weights_as(form))
    assert half.dtype == dtype
    np.testing.assert_array_equal(half, tf.cast(full, dtype))


@pytest.mark.parametrize(
    ("form", "combiner"),
    [("ragged", None), ("ragged", "sum"), ("sparse", "sum"), ("deep", None), ("deep", "sum")],
)
def test_a_symbolic_call_gives_shape_and_dtype(form, combiner):
    shape = {"ragged": (None,), "sparse": (LENGTH,), "deep": (None, None)}[form]
    how = {"deep": "ragged"}.get(form, form)
    keys = keras.Input(shape, dtype="int64", **{how: True})
    output = DynamicEmbedding(DIM, combiner=combiner, dtype="mixed_bfloat16")(keys)
    kept = keys.shape if combiner is None else keys.shape[:-1]
    assert tuple(output.shape) == (*kept, DIM)
    assert output.dtype == "bfloat16"
    assert bool(getattr(output, "ragged", False)) == (combiner is None or form == "deep")


@pytest.mark.parametrize("form", FORMS)
def test_keys_of_a_training_call_get_rows_once(form):
    layer, bags = DynamicEmbedding(DIM, combiner="sum"), random_bags(form)
    layer(bags.keys(form))
    assert layer.table.size() == 0
    layer(bags.keys(form), training=True)
    assert sorted(layer.table.export()[0]) == sorted(KEYS)


def test_the_combiner_is_in_the_config():
    layer = make_layer("sqrtn")
    again = DynamicEmbedding.from_config(layer.get_config())
    assert again.combiner == "sqrtn"
    assert "weights" not in layer.get_config()
