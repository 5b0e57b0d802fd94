"""Provides the shared parts of the cases of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok

FIELDS, DIM, BATCH, KEYS = 4, 8, 128, 3000
Arrays = dict[str, Any]
# The function of each case, and the largest difference, as a part of the largest value.
CASES: dict[str, tuple[Callable[[], Arrays], float]] = {}


def case(tolerance: float = 1e-4) -> Callable[[Callable[[], Arrays]], Callable[[], Arrays]]:
    """Registers a case by the name of its function."""

    def register(function: Callable[[], Arrays]) -> Callable[[], Arrays]:
        CASES[function.__name__] = (function, tolerance)
        return function

    return register


def on_gpu() -> bool:
    """Returns whether this process sees a GPU."""
    return bool(tf.config.list_physical_devices("GPU"))


def device() -> str:
    """Returns the GPU, or in the process without one the CPU."""
    return "/device:GPU:0" if on_gpu() else "/device:CPU:0"


def examples(batches: int = 12, batch: int = BATCH) -> tuple[Any, Any]:
    """Makes keys and targets, the same in every process."""
    random = np.random.default_rng(1)
    keys = random.integers(-KEYS // 2, KEYS // 2, (batches * batch, FIELDS))
    return keys, np.sin(keys).sum(1, keepdims=True).astype(np.float32)


def model_of(layer: Any, flatten: bool = True) -> Any:
    """Makes a model of a layer of embeddings with two dense layers on it."""
    inputs = keras.Input((FIELDS,), dtype="int64")
    vectors = layer(inputs)
    hidden = keras.layers.Flatten()(vectors) if flatten else vectors
    hidden = keras.layers.Dense(32, "relu", name="hidden")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="last")(hidden))


def rows(**arguments: Any) -> Any:
    """Makes a layer with a table."""
    return sok.DynamicEmbedding(DIM, name="rows", seed=3, **arguments)


def contents(model: Any) -> Arrays:
    """Returns dense weights, which must be on the GPU if there is one, rows and predictions."""
    found = {}
    dense = [weight for weight in model.trainable_variables if "anchor" not in weight.path]
    for number, weight in enumerate(dense):
        found[f"weight.{number}"] = np.asarray(weight)
    placed = {weight.value.device for layer in model.layers for weight in layer.weights
              if isinstance(layer, keras.layers.Dense)}  # fmt: skip
    assert all(name.endswith(device()) for name in placed), placed
    for layer in model.layers:
        tables = getattr(layer, "tables", None) or {"rows": getattr(layer, "table", None)}
        for name, table in tables.items():
            if isinstance(table, sok.Table):
                keys, vectors = table.export()
                order = np.argsort(keys)
                found |= {f"{name}.keys": keys[order], f"{name}.rows": vectors[order]}
    return found


def fitted(model: Any, optimizer: Any, data: Any = None, **compiling: Any) -> Arrays:
    """Trains a model by `fit`, and returns its losses, what it holds and what it predicts."""
    keys, targets = data or examples()
    model.compile(optimizer, "mse", **compiling)
    losses = model.fit(keys, targets, BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    predicted = model.predict(keys, BATCH, verbose=0)
    return {"losses": losses, "predicted": predicted, **contents(model)}


def loss_step(model: Any, optimizer: Any, keys: Any, targets: Any) -> Any:
    """Makes a step of a loop of one's own."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(keys, training=True) - targets) ** 2)
    weights = model.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)
    return loss


def ids() -> tuple[Any, Any]:
    """Makes examples whose keys are not negative."""
    keys, targets = examples()
    return abs(keys), targets
