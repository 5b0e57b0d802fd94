"""Training of tables whose rows live in a storage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.fitting import fit
from sharded.models import dense, keys_and_targets
from sharded.registry import Here, scenario
from sok_embed import kv

GROUPS = {"dynamic": 0, "hashed": 5}


def model_on(storage: kv.Storage) -> Any:
    layers = {
        "dynamic": sok_embed.DynamicEmbedding(4, name="dynamic", seed=2, storage=storage),
        "hashed": sok_embed.All2AllDenseEmbedding(
            1000, 3, 1, 3, name="hashed", seed=2, storage=storage, group=GROUPS["hashed"]
        ),
    }
    keys = keras.Input((3,), dtype="int64")
    flat = [
        keras.layers.Flatten()(layers["dynamic"](keys)),
        keras.layers.Flatten()(layers["hashed"](keras.layers.Reshape((1, 3))(keys))),
    ]
    model = keras.Model(keys, dense()(keras.layers.Concatenate()(flat)))
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")
    return model


@scenario
def storing(here: Here) -> dict[str, Any]:
    """Trains, closes, opens and goes on; the optimizer and the dense layer are carried along."""
    folder = Path(sys.argv[1])
    keys, targets = keys_and_targets()
    saved: dict[str, Any] = {}
    with kv.Storage(folder / "rows") as storage:
        model = model_on(storage)
        fit(model, keys[:24], targets[:24], here)
        path = tf.train.Checkpoint(model=model).save(folder / f"checkpoint-{here.rank}")
        saved["folder"] = storage.path
        saved["steps"] = [group.steps for group in storage.groups()]
        try:
            tf.saved_model.save(model, str(folder / f"saved-{here.rank}"))
        except ValueError as error:
            saved["refusal"] = str(error)
    with kv.Storage(folder / "rows") as storage, kv.Storage(folder / "untrained") as empty:
        model = model_on(storage)
        tf.train.Checkpoint(model=model).restore(path).assert_existing_objects_matched()
        fit(model, keys[24:], targets[24:], here)
        untrained = model_on(empty)
        for name in GROUPS:
            own_keys, rows = model.get_layer(name).table.export()
            saved[f"{name}.keys"], saved[f"{name}.rows"] = own_keys, rows
            saved[f"{name}.untrained"] = untrained.get_layer(name).table.lookup(own_keys)
        saved["weight.dense.0"] = model.get_layer("dense").get_weights()[0]
        saved["rows"] = [group.rows for group in storage.groups()]
    return saved


@scenario
def updating_without_layers(here: Here) -> dict[str, Any]:
    """Each worker has an embedding of its own; nothing travels."""
    with kv.Storage(Path(sys.argv[1]) / "own") as storage:
        embedding = kv.Embedding(
            storage, kv.Optimizer("sgd", gamma=1), kv.Initializer("zeros"), dimension=2
        )
        embedding.apply_gradients(
            np.array([here.rank], np.uint64), np.full(2, 1 + here.rank, np.float32)
        )
        return {"rows": len(embedding), "vector": embedding.lookup(np.array([0], np.uint64))}
