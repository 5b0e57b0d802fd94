"""A model that workers train together, export, publish and save, and what they predict.

python trained_by_two.py FOLDER
"""

from __future__ import annotations

import contextlib
import os
import sys
import unittest.mock
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed.callbacks import PublishDeltas
from sok_embed.serving import Publisher, export
from sok_embed.serving.delta_files import DeltaWriter
from sok_embed.serving.workers_export import PartWriter

DIM = 4
KEYS = np.random.default_rng(0).integers(-30, 30, (32, 3))


def make_model() -> keras.Model:
    """Returns the model, the same in each process."""
    keras.utils.set_random_seed(1)
    tables = [
        sok.TableConfig("many", None, DIM, initializer="ones", combiner="mean"),
        sok.TableConfig("few", 30, DIM, combiner="sum", placement="key"),
        sok.TableConfig("all", 30, DIM, combiner="sum", placement="replicated"),
        sok.TableConfig("one", None, DIM, initializer="zeros", placement="worker"),
    ]
    ids = keras.Input((3,), dtype="int64", name="ids")
    positive = keras.ops.abs(ids) % 30
    features = [sok.FeatureConfig(table.name, table) for table in tables]
    fields = sok.DistributedEmbedding(features, name="fields")([ids, positive, positive, ids])
    own = sok.DynamicEmbedding(DIM, "zeros", combiner="sqrtn", name="own")(ids)
    adaptive = sok.AdaptiveEmbedding(DIM, 7, combiner="sum", name="adaptive")(ids)
    joined = keras.layers.Concatenate()([*fields, own, adaptive])
    model = keras.Model(ids, [joined, keras.layers.Dense(1, name="score")(joined)])
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(sok.DistributedOptimizer(optimizer), ["mse", "mse"])
    return model


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "int8", "min_count": 2},
    {"ops": "stock"},
)


def export_together(model: keras.Model, folder: str) -> None:
    """Exports from all workers, with each of the options, from a checkpoint, and with errors."""
    together = os.path.join(folder, "together")
    for number, options in enumerate(OPTIONS, 1):
        assert export(model, together, **options) == f"{together}/{number}"
    source = os.path.join(folder, "saved")
    assert export(model, together, source=source) == f"{together}/{len(OPTIONS) + 1}"
    rank = sok.rank()
    for wrong in (lambda: export(model, together, dtype=("int8", "int4")[rank]),
                  lambda: export(model, f"{together}{rank}")):  # fmt: skip
        with pytest.raises(ValueError, match="all workers to have the same"):
            wrong()
    failing = OSError(28, "No space left on device") if rank else None
    with (
        unittest.mock.patch.object(PartWriter, "put_rows", side_effect=failing),
        pytest.raises(OSError if rank else RuntimeError, match="No space|an error on worker 1"),
    ):
        export(model, together)
    if rank == 0:  # which has removed what was left
        assert sorted(os.listdir(together)) == ["1", "2", "3", "4"]


def publish_together(model: keras.Model, folder: str, data: tf.data.Dataset) -> None:
    """Publishes what a `fit` of all workers changes, and keeps what they predict then."""
    path = os.path.join(folder, "published")
    export(model, path, dtype="int8")  # rows are rounded by worker 0 alone
    assert export(model, path) == f"{path}/2"
    model.fit(data, epochs=2, steps_per_epoch=3, verbose=0, callbacks=[PublishDeltas(path, 2)])
    keep_predicted(model, folder, "after")
    publisher = Publisher(model, path)
    assert publisher.number == 3 and publisher.publish() == 3  # nothing has changed
    own = model.get_layer("own").table
    assert own.size() and publisher.is_blocked() is False
    mine = np.arange(-30, 30)
    mine = mine[mine % sok.size() == sok.rank()]
    mine = mine[own.contains(mine)]  # the rows of this worker
    own.remove(mine[:5])
    own.assign(mine[5:7], np.full([2, DIM], 1.0 + sok.rank()))
    full = OSError(28, "No space left on device")
    with contextlib.ExitStack() as stack:
        if sok.rank():
            failing = unittest.mock.patch.object(PartWriter, "put_rows", side_effect=full)
            stack.enter_context(failing)
        with pytest.raises(OSError if sok.rank() else RuntimeError, match="No space|on worker 1"):
            publisher.publish()
    assert publisher.number == 3
    with unittest.mock.patch.object(DeltaWriter, "finish", side_effect=full):
        with pytest.raises(RuntimeError if sok.rank() else OSError, match="No space|on worker 0"):
            publisher.publish()
    assert publisher.publish() == publisher.number == 4  # no change is lost
    keep_predicted(model, folder, "removed")
    assert export(model, path) == f"{path}/3"
    assert publisher.publish() == 0  # to the new export, which has everything
    own.remove(mine[5:6])
    assert publisher.publish() == 1
    publisher.close()
    keep_predicted(model, folder, "exported")
    if sok.rank() == 0:
        assert not [name for name in os.listdir(f"{path}/2/deltas") if name.startswith(".")]


def make_stored(storage: sok.kv.Storage) -> keras.Model:
    """Returns a model whose rows lie in a storage, of which each worker has its own."""
    keras.utils.set_random_seed(1)
    ids = keras.Input((3,), dtype="int64", name="ids")
    layer = sok.DynamicEmbedding(DIM, "zeros", combiner="sum", name="stored", storage=storage)
    vectors = layer(ids)
    model = keras.Model(ids, [vectors, keras.layers.Dense(1, name="score")(vectors)])
    model.compile(sok.DistributedOptimizer(keras.optimizers.Adam(0.01)), ["mse", "mse"])
    return model


def publish_stored(folder: str, part: slice) -> None:
    """Publishes what a `fit` of tables in storages changes, and goes on after these were closed."""
    path = os.path.join(folder, "stored")
    targets = (np.ones((16, DIM), np.float32), np.ones((16, 1), np.float32))
    data = tf.data.Dataset.from_tensors((KEYS[part], targets)).repeat()
    weights: list[np.ndarray] = []
    for run, version in enumerate([4, 8]):
        with sok.kv.Storage(os.path.join(folder, "rows")) as storage:
            model = make_stored(storage)
            if run:
                model.set_weights(weights)
            else:
                assert export(model, path) == f"{path}/1"
            model.fit(data, epochs=1, steps_per_epoch=4, verbose=0,
                      callbacks=[PublishDeltas(path, 2)])  # fmt: skip
            publisher = Publisher(model, path)
            table = model.get_layer("stored").table
            mine, _ = table.export()
            assert len(mine) and np.all(mine % sok.size() == sok.rank())
            table.remove(mine[:2])
            table.assign(mine[2:4], np.full([2, DIM], 2.0 + sok.rank()))
            assert publisher.publish() == version - 1
            assert publisher.publish() == version - 1  # nothing has changed
            if sok.rank():  # a row of one worker alone
                table.remove(mine[4:5])
            assert publisher.publish() == version
            publisher.close()
            keep_predicted(model, folder, f"stored-{version}")
            weights = model.get_weights()


def keep_predicted(model: keras.Model, folder: str, name: str) -> None:
    """Has worker 0 write what the model answers now."""
    asked = np.concatenate([KEYS, [[100, 101, 102]]])
    vectors, scores = model.predict(asked, batch_size=len(asked), verbose=0)
    if sok.rank() == 0:
        np.savez(os.path.join(folder, f"{name}.npz"), asked=asked, vectors=vectors, scores=scores)


def main(folder: str) -> None:
    """Trains, saves a checkpoint, exports and publishes; worker 0 writes what the model answers."""
    sok.init()
    model = make_model()
    part = slice(sok.rank() * 16, sok.rank() * 16 + 16)
    targets = (np.ones((16, 6 * DIM), np.float32), np.ones((16, 1), np.float32))
    data = tf.data.Dataset.from_tensors((KEYS[part], targets)).repeat(3)
    model.fit(data, epochs=1, steps_per_epoch=3, verbose=0,
              callbacks=[sok.callbacks.BroadcastVariables(0)])  # fmt: skip
    sok.checkpoint.Checkpoint(model).save(os.path.join(folder, "saved"))
    export_together(model, folder)
    keep_predicted(model, folder, "predicted")
    publish_together(model, folder, data)
    publish_stored(folder, part)


if __name__ == "__main__":
    main(sys.argv[1])
