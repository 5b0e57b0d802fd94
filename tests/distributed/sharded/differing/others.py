"""Variables, optimizers and functions of which one worker has others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok
from sharded.differing.kinds import KEYS, apply, look_up, rows
from sok_embed.tfra import dynamic_embedding as de


def weights(**shapes: Any) -> list[Any]:
    return [keras.Variable(np.ones(shape, np.float32), name=name) for name, shape in shapes.items()]


def train_rows(optimizer: Any) -> None:
    """Takes a step of rows alone, whose optimizer averages nothing."""
    layer = rows()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(KEYS, training=True))
    optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)


class _Rate(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras cannot serialize."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate


def _constant(rate: float) -> Callable[[], float]:
    return lambda: rate


# Other differences: functions of whether this worker is the odd one, and words of their messages.
OTHERS: dict[str, tuple[Callable[[bool], object], str]] = {
    "another number of variables": (
        lambda odd: apply(keras.optimizers.SGD(), *weights(a=2, **({"b": 2} if odd else {}))),
        "variable 1",
    ),
    "a variable of another name": (
        lambda odd: apply(keras.optimizers.SGD(), *weights(**{"b" if odd else "a": 2})),
        "variable 0",
    ),
    "a variable of another shape": (
        lambda odd: apply(keras.optimizers.SGD(), *weights(a=3 if odd else 2)),
        "shape (3,)",
    ),
    "a variable of another type": (
        lambda odd: apply(
            keras.optimizers.SGD(),
            keras.Variable(np.ones(2), dtype="float16" if odd else "float32", name="a"),
        ),
        "float16",
    ),
    "variables in another order": (
        lambda odd: apply(
            keras.optimizers.SGD(), *(weights(b=2, a=2) if odd else weights(a=2, b=2))
        ),
        "variable 0",
    ),
    "another optimizer": (
        lambda odd: apply(keras.optimizers.Adam(0.1) if odd else keras.optimizers.SGD(0.1)),
        "class of the optimizer",
    ),
    "another schedule": (
        lambda odd: apply(
            keras.optimizers.SGD(
                keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
                if odd
                else keras.optimizers.schedules.InverseTimeDecay(0.1, 10, 0.5)
            )
        ),
        "learning_rate",
    ),
    "a schedule that Keras cannot serialize": (
        lambda odd: apply(keras.optimizers.SGD(_Rate(0.1 if odd else 0.2))),
        "learning_rate.rate",
    ),
    "a function with another value": (
        lambda odd: apply(keras.optimizers.SGD(_constant(0.1 if odd else 0.2))),
        "learning_rate.values of the optimizer is [0.2] on worker",
    ),
    "a function of another name": (
        lambda odd: look_up(rows(embeddings_regularizer=tf.reduce_sum if odd else tf.reduce_max)),
        "embeddings_regularizer",
    ),
    "a function with other code": (
        lambda odd: look_up(
            rows(embeddings_constraint=(lambda rows: rows + 1) if odd else (lambda rows: rows))
        ),
        "embeddings_constraint",
    ),
    "the rate of a table's own optimizer": (
        lambda odd: look_up(rows(optimizer=keras.optimizers.Adam(0.1 if odd else 0.2))),
        "optimizer.learning_rate of layer 'items'",
    ),
    "the rate of an optimizer that averages nothing": (
        lambda odd: train_rows(keras.optimizers.Adam(0.1 if odd else 0.2)),
        "learning_rate of the optimizer",
    ),
    "averages on one worker": (
        lambda odd: train_rows(sok.DistributedOptimizer("sgd") if odd else keras.optimizers.SGD()),
        "averaging",
    ),
    "weight decay of other variables": (
        lambda odd: _excluding(odd),
        "without weight decay",
    ),
    "another layer": (
        lambda odd: look_up(sok.AdaptiveEmbedding(2, 5, name="a") if odd else rows()),
        "what comes next",
    ),
    "a variable of TFRA": (
        lambda odd: look_up(de.Variable(dim=2, name="v", initializer="zeros" if odd else "ones")),
        "initializer",
    ),
}


def _excluding(odd: bool) -> None:
    optimizer = keras.optimizers.SGD(weight_decay=0.1)
    if odd:
        optimizer.exclude_from_weight_decay(var_names=["a"])
    apply(optimizer, *weights(a=2))
