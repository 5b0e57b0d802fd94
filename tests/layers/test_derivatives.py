"""Lookups within `tf.vectorized_map`, and second derivatives, against a dense weight."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_twin import DIM, KEYS, START, WeightOfRows, adaptive_layer, table_layer

from sok_embed import DynamicEmbedding
from sok_embed.admission import FrequencyAdmission

BATCH = np.array([[1, 2, 2], [3, 1, 0]])
LAYERS = {"table": table_layer, "own_rows": lambda: adaptive_layer(1)}
EACH = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
IN_FUNCTION = pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])


def rows_of(layer: Any) -> np.ndarray:
    if isinstance(layer, WeightOfRows):
        return np.asarray(layer.rows)
    return np.asarray(layer.table.lookup(np.arange(KEYS)))


def train(layer: Any, step: Any, in_function: bool, steps: int = 3) -> np.ndarray:
    """Applies what a step returns as the gradients of a layer."""
    layer.build((None, 3))
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build(layer.trainable_variables)

    def run(keys: Any) -> None:
        optimizer.apply(step(layer, keys), layer.trainable_variables)

    run = tf.autograph.experimental.do_not_convert(run)
    run = tf.function(run) if in_function else run
    for _ in range(steps):
        run(tf.constant(BATCH))
    return rows_of(layer)


def check_equal(make: Any, step: Any, in_function: bool) -> None:
    found, expected = (train(layer, step, in_function) for layer in (make(), WeightOfRows()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.abs(expected - START).max() > 0.01


@pytest.mark.cover("values")
@EACH
@IN_FUNCTION
def test_a_lookup_within_a_vectorized_map_trains_rows(make, in_function):
    def step(layer, keys):
        with tf.GradientTape() as tape:
            upstream = tf.cast(keys, tf.float32) + 1.0
            losses = tf.vectorized_map(
                lambda turn: tf.reduce_sum(layer(turn[0], training=True) ** 2 * turn[1][:, None]),
                (keys, upstream),
            )
            # Each turn has the same keys.
            losses += tf.vectorized_map(
                lambda up: tf.reduce_sum(layer(keys[0], training=True)) * up[0], upstream
            )
            loss = tf.reduce_sum(losses)
        return tape.gradient(loss, layer.trainable_variables)

    check_equal(make, step, in_function)


def test_a_mask_within_a_vectorized_map():
    layer = adaptive_layer(255)
    keys = tf.constant(BATCH)
    masks = tf.constant([1, 0], tf.int32)
    layer(keys, training=True)  # builds it

    def turn(given: Any) -> Any:
        return layer(given[0], training=True, mask=tf.fill([3], given[1]))

    vectors = tf.vectorized_map(turn, (keys, masks))
    assert vectors.shape == (2, 3, DIM)
    assert layer.table.stats()["rows"] == len({1, 2})


@IN_FUNCTION
@pytest.mark.parametrize("nested", [False, True], ids=["one_map", "nested"])
def test_keys_within_a_vectorized_map_are_counted_once(nested, in_function):
    layers = [
        adaptive_layer(4),
        DynamicEmbedding(DIM, admission=FrequencyAdmission(4)),
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


@EACH
@IN_FUNCTION
def test_a_penalty_on_the_gradient_of_the_vectors(make, in_function):
    def step(layer, keys):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                vectors = layer(keys, training=True)
                inner.watch(vectors)
                loss = tf.reduce_sum(vectors**3)
            penalty = tf.reduce_sum(inner.gradient(loss, vectors) ** 2)
            total = loss + penalty
        return outer.gradient(total, layer.trainable_variables)

    check_equal(make, step, in_function)


@EACH
@IN_FUNCTION
def test_a_second_derivative_by_the_anchors_gradient_is_refused(make, in_function):
    def step(layer, keys):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(layer(keys, training=True) ** 3)
            first = inner.gradient(loss, layer.trainable_variables)
            penalty = tf.reduce_sum(first[0] ** 2)
        return outer.gradient(penalty, layer.trainable_variables)

    with pytest.raises(ValueError, match="Watch the vectors with the inner tape"):
        train(make(), step, in_function)


def test_a_jacobian_by_rows_is_refused_and_one_by_vectors_is_not():
    layer = table_layer()
    layer.build((None, 3))
    with tf.GradientTape(persistent=True) as tape:
        vectors = layer(BATCH, training=True)
        tape.watch(vectors)
        squares = vectors**2
    assert tape.jacobian(squares, vectors).shape == (*BATCH.shape, DIM, *BATCH.shape, DIM)
    with pytest.raises(ValueError) as error:
        tape.jacobian(squares, layer.trainable_variables)
    reasons = [str(error.value.__cause__), str(error.value.__context__)]
    assert any("Take jacobians by the vectors" in reason for reason in reasons)
