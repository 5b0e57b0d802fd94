"""What DistributedOptimizer does to gradients, and saving."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.fitting import fit
from sharded.models import contents, keys_and_targets, one_table_model
from sharded.registry import Here, scenario
from sok_embed.training.distributed_optimizer import average_gradients


@scenario
def averages(here: Here) -> dict[str, Any]:
    """Averages a dense gradient, none, and slices of another number on each worker."""
    count = here.rank + 1
    slices = tf.IndexedSlices(
        tf.fill([count, 2], float(here.rank + 1)), tf.range(count), tf.constant([5, 2])
    )
    dense, none, sparse = average_gradients([tf.constant([1.0 + here.rank]), None, slices])
    assert none is None
    return {
        "dense": dense.numpy(),
        "sparse": tf.convert_to_tensor(sparse).numpy(),
        "stays_sparse": isinstance(sparse, tf.IndexedSlices),
        "indices": sparse.indices.numpy(),
    }


# Name, shape of a row, type and number of rows of sparse gradients.
SLICES = {
    "wide": ((3,), tf.float32, 7),
    "flat": ((), tf.float32, 4),
    "short": ((2,), tf.bfloat16, 5),
    "double": ((2, 2), tf.float64, 6),
}


def slices_of(rank: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The indices, some of them equal, and the rows that a worker has; every third has none."""
    shape, _, rows = SLICES[name]
    rng = np.random.default_rng([rank, rows])
    count = 0 if (rank + rows) % 3 == 0 else int(rng.integers(1, 9))
    # Sums of these are exact in every type.
    return rng.integers(0, rows, count), rng.integers(-4, 5, (count, *shape)) * 0.5


@scenario
def many_slices(here: Here) -> dict[str, Any]:
    """Averages sparse gradients of several shapes and types together."""
    given = []
    for name, (shape, dtype, rows) in SLICES.items():
        indices, values = slices_of(here.rank, name)
        given.append(
            tf.IndexedSlices(
                tf.cast(values, dtype), tf.constant(indices), tf.constant([rows, *shape], tf.int64)
            )
        )
    saved = {}
    for mode, average in {
        "eager": average_gradients,
        "function": tf.function(average_gradients),
    }.items():
        for name, average_of_one in zip(SLICES, average(given), strict=True):
            assert average_of_one.values.dtype == SLICES[name][1]
            saved[f"{mode}.{name}.indices"] = average_of_one.indices.numpy()
            saved[f"{mode}.{name}.values"] = tf.cast(average_of_one.values, tf.float64).numpy()
    return saved


@scenario
def saving(here: Here) -> dict[str, Any]:
    """A Keras file holds all rows, so several workers cannot write one."""
    model = one_table_model()
    model.compile(sok_embed.DistributedOptimizer("adam"), "mse")
    keys, targets = keys_and_targets()
    fit(model, keys, targets, here)
    saved: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
            loaded = keras.models.load_model(path)
            saved["optimizer"] = type(loaded.optimizer).__mro__[0].__qualname__
            saved["is_plain"] = type(loaded.optimizer) is keras.optimizers.Adam
        except ValueError as error:
            saved["refusal"] = str(error)
    # Nothing else was changed, so the rows of each worker can still be taken out and put back.
    table = model.get_layer("dynamic").table
    kept = table.export(slots=True)
    table.remove(kept.keys)
    assert table.size() == 0
    table.restore(kept)
    np.testing.assert_array_equal(table.lookup(kept.keys), kept.embeddings)
    return {**contents(model), **saved}
