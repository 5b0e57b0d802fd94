"""Moves rows from the copy of a storage beside a model's file into a table."""

from __future__ import annotations

import os

import tensorflow as tf

from sok_embed import kv, tf_ops
from sok_embed.checkpoint.files.rows_index import Head
from sok_embed.checkpoint.state.tables import contents_of, read_head
from sok_embed.checkpoint.tools.conversion.dump import rows_of_group
from sok_embed.checkpoint.transfer.reading import PartReader
from sok_embed.files.scratch import ScratchFolder
from sok_embed.tables.table import Table
from sok_embed.tables.tensors import as_errors


class CopiedRows:
    """The rows of one group of a storage, which replace those of a table."""

    def __init__(self, table: Table, copy: kv.Storage, group: int) -> None:
        self._table = table
        (self._part,) = table.parts
        self._copy = copy
        self._group = group
        # Beside the table's storage, where there is room for its rows.
        own = self._table.storage
        parent = None if own is None else os.path.dirname(os.path.abspath(own.path))
        self._scratch = ScratchFolder("sok-embed-rows", parent)
        self._dump = os.path.join(self._scratch.path, "dump")

    def check(self) -> None:
        """Raises the errors that `restore` would raise, and changes nothing."""
        table = self._table
        there = {group.number: group for group in self._copy.groups()}
        if self._group not in there:
            raise ValueError(
                f"Table '{table.name}': expected its rows in group {self._group} of "
                f"{self._copy!r}. Received: the groups {sorted(there)}. Save the model again."
            )
        saved = there[self._group]
        dim = saved.dimension
        if dim != table.dim:
            raise ValueError(
                f"Table '{table.name}': expected rows of {table.dim} numbers. Received: rows of "
                f"{dim}, in {self._copy!r}. Make the layer as it was saved."
            )
        own = self._table.storage
        if own is not None and own.read_only:
            raise ValueError(
                f"Table '{table.name}': expected a storage that may be written, to replace its "
                f"rows by the rows of the file. Received: {own!r}. Open it without read_only=True."
            )
        self._head, self._admission = self._read_head(saved.row_dtype, saved.slot_dtype)
        table.check_restore(contents_of(self._head, table.dim, admission=self._admission))
        self._copy.dump(self._dump, group=self._group)
        own_rows = PartReader(self._part, self._head, "the file")
        for rows in rows_of_group(self._dump, self._group):
            own_rows.check(rows)

    def restore(self) -> None:
        """Replaces the rows of the table; `check` has been called."""
        table = self._table
        table.restore(contents_of(self._head, table.dim, admission=self._admission))
        own_rows = PartReader(self._part, self._head, "the file")
        for rows in rows_of_group(self._dump, self._group):
            own_rows.add(rows)
        if table.storage is not None:
            table.storage.flush()
        self._scratch.end()

    def _read_head(self, row_dtype: str, slot_dtype: str) -> tuple[Head, bytes]:
        """Returns the head of the group, and the counts of its admission."""
        table = self._table
        attributes = {
            **table.spec.attributes(),
            "storage": self._copy.path,
            "storage_id": self._copy.id,
            "group": self._group,
            "step_clock": False,
            "row_dtype": row_dtype,
            "slot_dtype": slot_dtype,
        }
        with tf.init_scope():
            handle = as_errors(lambda: tf_ops.anonymous_table(table.name, table.dim, **attributes))
            return read_head(handle, table.dim)
