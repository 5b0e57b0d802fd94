"""Training by loops of one's own, with batches that are not alike on all workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.models import OPTIMIZERS, contents, dense, keys_and_targets, one_table_model, share
from sharded.registry import Here, scenario

Step = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def step_of(model: Any, optimizer: Any) -> Step:
    """Makes a step whose loss is the sum over this worker's samples, times `weight`.

    With a weight of workers / samples of all, the average of the losses of all workers is the mean
    over all samples, however they are spread.
    """

    def step(keys: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            errors = tf.square(model(keys, training=True) - targets)
            loss = tf.reduce_sum(errors) * weight
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step


def train_uneven(
    model: Any, step: Step, shares: list[tuple[int, ...]], here: Here
) -> dict[str, Any]:
    """Global batches of 12 and 11 samples in turns, of which each worker takes its share."""
    keys, targets = keys_and_targets()
    first = 0
    for counts in shares:
        total = sum(counts)
        begin = first + (0 if here.size == 1 else sum(counts[: here.rank]))
        count = total if here.size == 1 else counts[here.rank]
        rows = slice(begin, begin + count)
        step(tf.constant(keys[rows]), tf.constant(targets[rows]), tf.constant(here.size / total))
        first += total
    return contents(model)


UNEVEN = {
    1: [(12,), (12,), (12,), (12,)],
    2: [(12, 0), (7, 5), (0, 12), (1, 11)],
    3: [(12, 0, 0), (7, 5, 0), (0, 0, 12), (1, 4, 7)],
    4: [(12, 0, 0, 0), (7, 5, 0, 0), (0, 0, 12, 0), (1, 4, 4, 3)],
}
# The last worker meets a new shape in the second step, the others do not.
RETRACING = {
    1: [(12,), (11,), (12,), (11,)],
    2: [(6, 6), (6, 5), (6, 6), (6, 5)],
    3: [(4, 4, 4), (4, 4, 3), (4, 4, 4), (4, 4, 3)],
}
ANY_SHAPE = [
    tf.TensorSpec([None, 3], tf.int64),
    tf.TensorSpec([None, 1], tf.float32),
    tf.TensorSpec([], tf.float32),
]


def _uneven(here: Here, optimizer: str) -> dict[str, Any]:
    model = one_table_model()
    step = step_of(model, sok_embed.DistributedOptimizer(OPTIMIZERS[optimizer]()))
    compiled = tf.function(step, input_signature=ANY_SHAPE)
    return train_uneven(model, compiled, UNEVEN[here.size], here)


@scenario
def uneven_sgd(here: Here) -> dict[str, Any]:
    return _uneven(here, "sgd")


@scenario
def uneven_adam(here: Here) -> dict[str, Any]:
    return _uneven(here, "adam")


@scenario
def uneven_eager(here: Here) -> dict[str, Any]:
    model = one_table_model()
    step = step_of(model, sok_embed.DistributedOptimizer(OPTIMIZERS["sgd"]()))
    return train_uneven(model, step, UNEVEN[here.size], here)


@scenario
def retracing_on_one_worker(here: Here) -> dict[str, Any]:
    model = one_table_model()
    step = step_of(model, sok_embed.DistributedOptimizer(OPTIMIZERS["sgd"]()))
    return train_uneven(model, tf.function(step), RETRACING[here.size], here)


def _called_twice(here: Here, compiled: bool) -> dict[str, Any]:
    """Calls the same layer on two inputs that have keys in common."""
    left, right = keras.Input((3,), dtype="int64"), keras.Input((3,), dtype="int64")
    layer = sok_embed.DynamicEmbedding(4, name="dynamic")
    joined = keras.layers.Concatenate()([layer(left), layer(right)])
    model = keras.Model([left, right], dense()(keras.layers.Flatten()(joined)))
    optimizer = sok_embed.DistributedOptimizer(OPTIMIZERS["adam"]())

    def step(keys: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            predictions = model([keys, keys + 5], training=True)
            loss = tf.reduce_mean(tf.square(predictions - targets))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    run = tf.function(step) if compiled else step
    keys, targets = keys_and_targets()
    for first in range(0, 48, 12):
        batch = slice(first, first + 12)
        run(tf.constant(share(keys[batch], here)), tf.constant(share(targets[batch], here)))
    return contents(model)


@scenario
def called_twice(here: Here) -> dict[str, Any]:
    return _called_twice(here, compiled=True)


@scenario
def called_twice_eager(here: Here) -> dict[str, Any]:
    return _called_twice(here, compiled=False)


@scenario
def repeated(here: Here) -> dict[str, Any]:
    """Trains the same three times, with backward passes that come as threads have it."""
    runs = [_called_twice(here, compiled=True) for _ in range(3)]
    return {
        f"{number}.{name}": value for number, run in enumerate(runs) for name, value in run.items()
    }


@scenario
def keys_of_one_owner(here: Here) -> dict[str, Any]:
    """Trains a table with an optimizer of its own, by steps whose keys all live on worker 0."""
    layer = sok_embed.DynamicEmbedding(4, name="dynamic", optimizer=keras.optimizers.Adam(0.05))
    model = keras.Sequential(
        [keras.Input((2,), dtype="int64"), layer, keras.layers.Flatten(), dense()]
    )
    step = step_of(model, sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    compiled = tf.function(
        step, input_signature=[tf.TensorSpec([None, 2], tf.int64), *ANY_SHAPE[1:]]
    )
    everywhere = np.arange(24).reshape(12, 2)
    for keys in itertools.chain([everywhere * 6] * 3, [everywhere] * 3):
        own = share(keys, here)
        targets = tf.ones([len(own), 1])
        compiled(tf.constant(own), targets, tf.constant(here.size / 12.0))
    return contents(model)


@scenario
def rows_in_fewer_bytes(here: Here) -> dict[str, Any]:
    """Trains rows of several types by gradients that are whole numbers, which add up exactly."""
    keys = np.arange(60).reshape(12, 5) * 7 - 100
    saved: dict[str, Any] = {}
    for row_dtype, slot_dtype in (("bfloat16", "float32"), ("int8", "bfloat16")):
        layer = sok_embed.DynamicEmbedding(
            4, seed=1, name=row_dtype, row_dtype=row_dtype, slot_dtype=slot_dtype
        )
        optimizer = sok_embed.DistributedOptimizer(keras.optimizers.Adam(0.01))
        own = tf.constant(share(keys, here))
        factors = tf.cast(own % 5 + 1, tf.float32)[..., None] * here.size
        for _ in range(6):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(own, training=True) * factors)
            weights = layer.trainable_weights
            optimizer.apply(tape.gradient(loss, weights), weights)
        held = layer.table.export(slots=True)
        saved[f"{row_dtype}.keys"], saved[f"{row_dtype}.rows"] = held.keys, held.embeddings
        saved[f"{row_dtype}.slots"] = held.slots
    return saved
