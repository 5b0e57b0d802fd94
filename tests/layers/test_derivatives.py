"""Second derivatives, against a dense weight."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_twin import DIM, KEYS, START, WeightOfRows, adaptive_layer, table_layer

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
