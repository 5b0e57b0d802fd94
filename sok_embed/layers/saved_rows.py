"""The rows of a table in a Keras file: their entries, and who may write and read them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from sok_embed import callers, communicators, contents, tf_ops
from sok_embed.table import Table


def check_saves_all_rows(layer: str) -> None:
    """Raises where there are several workers, each of which has a part of the rows."""
    if communicators.size() > 1:
        raise ValueError(
            f"Layer '{layer}' is sharded over {communicators.size()} workers, and a Keras "
            "file holds one worker's part. Expected one worker. To resume, call "
            "sok_embed.checkpoint.Checkpoint(model).save(directory) on all workers; to have one "
            "file, restore that in one process and save there."
        )


def check_loads_all_rows(layer: str, how: str) -> None:
    """Raises where there are several workers, with what to do."""
    if communicators.size() > 1:
        raise ValueError(
            f"Layer '{layer}': expected one worker to load a Keras file, which holds the "
            f"rows of one worker. Received: {communicators.size()} workers. {how}"
        )


class SavedRows:
    """The entries of one table.

    Args:
        layer: The name of the layer that has the table.
        table: The table.
        prefix: Of the entries of rows.
        storage_entry: The entry with the number of rows in a storage.
    """

    def __init__(self, layer: str, table: Table, prefix: str, storage_entry: str) -> None:
        self._layer = layer
        self._table = table
        self._prefix = prefix
        self._storage_entry = storage_entry

    @property
    def names(self) -> set[str]:
        """The names of all entries that a file may have of the table."""
        return {*contents.entries(tf_ops.Export, self._prefix).values(), self._storage_entry}

    def save(self, store: Any) -> None:
        """Adds the rows; those in a storage are flushed, and stay there."""
        if self._table.storage is not None:
            self._table.storage.flush()
            store[self._storage_entry] = np.int64(self._table.size())
            return
        check_saves_all_rows(self._layer)
        contents.save(store, self._prefix, self._table.export(slots=True))

    def read(self, store: Any) -> tf_ops.Export | None:
        """What the table is to be restored from; `None`: its rows are in the storage.

        Raises:
            ValueError: For a file that does not have what the table needs.
        """
        expected = contents.entries(tf_ops.Export, self._prefix).values()
        saved = self.names.intersection(store.keys())
        storage = self._table.storage
        if storage is not None and saved.isdisjoint(expected):
            self._warn_of_missing(store, saved)
            return None
        what = f"Layer '{self._layer}'"
        if storage is not None and callers.loading_model():
            raise ValueError(
                f"{what}: expected no rows in a file whose model has its rows in {storage!r}. "
                "Received: some, which would take the place of those. To put them there, make the "
                "model by its class and use model.load_weights(file)."
            )
        check_loads_all_rows(
            self._layer,
            "Load it in one process, and give each worker its rows with `layer.table.assign`.",
        )
        if self._storage_entry in saved and saved.isdisjoint(expected):
            raise ValueError(
                f"{what}: expected rows in the file, for a layer without a storage. "
                "Received: a file of a layer whose rows lie in a storage, and are not in the file. "
                "Make the layer with storage= and group= as it was saved; or bring the rows over, "
                "with `layer.table.export(slots=True)` there and `layer.table.restore` here."
            )
        contents.check_whole(what, saved, tf_ops.Export, [self._prefix])
        if not saved.issuperset(expected):
            there = ", ".join(sorted(store.keys())) or "no entries"
            raise ValueError(
                f"{what}: expected rows saved by a table layer, with the entries "
                f"{', '.join(expected)}. Received: {there}. To take the weights of a static "
                "embedding, use `layer.table.assign(range(len(weights)), weights)`."
            )
        return contents.load(store, self._prefix, tf_ops.Export)

    def _warn_of_missing(self, store: Any, saved: Iterable[str]) -> None:
        rows = int(np.asarray(store[self._storage_entry])) if self._storage_entry in saved else 0
        if rows and not self._table.size():
            warnings.warn(
                f"Layer '{self._layer}': expected {rows} rows in {self._table.storage!r}, as the "
                "model was saved with. Received: none, so every key has the vector it starts from. "
                "Put the folder of that time there.",
                stacklevel=5,
            )
