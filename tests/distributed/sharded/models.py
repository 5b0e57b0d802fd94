"""Models and batches of the scenarios, the same on every worker."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import numpy.typing as npt

import sok_embed
from sharded.registry import Here

GLOBAL_BATCH = 12
STEPS = 5
SAMPLES = GLOBAL_BATCH * STEPS
PLACES = 60  # rows, over all workers, of the table without a hash
TABLES = ("dynamic", "hashed", "direct")

# The rate is so high that a wrong factor of a gradient moves rows by far more than rounding does.
OPTIMIZERS = {"sgd": lambda: keras.optimizers.SGD(0.5), "adam": lambda: keras.optimizers.Adam(0.05)}

Inputs = dict[str, npt.NDArray[np.int64]]


def dense(name: str = "dense") -> Any:
    return keras.layers.Dense(1, name=name, kernel_initializer=keras.initializers.GlorotUniform(3))


def all_layers_model(here: Here) -> Any:
    """Makes a model with a table of each kind."""
    layers = {
        "dynamic": sok_embed.DynamicEmbedding(4, name="dynamic"),
        "hashed": sok_embed.All2AllDenseEmbedding(1000, 3, 2, 2, name="hashed"),
        "direct": sok_embed.All2AllDenseEmbedding(
            PLACES // here.size, 5, 1, 2, use_hashtable=False, name="direct"
        ),
    }
    shapes = {"dynamic": (3,), "hashed": (2, 2), "direct": (1, 2)}
    inputs = {
        name: keras.Input(shapes[name], dtype="int64", name=f"{name}_keys") for name in TABLES
    }
    flat = [keras.layers.Flatten()(layers[name](inputs[name])) for name in TABLES]
    output = dense()(keras.layers.Concatenate()(flat))
    return keras.Model({f"{name}_keys": tensor for name, tensor in inputs.items()}, output)


def all_layers_inputs(seed: int, samples: int = SAMPLES) -> Inputs:
    rng = np.random.default_rng(seed)
    return {
        "dynamic_keys": rng.integers(-50, 50, (samples, 3)),
        "hashed_keys": rng.integers(0, 10, (samples, 2, 2)) * (2**60 + 7) - 2**62,
        "direct_keys": rng.integers(0, PLACES, (samples, 1, 2)),
    }


def one_table_model(of_rows: Any = None, **arguments: Any) -> Any:
    """Three keys a sample, one table, with an optimizer of its own or none, one dense layer."""
    rows = sok_embed.DynamicEmbedding(4, optimizer=of_rows, name="dynamic")
    layers = [keras.Input((3,), dtype="int64"), rows]
    return keras.Sequential([*layers, keras.layers.Flatten(), dense()], **arguments)


def keys_and_targets(samples: int = SAMPLES) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.integers(-40, 40, (samples, 3)), rng.normal(size=(samples, 1)).astype(np.float32)


def share(array: Any, here: Here) -> Any:
    """This worker's rows: of each global batch as many as any other worker has."""
    return array[here.rank :: here.size]


def contents(model: Any) -> dict[str, Any]:
    """This worker's shard of each table, and the dense weights."""
    saved: dict[str, Any] = {}
    for layer in model.layers:
        if hasattr(layer, "table"):
            keys, rows = layer.table.export()
            untrained = type(layer).from_config(layer.get_config()).table.lookup(keys)
            saved[f"{layer.name}.keys"], saved[f"{layer.name}.rows"] = keys, rows
            saved[f"{layer.name}.untrained"] = untrained
        elif not hasattr(layer, "tables"):
            for i, weight in enumerate(layer.get_weights()):
                saved[f"weight.{layer.name}.{i}"] = np.asarray(weight, np.float32)
    return saved
