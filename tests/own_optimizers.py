"""Models whose tables have optimizers of their own, saved in all ways, and loaded elsewhere.

`own_optimizers.py FOLDER HOLDER RATE` loads what `save` has written, in a process of its own, and
writes what each model holds then, and after it has trained on.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint
from sok_embed.tfra import dynamic_embedding as de

KEYS = np.array([[1, 2], [3, 1], [2, 5], [7, 1]])
TARGETS = np.arange(4, dtype=np.float32)[:, np.newaxis]


def _collection(*optimizers: Any) -> Callable[[Any], Any]:
    configs = [
        sok.TableConfig(f"t{number}", None, 2, seed=number, optimizer=each)
        for number, each in enumerate(optimizers)
    ]
    features = [sok.FeatureConfig(each.name, each) for each in configs]
    layer = sok.DistributedEmbedding(features, output="concat", name="holder")
    return lambda keys: layer([keys] * len(features))


# The part of a model from keys to vectors, whose tables have a given optimizer.
HOLDERS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "collection": lambda own: _collection(None, own),
    "shared": lambda own: _collection(own, own, None),
    "dynamic": lambda own: sok.DynamicEmbedding(2, seed=1, optimizer=own, name="holder"),
    "adaptive": lambda own: sok.AdaptiveEmbedding(2, 5, seed=1, optimizer=own, name="holder"),
    "all2all": lambda own: (
        lambda keys: sok.All2AllDenseEmbedding(100, 2, 2, 1, seed=1, optimizer=own, name="holder")(
            keras.ops.expand_dims(keys, -1)
        )
    ),
    "tfra": lambda own: de.keras.layers.Embedding(2, seed=1, optimizer=own, name="holder"),
}

RATES: dict[str, Callable[[], Any]] = {
    "changed": lambda: 0.5,
    "scheduled": lambda: keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5),
}


def make(holder: str, rate: str) -> Any:
    keys = keras.Input((2,), dtype="int64")
    vectors = HOLDERS[holder](keras.optimizers.Adam(RATES[rate]()))(keys)
    ones = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Model(keys, ones(keras.layers.Flatten()(vectors)))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def step(model: Any, keys: Any, targets: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(keys, training=True) - targets) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)


def train(model: Any) -> None:
    for half in (slice(0, 2), slice(2, 4)):
        step(model, KEYS[half], TARGETS[half])


def holder_of(model: Any) -> Any:
    layer = model.get_layer("holder")
    return getattr(layer, "params", layer)  # of TFRA's layer


def own_optimizers(model: Any) -> list[Any]:
    layer = holder_of(model)
    if not isinstance(layer, sok.DistributedEmbedding):
        return [layer.optimizer]
    return list(layer.optimizers.values())


def state(model: Any) -> dict[str, Any]:
    """All that the own optimizers of a model and its tables hold, and what it predicts."""
    layer = holder_of(model)
    tables = getattr(layer, "tables", None) or {"table": layer.table}
    found = {}
    for number, own in enumerate(own_optimizers(model)):
        if not callable(own._learning_rate):
            found[f"rate {number}"] = own.learning_rate.numpy()
        found[f"iterations {number}"] = own.iterations.numpy()
    for name, table in tables.items():
        held = table.snapshot().by_name()
        for part in ("own_", "static_") if isinstance(table, sok.AdaptiveTable) else ("",):
            order = np.argsort(held[f"{part}keys"])
            for field in ("keys", "embeddings", "slots", "update_nums"):
                found[f"{name} {part}{field}"] = held[part + field][order]
            found[f"{name} {part}steps"] = held[f"{part}steps"]
    return found | predicted(model)


def predicted(model: Any) -> dict[str, Any]:
    return {"predictions": np.asarray(model(KEYS))}


class Trainable(tf.Module):
    """A model with a function that trains it, for a SavedModel."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        ids, floats = tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None, 1])
        self.step = tf.function(lambda keys, y: step(model, keys, y), [ids, floats])
        self.predict = tf.function(lambda keys: model(keys), [ids])


def _save_model_to_train(model: Any, path: str) -> None:
    with sok.whole_saved_models():
        tf.saved_model.save(Trainable(model), path)


def _pickle(model: Any, path: str) -> None:
    Path(path).write_bytes(pickle.dumps(model))


def _restored(path: str, made: Callable[[], Any]) -> Any:
    model = made()
    Checkpoint(model).restore(path)
    return model


def _read(path: str, made: Callable[[], Any]) -> Any:
    model = made()
    tf.train.Checkpoint(model=model).read(path).assert_existing_objects_matched()
    return model


def _with_weights(path: str, made: Callable[[], Any]) -> Any:
    model = made()
    model.load_weights(path)
    return model


def _loaded(path: str, made: Callable[[], Any]) -> Any:
    return keras.saving.load_model(path)


Save = Callable[[Any, str], Any]
Load = Callable[[str, Callable[[], Any]], Any]
# The name of a file or folder, how a model is saved there, and how it is loaded.
WAYS: dict[str, tuple[str, Save, Load]] = {
    "checkpoint": ("step", lambda m, path: Checkpoint(m).save(path), _restored),
    "keras": ("k.keras", lambda m, path: m.save(path), _loaded),
    "save_model": ("s.keras", sok.save_model, _loaded),
    "weights of a model": ("w.keras", lambda m, path: m.save(path), _with_weights),
    "weights": ("w.weights.h5", lambda m, path: m.save_weights(path), _with_weights),
    "tf": ("tf", lambda m, path: tf.train.Checkpoint(model=m).write(path), _read),
    "pickle": ("pickle", _pickle, lambda path, made: pickle.loads(Path(path).read_bytes())),
    "deepcopy": ("d.keras", lambda m, path: copy.deepcopy(m).save(path), _loaded),
    "saved model": (
        "saved",
        _save_model_to_train,
        lambda path, made: tf.saved_model.load(path),
    ),
}


def save(folder: Path, holder: str, rate: str) -> list[dict[str, Any]]:
    """Trains a model, saves it in all ways, and trains on. Returns its states then and then."""
    model = make(holder, rate)
    train(model)
    if rate == "changed":
        for own in own_optimizers(model):
            own.learning_rate = 0.001
    train(model)
    for name, saved, _ in WAYS.values():
        saved(model, str(folder / name))
    states = [state(model)]
    train(model)
    return [*states, state(model)]


def loaded(folder: Path, holder: str, rate: str, way: str) -> list[dict[str, Any]]:
    """Loads what was saved in a way, and trains on. Returns the states then and then."""
    name, _, load = WAYS[way]
    model = load(str(folder / name), lambda: make(holder, rate))
    if way != "saved model":
        states = [state(model)]
        train(model)
        return [*states, state(model)]
    states = [{"predictions": model.predict(KEYS).numpy()}]
    for half in (slice(0, 2), slice(2, 4)):
        model.step(KEYS[half], TARGETS[half])
    return [*states, {"predictions": model.predict(KEYS).numpy()}]


def main(folder: str, holder: str, rate: str) -> None:
    found = {way: loaded(Path(folder), holder, rate, way) for way in WAYS}
    (Path(folder) / "found.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
