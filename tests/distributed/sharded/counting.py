"""Layers of every form with an admission, each trained on a share of one stream of keys."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from counted_forms import FORMS, stream

import sok_embed
from sharded.models import share
from sharded.registry import Here, scenario

SEED = 29


def _train(here: Here, training: bool) -> dict[str, Any]:
    admitted: dict[str, Any] = {}
    for name, make in FORMS.items():
        counted = make()
        optimizer = sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.5))
        for step, batch in enumerate(stream(SEED)):
            with tf.GradientTape() as tape:
                loss = counted.loss(share(batch, here), training)
            variables = counted.layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            admitted[f"{name}.{step}"] = counted.admitted()
    return admitted


@scenario
def counted_in_training(here: Here) -> dict[str, Any]:
    return _train(here, True)


@scenario
def counted_by_gradients(here: Here) -> dict[str, Any]:
    return _train(here, False)


class _Counted(keras.callbacks.Callback):
    """Counts the keys of this worker that a table has before their batch, and the bytes it sends.

    It comes before the callback whose sums are exchanged, too.
    """

    def __init__(self, table: sok_embed.Table, keys: Any) -> None:
        super().__init__()
        self.found, self.bytes = 0, 0
        self._table, self._keys = table, keys

    def _sent(self) -> int:
        connections = getattr(sok_embed.communicators.current(), "connections", None)
        return 0 if connections is None else connections.stats()["bytes_sent"]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.bytes -= self._sent()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.found += int(self._table.contains(self._keys[batch]).sum())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.bytes += self._sent()


@scenario
def evictions_in_logs(here: Here) -> dict[str, Any]:
    """Two tables of at most 6 rows a worker: one spread by key, one that lies on every worker."""
    spread = sok_embed.TableConfig("spread", None, 2, max_rows=6, eviction="lru")
    whole = sok_embed.TableConfig(
        "whole", None, 2, max_rows=6, eviction="lru", placement="replicated"
    )
    features = [sok_embed.FeatureConfig(table.name, table, "sum") for table in (spread, whole)]
    layer = sok_embed.DistributedEmbedding(features, name="fields")
    inputs = [keras.Input((1,), dtype="int64", name=one.name) for one in features]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(layer(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    tables = layer.tables
    for table in tables.values():
        table.removed_keys()
    keys = share(np.arange(96)[:, None] % 48, here)
    counted = _Counted(tables["whole"], keys // 12)
    history = model.fit(
        [keys, keys // 12],
        np.ones([len(keys), 1]),
        batch_size=1,
        verbose=0,
        shuffle=False,
        callbacks=[counted, sok_embed.callbacks.TableMetrics()],
    ).history
    removed = {name: table.removed_keys() for name, table in tables.items()}
    assert all(one.complete for one in removed.values())
    saved: dict[str, Any] = {name: one.keys for name, one in removed.items()}
    for name, table in tables.items():
        saved[f"{name}.held"] = table.export()[0]
        saved[f"{name}.evicted"] = table.stats()["evicted"]
        for figure in ("rows", "new_rows", "hit_rate", "evicted", "left_out"):
            saved[f"logs.{name}.{figure}"] = history[f"fields/{name}/{figure}"]
    exchange = [history.get(f"exchange/{figure}", [0])[0] for figure in ("bytes", "seconds")]
    return saved | {"found": counted.found, "bytes": counted.bytes, "exchange": exchange}
