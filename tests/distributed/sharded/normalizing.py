"""Batch normalization by workers, each with its part of every batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.fitting import fit
from sharded.joining import _batches as uneven_batches
from sharded.models import GLOBAL_BATCH, SAMPLES, STEPS, share
from sharded.registry import Here, scenario

MOMENTUM = 0.8


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs with a variance that is small beside their mean, and targets."""
    rng = np.random.default_rng(8)
    inputs = 100 + rng.normal(size=(SAMPLES, 3)) * [0.1, 1, 10]
    return inputs.astype(np.float32), rng.normal(size=(SAMPLES, 1)).astype(np.float32)


def trained(here: Here, model: Any) -> dict[str, Any]:
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    fit(model, *examples(), here)
    return {f"weight.{i}": value for i, value in enumerate(model.get_weights())}


@scenario
def normalized_by_each(here: Here) -> dict[str, Any]:
    inputs = keras.Input((3,))
    normal = keras.layers.BatchNormalization(momentum=MOMENTUM)(inputs)
    return trained(here, keras.Model(inputs, keras.layers.Dense(1)(normal)))


@scenario
def normalized_by_all(here: Here) -> dict[str, Any]:
    """Two layers that each normalize by all workers, the second with a part masked."""
    inputs = keras.Input((3,))
    # Keras' own moments of a synchronized layer lose digits where the mean is large.
    options = {"momentum": MOMENTUM, "synchronized": here.size > 1}
    normal = keras.layers.BatchNormalization(name="first", **options)
    hidden = keras.layers.Dense(4, kernel_initializer=keras.initializers.GlorotUniform(1))
    again = keras.layers.BatchNormalization(name="second", **options)
    steps = keras.layers.Reshape((2, 2))(hidden(normal(inputs)))
    masked = keras.layers.Masking(0.5)(steps)  # no step is: the mask is all true
    output = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2))
    return trained(here, keras.Model(inputs, output(keras.layers.Flatten()(again(masked)))))


@scenario
def normalized_uneven(here: Here) -> dict[str, Any]:
    """Workers have other numbers of examples; of three, one has none."""

    def flat(x: Any, y: Any) -> Any:
        return tf.cast(x["word"], tf.float32), y

    inputs = keras.Input((2,))
    normal = keras.layers.BatchNormalization(momentum=MOMENTUM)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(normal))
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(sok_embed.data.join(uneven_batches(here, False).map(flat)), epochs=2, verbose=0)
    return {f"weight.{i}": value for i, value in enumerate(model.get_weights())}


def variances_of(workers: int) -> np.ndarray:
    """Returns the moving variance of each worker's own batches, averaged over the workers."""
    inputs = examples()[0].astype(np.float64)
    shares = [share(inputs, Here(rank, workers)) for rank in range(workers)]
    batches = np.reshape(shares, (workers, STEPS, GLOBAL_BATCH // workers, 3))
    moving = np.ones(3)
    for step in range(STEPS):
        moving = MOMENTUM * moving + (1 - MOMENTUM) * batches[:, step].var(1).mean(0)
    return moving
