"""The rows of a table in a Keras file: their entries, and who may write and read them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from sok_embed import callers, communicators, contents, tf_ops
from sok_embed.checkpoint.whole_tables import own_part
from sok_embed.table import Table


def check_saves_all_rows(layer: str) -> None:
    """Raises where a worker would write its own rows alone into a file that is for all."""
    size = communicators.size()
    if size > 1 and not contents.are_of_all_workers():
        raise ValueError(
            f"Layer '{layer}' is sharded over {size} workers, and Keras writes the rows of this "
            "one alone. Expected a way to save that has those of all. Received: model.save, "
            "model.save_weights or a callback of Keras. Call sok_embed.save_model(model, "
            "'model.keras') on all workers, or sok_embed.checkpoint.Checkpoint(model)"
            ".save(directory), or use sok_embed.callbacks in fit; model.load_weights takes weights "
            "from a .keras file too."
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
        contents.save(store, self._prefix, contents.whole_contents(self._table))

    def read(self, store: Any) -> tf_ops.Export | None:
        """What the table is to be restored from: of several workers, the rows of this one.

        Returns:
            `None` for a table whose rows are in the storage.

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
        whole = contents.load(store, self._prefix, tf_ops.Export)
        own: tf_ops.Export = own_part(self._table, whole)
        return own

    def _warn_of_missing(self, store: Any, saved: Iterable[str]) -> None:
        rows = int(np.asarray(store[self._storage_entry])) if self._storage_entry in saved else 0
        if rows and not self._table.size():
            warnings.warn(
                f"Layer '{self._layer}': expected {rows} rows in {self._table.storage!r}, as the "
                "model was saved with. Received: none, so every key has the vector it starts from. "
                "Put the folder of that time there.",
                stacklevel=5,
            )
