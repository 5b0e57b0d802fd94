"""The rows of a table in a Keras file: their entries, and checks of writing and reading."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed import communicators, tf_ops
from sok_embed.checkpoint.transfer.reading import rows_of_copy
from sok_embed.checkpoint.transfer.worker_rows import own_part
from sok_embed.keras_bridge import callers
from sok_embed.kv.open_storages import is_copy
from sok_embed.tables import contents, storage_copies
from sok_embed.tables.table import Table


def check_saves_all_rows(layer: str) -> None:
    """Raises ValueError if a worker would write only its own rows into a file for all workers."""
    size = communicators.size()
    if size > 1 and not contents.are_of_all_workers():
        raise ValueError(
            f"Layer '{layer}' is sharded over {size} workers, and Keras writes the rows of this "
            "one alone. Expected a save of the rows of all workers. Received: model.save, "
            "model.save_weights or a callback of Keras. Call sok_embed.save_model(model, "
            "'model.keras') on all workers, or "
            "sok_embed.checkpoint.Checkpoint(model).save(directory), or use sok_embed.callbacks "
            "in fit; model.load_weights takes weights from a .keras file too."
        )


@dataclass
class SavedRows:
    """The entries of one table whose rows are in memory.

    Args:
        expected: The part of error messages that says what a file must have; `{entries}` stands for
            the entries.
        remedy: A sentence at the end of that message.
    """

    layer: str
    table: Any
    kind: Any
    prefix: str
    expected: str
    remedy: str = ""

    @property
    def names(self) -> set[str]:
        """The names of all entries that a file may have for the table."""
        return set(contents.entries(self.kind, self.prefix))

    def has(self, entry: str) -> bool:
        """Returns whether an entry of a file belongs to the table."""
        return entry in self.names

    def save(self, store: Any) -> None:
        """Adds the rows."""
        check_saves_all_rows(self.layer)
        contents.save(store, self.prefix, contents.whole_contents(self.table))

    def read(self, store: Any) -> Callable[[], None]:
        """Reads and checks the entries from which the table is restored.

        Returns:
            A function that puts the rows of this worker into the table.

        Raises:
            ValueError: For a file without the entries that the table needs.
        """
        what, saved = f"Layer '{self.layer}'", set(store.keys())
        contents.check_whole(what, saved, self.kind, [self.prefix])
        entries = contents.entries(self.kind, self.prefix)
        if not saved.issuperset(entries):
            expected = self.expected.format(entries=", ".join(entries))
            there = ", ".join(sorted(saved)) or "no entries"
            raise ValueError(f"{what}: expected {expected}. Received: {there}.{self.remedy}")
        whole = contents.load(store, self.prefix, self.kind)
        return functools.partial(self.table.restore, own_part(self.table, whole))


class StorableRows(SavedRows):
    """The entries of one table whose rows may lie in a storage.

    Args:
        storage_entry: The name of the entry with the number of rows in a storage. Two others begin
            with it: the steps of the table, and the copy of the storage beside the file.
    """

    table: Table

    def __init__(self, layer: str, table: Table, prefix: str, storage_entry: str) -> None:
        super().__init__(
            layer,
            table,
            tf_ops.Export,
            prefix,
            "rows saved by a table layer, with the entries {entries}",
            " To take the weights of a static embedding, use "
            "`layer.table.assign(range(len(weights)), weights)`.",
        )
        self._storage_entry = storage_entry
        self._steps_entry = f"{storage_entry}_steps"
        self._copy_entry = f"{storage_entry}_copy"

    @property
    def names(self) -> set[str]:
        """The names of all entries that a file may have for the table."""
        return super().names | {self._storage_entry, self._steps_entry, self._copy_entry}

    def save(self, store: Any) -> None:
        """Adds the rows; for rows in a storage, which stay there, adds their number."""
        storage = self.table.storage
        if storage is None:
            super().save(store)
            return
        store[self._storage_entry] = np.int64(self.table.size())
        store[self._steps_entry] = np.int64(self.table.step_count())
        copy = storage_copies.name_of(storage)
        if copy is None and is_copy(storage):
            raise ValueError(
                f"Layer '{self.layer}': expected sok_embed.save_model, which brings the rows "
                f"along. Received: a save of Keras, whose file would have them in {storage!r}, "
                "which goes with the file that it lies beside."
            )
        if copy is not None:
            numbers = [int(copy.number, 16), int(copy.id, 16), self.table.spec.group]
            store[self._copy_entry] = np.array(numbers, np.uint64)

    def read(self, store: Any) -> Callable[[], None]:
        """Reads and checks the entries from which the table is restored.

        Returns:
            A function that puts the rows of this worker into the table. It does nothing for
            a table whose rows are in its storage.

        Raises:
            ValueError: For a file without the entries that the table needs.
            FileNotFoundError: If the rows are not beside the file that refers to them.
        """
        saved = self.names.intersection(store.keys())
        has_no_rows = saved.isdisjoint(super().names)
        storage = self.table.storage
        if self._copy_entry in saved:
            return self._rows_beside_file(np.asarray(store[self._copy_entry]))
        if storage is not None and has_no_rows:
            self._warn_of_missing(store, saved)
            if self._steps_entry in saved:
                steps = int(np.asarray(store[self._steps_entry]))
                contents.warn_of_later_steps(self.table, f"Layer '{self.layer}'", steps)
            return _do_nothing
        what = f"Layer '{self.layer}'"
        if storage is not None and callers.loading_model():
            raise ValueError(
                f"{what}: expected no rows in a file whose model has its rows in {storage!r}. "
                "Received: a file with rows, which would replace the rows of the storage. To put "
                "them there, make the model by its class and use model.load_weights(file)."
            )
        if self._storage_entry in saved and has_no_rows:
            raise ValueError(
                f"{what}: expected rows in the file, for a layer without a storage. "
                "Received: a file of a layer whose rows lie in a storage, and are not in the file. "
                "Make the layer with storage= and group= as it was saved; or bring the rows over, "
                "with `layer.table.export(slots=True)` there and `layer.table.restore` here."
            )
        return super().read(store)

    def _rows_beside_file(self, numbers: npt.NDArray[Any]) -> Callable[[], None]:
        """Returns a function that puts the rows of a copy beside the file into the table."""
        what = f"Layer '{self.layer}'"
        if numbers.shape != (3,):
            raise ValueError(
                f"{what}: expected three numbers in the entry '{self._copy_entry}'. Received: an "
                f"array of shape {numbers.shape}. The file is damaged, or was written by another "
                "program."
            )
        number, id, group = map(int, numbers)
        name = storage_copies.CopyName(f"{number:016x}", f"{id:016x}")
        copy = storage_copies.open_beside_file(name)
        if self.table.storage is copy:
            return _do_nothing  # the whole model was loaded, and reads the copy
        if self.table.storage is not None and callers.loading_model():
            raise ValueError(
                f"{what}: expected a model whose rows are read where they lie beside its file, in "
                f"{copy!r}. Received: a model over {self.table.storage!r}, whose rows they would "
                "replace. To put them there, make the model by its class and use "
                "model.load_weights(file)."
            )
        return rows_of_copy(self.table, copy, group)

    def _warn_of_missing(self, store: Any, saved: Iterable[str]) -> None:
        rows = int(np.asarray(store[self._storage_entry])) if self._storage_entry in saved else 0
        if rows and not self.table.size():
            warnings.warn(
                f"Layer '{self.layer}': expected {rows} rows in {self.table.storage!r}, as the "
                "model was saved with. Received: no rows, so every key has the vector it starts "
                "from. Put the folder from the time of the save there.",
                stacklevel=5,
            )


def _do_nothing() -> None:
    """Leaves the rows where they are."""
