"""Trains models of each kind and deletes them, and says how much memory the process has then.

python tests/trained_models.py KIND MODELS
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sok_embed import feature_column as fc

DIM = 64
BATCH = 1000


def _keys(rows: int) -> np.ndarray:
    return np.arange(rows).reshape(-1, 4)


def _model(vectors_of: Callable[[Any], Any], optimizer: Any = "sgd") -> keras.Model:
    keys = keras.Input((4,), dtype="int64")
    model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(vectors_of(keys))))
    model.compile(optimizer, "mse")
    return model


def _fit(vectors_of: Callable[[Any], Any], rows: int, optimizer: Any = "sgd") -> None:
    keys = _keys(rows)
    model = _model(vectors_of, optimizer)
    model.fit(keys, np.zeros((len(keys), 1)), batch_size=BATCH, verbose=0)


def _dynamic(rows: int) -> None:
    _fit(sok_embed.DynamicEmbedding(DIM), rows, "adam")


def _adaptive(rows: int) -> None:
    _fit(sok_embed.AdaptiveEmbedding(DIM, rows, promote_after=1), rows)


def _all2all(rows: int) -> None:
    layer = sok_embed.All2AllDenseEmbedding(rows, DIM, 4, 1)
    _fit(lambda keys: layer(keys[:, :, None]), rows)


def _distributed(rows: int) -> None:
    tables = [sok_embed.TableConfig(name, rows, DIM, combiner="sum") for name in ("a", "b")]
    features = {each.name: sok_embed.FeatureConfig(each.name, each) for each in tables}
    layer = sok_embed.DistributedEmbedding(features)

    def vectors_of(keys: Any) -> Any:
        vectors = layer({"a": keys[:, :2], "b": keys[:, 2:]})
        return keras.ops.concatenate([vectors["a"], vectors["b"]], 1)

    _fit(vectors_of, rows)


def _evicting(rows: int) -> None:
    _fit(
        sok_embed.DynamicEmbedding(
            DIM, max_rows=rows, eviction=sok_embed.eviction.LeastRecentlyUsed()
        ),
        rows,
    )


def _stored(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = sok_embed.Storage(folder)
        _fit(sok_embed.DynamicEmbedding(DIM, storage=storage), rows)
        storage.close()


def _hashed(rows: int) -> None:
    _fit(sok_embed.HashedEmbeddingBag(rows, DIM, size=rows * DIM), rows)


def _fit_columns(column: Any, rows: int, masked: bool) -> None:
    layer = fc.DenseFeatures([fc.embedding_column(column, DIM)])
    keys = keras.Input((4,), dtype="int64", name="c")
    masks = {"c": keras.ops.ones_like(keys, "int32")} if masked else None
    model = keras.Model({"c": keys}, keras.layers.Dense(1)(layer({"c": keys}, masks)))
    model.compile("sgd", "mse")
    of_examples = _keys(rows)
    model.fit({"c": of_examples}, np.zeros((len(of_examples), 1)), batch_size=BATCH, verbose=0)


def _adaptive_column(rows: int) -> None:
    _fit_columns(fc.categorical_column_with_adaptive_embedding("c", 100, tf.int64), rows, True)


def _column_of_own_rows(rows: int) -> None:
    _fit_columns(fc.categorical_column_with_embedding("c", tf.int64), rows, False)


def _loop(rows: int) -> None:
    model, optimizer = _model(sok_embed.DynamicEmbedding(DIM)), keras.optimizers.Adagrad(0.1)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(keys: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(keys, training=True) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for keys in np.split(_keys(rows), max(1, rows // (4 * BATCH))):
        step(tf.constant(keys))


def _loaded(rows: int) -> None:
    """Trains, saves, loads, and trains on, as a job does every day."""
    model = _model(sok_embed.DynamicEmbedding(DIM))
    keys = _keys(rows)
    model.fit(keys, np.zeros((len(keys), 1)), batch_size=BATCH, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        loaded.fit(keys, np.zeros((len(keys), 1)), batch_size=BATCH, verbose=0)


KINDS: dict[str, Callable[[int], None]] = {
    "dynamic": _dynamic,
    "adaptive": _adaptive,
    "all2all": _all2all,
    "distributed": _distributed,
    "evicting": _evicting,
    "stored": _stored,
    "adaptive_column": _adaptive_column,
    "column_of_own_rows": _column_of_own_rows,
    "loop": _loop,
    "loaded": _loaded,
}


def _resident_mib() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_after_each(kind: str, models: int, rows: int = 40_000) -> list[float]:
    """Returns the resident memory of this process in MiB after each of so many models."""
    after = []
    for _ in range(models):
        KINDS[kind](rows)
        keras.backend.clear_session()
        gc.collect()
        after.append(_resident_mib())
    return after


if __name__ == "__main__":
    KINDS["hashed"] = _hashed
    print(*(f"{each:.1f}" for each in memory_after_each(sys.argv[1], int(sys.argv[2]))))
