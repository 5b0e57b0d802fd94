"""Steps that train a model whose table is a table, or a weight, and how alike the two must be."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from dense_twin import DIM, KEYS, START, contents, loss_of

BATCH, STEPS = (8, 2), 7
# Norms are float32, rounded in other orders; they scale what is of the size of 1.
TOLERANCE = 2e-6

Step = Callable[[Any, Any, Any, Any, Any], None]
CLIPS = {
    "clipnorm": {"clipnorm": 0.9},
    "global_clipnorm": {"global_clipnorm": 1.1},
    "clipvalue": {"clipvalue": 0.2},
}
IN_FUNCTION = pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])


def plain(model, optimizer, keys, targets, number):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(model, keys, targets))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


def overflowing(at: list[int]) -> Step:
    """Makes a step whose loss is infinite in the steps of some numbers."""

    def step(model, optimizer, keys, targets, number):
        targets = tf.where(tf.reduce_any(number == tf.constant(at)), np.inf, targets)
        plain(model, optimizer, keys, targets, number)

    return step


def train(
    model: Any,
    optimizer: Any,
    step: Step,
    in_function: bool = True,
    steps: int = STEPS,
    read: Callable[[Any], Any] = contents,
) -> Any:
    """Takes steps on random ids below `KEYS` and random targets, the same ones for every model.

    Args:
        model: A `Model`, or a layer of rows of `DIM`.
        read: What is returned of the model in the end.
    """
    model.build((None, BATCH[1]))
    optimizer.build(model.trainable_variables)

    def run(keys: Any, targets: Any, number: Any) -> None:
        step(model, optimizer, keys, targets, number)

    run = tf.autograph.experimental.do_not_convert(run)
    if in_function:
        run = tf.function(run)
    random = np.random.default_rng(3)
    for number in range(steps):
        keys = random.integers(0, KEYS, BATCH)
        targets = random.normal(size=(*BATCH, DIM)).astype(np.float32)
        run(tf.constant(keys), tf.constant(targets), tf.constant(number))
    return read(model)


def check_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)
    assert np.abs(expected[0] - START).max() > 1e-4
