"""Calls that are refused count nothing and make no rows; room is made without moving a start."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed

ERRORS = (tf.errors.InvalidArgumentError, ValueError)


def make(**arguments):
    layer = sok_embed.AdaptiveEmbedding(2, **{"static_buckets": 8, "promote_after": 1} | arguments)
    layer.build()
    return layer


def check_untouched(layer):
    stats = layer.stats()
    assert (stats["rows"], stats["lookups"], stats["promoted"]) == (0, 0, 0)


def test_sparse_rows_in_no_order():
    layer = make(combiner="sum")
    ids = tf.SparseTensor([[2, 0], [0, 1]], tf.constant([1, 2], tf.int64), [3, 2])
    with pytest.raises(ERRORS):
        layer(ids, training=True)
    check_untouched(layer)


@pytest.mark.parametrize("size", [0, 2])
def test_a_mask_of_another_length(size):
    layer = make(combiner="sum")
    ids = tf.ragged.constant([[100], [200, 300]], dtype=tf.int64)
    with pytest.raises(ERRORS):
        layer(ids, mask=tf.zeros([size], tf.int32), training=True)
    check_untouched(layer)


def test_an_empty_mask_in_a_graph_of_unknown_shapes():
    layer = make()
    free = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)
    call = tf.function(lambda ids, mask: layer(ids, mask=mask, training=True), free)
    with pytest.raises(ERRORS, match="a mask of the shape"):
        call(tf.constant([1, 2], tf.int64), tf.zeros([0], tf.int32))
    check_untouched(layer)


@pytest.mark.parametrize(
    "mask",
    [
        np.array([2**32 + 1]),
        np.array([-(2**32)]),
        np.array([2**32 - 1], np.uint32),
        np.array([2**64 - 1], np.uint64),
        np.array([2], np.int8),
    ],
    ids=str,
)
def test_numbers_beyond_a_mask(mask):
    layer = make()
    with pytest.raises(ERRORS, match="mask"):
        layer(np.array([5]), mask=mask, training=True)
    check_untouched(layer)


@pytest.mark.parametrize(
    "argument",
    [
        {"mask": np.True_},
        {"mask": 1.0},
        {"mask": np.array([0, 1])},
        {"combiner": np.array(["sum", "mean"])},
        {"counter_bits": 8.0},
        {"static_buckets": 2**63},
        {"max_rows": 2**64},
        {"sketch_capacity": 2**70},
    ],
    ids=str,
)
def test_arguments_of_another_kind(argument):
    with pytest.raises(ValueError, match=f"Expected {next(iter(argument))}"):
        make(**argument)


def test_promote_counts_the_rows_that_it_makes():
    table = make(max_rows=3).table
    assert table.promote([1, 2, 3]) == 3
    assert table.promote([3, 4, 5]) == 2
    assert sorted(table.export()[0])[-2:] == [4, 5]
    assert table.stats()["lookups"] == 0


def test_a_row_that_goes_moves_its_static_row_after_new_rows_have_started():
    layer = sok_embed.AdaptiveEmbedding(
        1, 1, promote_after=1, max_rows=1, demote_blend=0.5, embeddings_initializer="ones"
    )
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: tf.reduce_sum(p**2) / 2)
    for key in (7, 8):  # each starts as 1 and is moved by the gradient 1
        model.train_on_batch(np.array([[key]]), np.zeros([1, 1]))
    keys, rows = layer.table.export()
    assert (keys.tolist(), rows.tolist()) == ([8], [[0.0]])
    assert layer.table.lookup([7]).tolist() == [[0.5]]  # halfway from 1 to the 0 that 7 had
