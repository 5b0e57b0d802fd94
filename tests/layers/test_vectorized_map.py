"""Lookups within `tf.vectorized_map` equal those of a loop, and train rows as a loop does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from dense_twin import adaptive_layer
from mapped_lookups import CASES, DIM, KEYS, check_as_loop, loop, pooling, ragged

from sok_embed import DynamicEmbedding, Table, tf_ops
from sok_embed.admission import FrequencyAdmission
from sok_embed.initializers import RowInitializer

IN_FUNCTION = pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])


@pytest.mark.cover(6)
@IN_FUNCTION
@pytest.mark.parametrize("case", CASES)
def test_a_lookup_within_a_vectorized_map_is_that_of_a_loop(case, in_function):
    check_as_loop(case, in_function)


@pytest.mark.parametrize("case", ["plain", "mean", "ragged", "collection"])
def test_gradients_by_rows_within_a_vectorized_map_are_refused(case):
    make, call = CASES[case]
    layer = make("cpu")
    weights = tf.ones(KEYS[0].shape)
    call(layer, tf.constant(KEYS[0]), weights)

    def gradient_of(keys: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(layer, keys, weights) ** 2)
        return tape.gradient(loss, layer.trainable_variables[0])

    with pytest.raises(ValueError, match="gradients outside of the map"):
        tf.vectorized_map(gradient_of, tf.constant(KEYS))


def test_row_splits_of_each_turn_are_checked():
    layer = pooling("sum")("cpu")
    layer(ragged(tf.constant(KEYS[0])))
    # The last bag of the first turn would take a key of the second one.
    splits = tf.constant([[0, 1, 3], [0, 2, 4], [0, 2, 4]], tf.int64)

    def look_up(turn: Any) -> Any:
        keys = tf.reshape(turn[0], [-1])
        return layer(tf.RaggedTensor.from_row_splits(keys, turn[1], validate=False))

    with pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
        tf.vectorized_map(look_up, (tf.constant(KEYS), splits))
    fit = tf.constant([[0, 1, 4], [0, 0, 4], [0, 3, 4]], tf.int64)
    found = tf.vectorized_map(look_up, (tf.constant(KEYS), fit))
    expected = loop(look_up, (tf.constant(KEYS), fit))
    np.testing.assert_array_equal(found, expected)


@IN_FUNCTION
def test_maps_within_maps_and_functions(in_function):
    layer = pooling("mean")("cpu")
    keys = tf.constant(np.stack([KEYS, KEYS + 1]))

    def bags_of(of_turn: Any) -> Any:
        return layer(of_turn, training=True)

    inner = tf.function(bags_of)

    def step() -> Any:
        return tf.vectorized_map(lambda each: tf.vectorized_map(inner, each), keys)

    found = (tf.function(step) if in_function else step)()
    np.testing.assert_array_equal(found, [[bags_of(each) for each in some] for some in keys])


def test_own_and_static_rows_are_gathered_within_a_vectorized_map():
    table = Table(DIM, RowInitializer("uniform", -1.0, 1.0, None))
    static = tf.Variable(np.random.default_rng(3).normal(size=[5, DIM]).astype(np.float32))
    masks = tf.constant([[[1, 0], [0, 1]], [[0, 0], [1, 1]], [[1, 1], [0, 0]]], tf.int32)
    keys = tf.constant(KEYS)

    def gather(turn: Any, make_rows: bool = False) -> Any:
        arguments = {"dim": DIM, "make_rows": make_rows}
        handle = table.resource_handle
        by_bucket, hashed = (
            tf_ops.adaptive_mask_gather(handle, static, turn[0], buckets, turn[1], **arguments)
            for buckets in (turn[0] % 5, None)
        )
        return tf.stack([by_bucket.embeddings, hashed.embeddings])

    gather((keys, masks), make_rows=True)
    table.assign([1, 2], np.ones([2, DIM], np.float32))
    found = tf.vectorized_map(gather, (keys, masks))
    np.testing.assert_array_equal(found, loop(gather, (keys, masks)))


def test_a_mask_within_a_vectorized_map():
    layer = adaptive_layer(255)
    keys = tf.constant(np.array([[1, 2, 2], [3, 1, 0]]))
    masks = tf.constant([1, 0], tf.int32)
    layer(keys, training=True)  # builds it

    def turn(given: Any) -> Any:
        return layer(given[0], training=True, mask=tf.fill([3], given[1]))

    vectors = tf.vectorized_map(turn, (keys, masks))
    assert vectors.shape == (2, 3, DIM)
    assert layer.table.stats()["rows"] == len({1, 2})


@pytest.mark.cover(2)
@IN_FUNCTION
@pytest.mark.parametrize("nested", [False, True], ids=["one_map", "nested"])
def test_keys_within_a_vectorized_map_are_counted_once(nested, in_function):
    layers = [
        adaptive_layer(4),
        DynamicEmbedding(DIM, admission=FrequencyAdmission(4)),
        DynamicEmbedding(DIM, combiner="mean", admission=FrequencyAdmission(4)),
    ]
    for layer in layers:
        layer.build((None,))

        def step(keys, layer=layer):
            def look_up(of_turn):
                return layer(of_turn, training=True)

            def of_rows(of_turn):
                return tf.vectorized_map(look_up, of_turn[:, None])

            return tf.vectorized_map(of_rows if nested else look_up, keys)

        run = tf.function(step) if in_function else step
        for calls in range(1, 4):
            run(tf.constant([[1, 2], [3, 4], [5, 6]]))
            assert layer.table.size() == 0, calls
        run(tf.constant([[1, 2], [3, 4], [5, 6]]))
        layer(tf.constant([1, 2, 3, 4, 5, 6]), training=True)
        assert layer.table.size() == 6
