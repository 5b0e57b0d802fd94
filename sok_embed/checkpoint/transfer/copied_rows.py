"""Moves rows from the copy of a storage beside a model's file into a table."""

from __future__ import annotations

import os
from collections.abc import Iterator

import tensorflow as tf

from sok_embed import kv, tf_ops
from sok_embed.checkpoint.files.dump_rows import rows_of_dump
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.files.rows_index import Head
from sok_embed.checkpoint.state.tables import contents_of, read_head
from sok_embed.files.scratch import ScratchFolder
from sok_embed.tables.row_dtypes import FLOAT32
from sok_embed.tables.table import Table
from sok_embed.tables.tensors import as_errors


class CopiedRows:
    """The rows of one group of a storage, which replace those of a table.

    Args:
        table: The table, in memory or in another storage.
        copy: The storage with the rows.
        group: The group of the rows.
    """

    def __init__(self, table: Table, copy: kv.Storage, group: int) -> None:
        self._table = table
        (self._part,) = table.parts
        self._copy = copy
        self._group = group
        self._types = (FLOAT32, FLOAT32)  # of its rows and slots; check looks
        # Beside the table's storage, where there is room for its rows.
        own = self._table.storage
        parent = None if own is None else os.path.dirname(os.path.abspath(own.path))
        self._scratch = ScratchFolder("sok-embed-rows", parent)
        self._dump = os.path.join(self._scratch.path, "dump")

    def check(self) -> None:
        """Raises the errors that `restore` would raise, and changes nothing.

        Raises:
            ValueError: For rows that the table cannot take, and for a storage that is read-only.
            CorruptionError: For damaged files.
        """
        table = self._table
        there = {group.number: group for group in self._copy.groups()}
        if self._group not in there:
            raise ValueError(
                f"Table '{table.name}': expected its rows in group {self._group} of "
                f"{self._copy!r}. Received: the groups {sorted(there)}. Save the model again."
            )
        saved = there[self._group]
        self._types = saved.row_dtype, saved.slot_dtype
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
        head, admission = self._head()
        empty = contents_of(head, table.dim, admission=admission)
        table.check_restore(empty)
        self._copy.dump(self._dump, group=self._group)
        count = 0
        for rows in self._rows():
            count += len(rows.keys)
            piece = contents_of(head, table.dim, rows)
            as_errors(lambda piece=piece: tf_ops.check_restore(self._part.handle, piece))
        limit = self._part.max_rows
        if limit and count > limit:
            raise ValueError(
                f"Table '{table.name}': expected at most max_rows={limit} rows in the file. "
                f"Received: {count}. Raise max_rows."
            )

    def restore(self) -> None:
        """Replaces the rows of the table; `check` has been called."""
        table = self._table
        head, admission = self._head()
        table.restore(contents_of(head, table.dim, admission=admission))
        for rows in self._rows():
            piece = contents_of(head, table.dim, rows)
            as_errors(lambda piece=piece: tf_ops.add_rows(self._part.handle, piece))
        if self._table.storage is not None:
            self._table.storage.flush()
        self._scratch.end()

    def _head(self) -> tuple[Head, bytes]:
        """Returns the head of the group, and the counts of its admission."""
        table = self._table
        attributes = {
            **table._attributes,
            "storage": os.fsencode(self._copy.path),
            "storage_id": self._copy.id,
            "group": self._group,
            "step_clock": False,
            "row_dtype": self._types[0],
            "slot_dtype": self._types[1],
        }
        with tf.init_scope():
            handle = as_errors(lambda: tf_ops.anonymous_table(table.name, table.dim, **attributes))
            return read_head(handle, table.dim)

    def _rows(self) -> Iterator[Rows]:
        """Yields the rows of this worker, from the dump that `check` has made."""
        for _, rows in rows_of_dump(self._dump):
            yield rows.where(self._part.mine(rows.keys))
