"""Keys come dense, ragged and sparse; all mean the same, with and without a combiner."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_reference import DIM, make, train_step
from keras import optimizers as ko

ERROR = (tf.errors.InvalidArgumentError, ValueError)
ROWS = [[3, 4, 3], [], [7], [19, 0, 7, 7], [], [0]]
FLAT = np.array([key for row in ROWS for key in row])
MASK = np.array([1, 0, -1, -1, 0, 1, -1, 1, 0], np.int32)
COMBINERS = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.mean(0) if len(rows) else np.zeros(DIM),
    "sqrtn": lambda rows: rows.sum(0) / np.sqrt(max(len(rows), 1)),
}


def ragged_of(values, splits_dtype=tf.int64):
    lengths = tf.constant([len(row) for row in ROWS], splits_dtype)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def sparse_of(values):
    places = [(row, 2 * i) for row, keys in enumerate(ROWS) for i in range(len(keys))]
    return tf.SparseTensor(np.reshape(places, (-1, 2)), values, (len(ROWS), 10))


@pytest.fixture(params=["eager", "function"])
def call(request):
    """Calls a layer eagerly, or in a function whose trace knows kinds and types alone."""
    if request.param == "eager":
        return lambda layer, *inputs, **keywords: layer(*inputs, **keywords)

    def traced(layer, *inputs, **keywords):
        if not layer.built:
            layer.build()
        tensors = {k: v for k, v in keywords.items() if not isinstance(v, (bool, int))}
        rest = {k: v for k, v in keywords.items() if k not in tensors}
        function = tf.function(lambda i, k: layer(*i, **k, **rest))
        return function(
            inputs, {k: v if tf.is_tensor(v) else tf.constant(v) for k, v in tensors.items()}
        )

    return traced


def trained(**arguments):
    """Makes a layer in which some of the keys have rows of their own, unlike static ones."""
    layer = make(promote_after=2, **arguments)
    gradients = np.random.default_rng(0).normal(size=(5, DIM))
    keys = np.array([3, 3, 19, 7, 7])
    if layer.combiner is None:
        train_step(layer, ko.SGD(1.0), keys, gradients)
    else:
        train_step(layer, ko.SGD(1.0), keys[:, None], gradients)
    return layer


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_ragged_keys_give_ragged_embeddings(call, dtype):
    layer = trained()
    outputs = call(layer, ragged_of(FLAT.astype(dtype)))
    assert isinstance(outputs, tf.RaggedTensor)
    assert outputs.shape == (len(ROWS), None, DIM)
    np.testing.assert_array_equal(outputs.row_lengths(), [len(row) for row in ROWS])
    np.testing.assert_array_equal(outputs.flat_values, layer.table.lookup(FLAT))


@pytest.mark.cover("values")
@pytest.mark.parametrize("combiner", list(COMBINERS))
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_all_kinds_combine_to_equal_rows(call, combiner, dtype):
    layer = trained(combiner=combiner)
    expected = np.stack([COMBINERS[combiner](layer.table.lookup(row)) for row in ROWS])
    flat = FLAT.astype(dtype)
    for inputs in (ragged_of(flat), ragged_of(flat, tf.int32), sparse_of(flat)):
        outputs = call(layer, inputs)
        # This allows for float32 sums of up to four.
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)
    for row, whole in zip(ROWS, expected, strict=True):
        outputs = call(layer, np.array([row], dtype))
        np.testing.assert_allclose(outputs, whole[None], rtol=0, atol=1e-6)


@pytest.mark.parametrize("combiner", list(COMBINERS))
def test_gradients_of_all_kinds_are_those_of_the_entries(combiner):
    gradients = np.random.default_rng(1).normal(size=(len(ROWS), DIM)).astype(np.float32)
    alone = trained()
    scales = {"sum": lambda n: 1, "mean": lambda n: n, "sqrtn": np.sqrt}[combiner]
    spread = [g / scales(len(row)) for g, row in zip(gradients, ROWS, strict=True) for _ in row]
    train_step(alone, ko.SGD(0.5), FLAT, np.stack(spread))
    for inputs in (ragged_of(FLAT), sparse_of(FLAT)):
        layer = trained(combiner=combiner)
        train_step(layer, ko.SGD(0.5), inputs, gradients)
        keys = np.arange(20)
        np.testing.assert_allclose(
            layer.table.lookup(keys), alone.table.lookup(keys), rtol=0, atol=1e-6
        )
        assert sorted(layer.table.export()[0]) == sorted(alone.table.export()[0])


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("form", ["alike", "alike_int32_splits", "flat"])
@pytest.mark.parametrize("make_inputs", [ragged_of, sparse_of])
def test_ragged_and_sparse_keys_take_masks(call, make_inputs, form):
    layer, dense = trained(combiner="sum"), trained()
    if form == "flat":
        mask = MASK
    elif make_inputs is ragged_of and form == "alike_int32_splits":
        mask = ragged_of(MASK, tf.int32)
    else:
        mask = make_inputs(MASK)
    outputs = call(layer, make_inputs(FLAT), training=True, mask=mask)
    entries = dense(FLAT, training=True, mask=MASK).numpy()
    expected = tf.reduce_sum(ragged_of(entries), 1)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)
    assert sorted(layer.table.export()[0]) == sorted(dense.table.export()[0])


def test_a_mask_of_other_rows_is_an_error(call):
    layer = make(combiner="sum")
    splits = tf.RaggedTensor.from_row_lengths(MASK, [9, 0, 0, 0, 0, 0])
    with pytest.raises(ERROR, match="Expected a mask with the row_splits of the input"):
        call(layer, ragged_of(FLAT), mask=splits)
    other = sparse_of(MASK)
    other = tf.SparseTensor(other.indices + [[0, 1]], other.values, other.dense_shape)
    with pytest.raises(ERROR, match="Expected a mask with the indices of the input"):
        call(layer, sparse_of(FLAT), mask=other)
    with pytest.raises(ValueError, match="'emb': expected a mask as the input, ragged.*sparse"):
        call(layer, ragged_of(FLAT), mask=sparse_of(MASK))


def test_rows_of_several_ragged_dimensions_combine_the_innermost():
    layer = trained(combiner="mean")
    inputs = tf.ragged.constant([[[3, 4], [7]], [], [[], [19, 0, 7]]], dtype=tf.int64)
    outputs = layer(inputs)
    assert outputs.shape == (3, None, DIM)
    np.testing.assert_array_equal(outputs.row_lengths(), [2, 0, 2])
    flat = [COMBINERS["mean"](layer.table.lookup(row)) for row in ([3, 4], [7], [], [19, 0, 7])]
    np.testing.assert_allclose(outputs.flat_values, np.stack(flat), rtol=0, atol=1e-6)


def test_ragged_rows_of_dense_keys_combine_the_dense_axis():
    layer = trained(combiner="sum")
    inputs = tf.RaggedTensor.from_row_lengths(np.array([[3, 4], [7, 7], [0, 19]]), [2, 1])
    outputs = layer(inputs)
    np.testing.assert_array_equal(outputs.row_lengths(), [2, 1])
    expected = layer.table.lookup(inputs.flat_values).sum(1)
    np.testing.assert_allclose(outputs.flat_values, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4), (0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("combiner", [None, "mean"])
def test_dense_keys_of_any_shape(shape, combiner):
    layer, keys = make(combiner=combiner), np.zeros(shape, np.int64)
    if shape == () and combiner:
        with pytest.raises(ValueError, match=r"'emb': expected keys of shape \[\.\.\., n\].*\[\]"):
            layer(keys)
        return
    outputs = layer(keys)
    assert outputs.shape == (*(shape[:-1] if combiner else shape), DIM)
    assert outputs.shape == layer.compute_output_shape(shape)
    assert np.isfinite(outputs).all()


@pytest.mark.parametrize("combiner", [None, "sum"])
def test_a_model_takes_ragged_inputs(combiner):
    inputs = keras.Input((None,), dtype="int64", ragged=True)
    layer = trained(combiner=combiner)
    outputs = layer(inputs)
    assert outputs.shape == ((None, DIM) if combiner else (None, None, DIM))
    model = keras.Model(inputs, outputs)
    got = model(ragged_of(FLAT))
    expected = layer(ragged_of(FLAT))
    for ours, theirs in zip(
        *([x] if combiner else [x.flat_values] for x in (got, expected)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_trains_on_sparse_inputs():
    layer = make(promote_after=2, combiner="sqrtn")
    inputs = keras.Input((10,), dtype="int64", sparse=True)
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((sparse_of(FLAT), np.ones((len(ROWS), 1))))
    model.fit(data, verbose=0)
    assert sorted(layer.table.export()[0]) == [0, 3, 7]


def test_sparse_keys_without_a_combiner_are_an_error():
    for inputs in (sparse_of(FLAT), keras.Input((10,), dtype="int64", sparse=True)):
        with pytest.raises(ValueError, match="'emb': .*without a combiner.*sparse.*from_sparse"):
            make()(inputs)


def test_sparse_keys_of_three_dimensions_are_an_error():
    inputs = tf.SparseTensor([[0, 0, 0]], np.array([1]), (2, 2, 2))
    with pytest.raises(ValueError, match=r"'emb': expected a sparse tensor \[B, N\].*\[2, 2, 2\]"):
        make(combiner="sum")(inputs)


@pytest.mark.parametrize("values", [np.array([1.0]), np.array([True])])
def test_values_that_are_no_integers_are_an_error(values):
    for inputs in (values, tf.RaggedTensor.from_row_lengths(values, [1])):
        with pytest.raises(ValueError, match="'emb': Expected integer keys"):
            make()(inputs)


@pytest.mark.parametrize("combiner", [None, "sum"])
def test_a_bfloat16_policy_rounds_the_output_only(combiner):
    layer, exact = (make(combiner=combiner, dtype=dtype) for dtype in ("mixed_bfloat16", "float32"))
    keys = np.arange(12).reshape(3, 4)
    outputs = layer(keys)
    assert outputs.dtype == tf.bfloat16
    np.testing.assert_array_equal(outputs, tf.cast(exact(keys), tf.bfloat16))
