"""Rows of tables that several workers have written into a folder that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed.checkpoint.files.rows_file import REMOVED, Rows, RowsReader, RowsWriter
from sok_embed.checkpoint.files.rows_index import Head, entry_of
from sok_embed.checkpoint.transfer.pieces import blocks_of_all
from sok_embed.serving.delta_files import Batches
from sok_embed.serving.held_rows import Elsewhere, HeldRows, Piece
from sok_embed.tables.base_table import Part
from sok_embed.tables.row_batches import Batch


class PartWriter:
    """Writes what one of several workers has of an export or a delta, as `DeltaWriter` writes all.

    Args:
        writer: The file of the worker, in which rows have no slots.
        parts: The parts of all tables, on this worker.

    Attributes:
        entries: The entry of each part for the index of the file.
    """

    def __init__(self, writer: RowsWriter, parts: Sequence[Part]) -> None:
        self._writer = writer
        self.entries: list[dict[str, Any]] = [
            entry_of(part.table.name, "rows", part.table.dim, Head()) | {"whole": False}
            for part in parts
        ]

    def put_rows(self, table: int, batches: Batches) -> None:
        """Writes rows of a table."""
        for keys, vectors in batches:
            counts = np.zeros(len(keys), np.int64)
            slots = np.empty([len(keys), 0], np.float32)
            self._writer.put_rows(table, Rows(keys.view(np.int64), vectors, slots, counts, counts))
            self.entries[table]["rows"] += len(keys)

    def put_gone(self, table: int, keys: npt.NDArray[np.uint64]) -> None:
        """Writes keys of a table that have no row any more."""
        self._writer.put_removed(table, keys.view(np.int64))
        self.entries[table]["removed"] = len(keys)


def batches_of(readers: Sequence[RowsReader], table: int) -> Iterator[Batch]:
    """Yields the rows of a table that all workers have written."""
    for _, _, rows in blocks_of_all(readers, table):
        if rows is not None:
            yield rows.keys, rows.embeddings


def gone_of(readers: Sequence[RowsReader], table: int) -> npt.NDArray[np.uint64]:
    """Returns the keys of a table that have no row any more, of all workers."""
    blocks = (block for _, block, _ in blocks_of_all(readers, table) if block.kind == REMOVED)
    keys = [RowsReader.removed_in(block) for block in blocks]
    return np.concatenate([np.empty(0, np.int64), *keys]).view(np.uint64)


class WrittenTables:
    """The tables of a model whose rows all workers have written.

    Args:
        readers: The files of all workers, as `put_own_rows` has written them.
        parts: The parts of all tables, on this worker, in the order of all workers.
    """

    def __init__(self, readers: Sequence[RowsReader], parts: Sequence[Part]) -> None:
        self._readers = readers
        self._numbers = {(id(part.table), part.name): i for i, part in enumerate(parts)}
        self._counts = [
            sum(reader.tables[i]["size"] for reader in readers) for i in range(len(parts))
        ]
        self._rows = sum(
            count for part, count in zip(parts, self._counts, strict=True) if part.name != "static"
        )

    def size(self) -> int:
        """Returns the number of rows of all tables that belong to one key."""
        return self._rows

    def rows(
        self, part: Part, min_count: int = 0, taken: Callable[[int], None] | None = None
    ) -> HeldRows:
        """Returns the rows of a part; the arguments are those of `HeldRows`."""
        number = self._numbers.get((id(part.table), part.name))
        if number is None:
            raise ValueError(
                f"Table '{part.table.name}': expected a table that the model reaches by "
                "attributes, whose rows all workers have written. Received: a table that Keras "
                "found elsewhere. Make its layer an attribute of the model or of one of its "
                "layers."
            )
        elsewhere = Elsewhere(self._counts[number], partial(self._pieces, number))
        return HeldRows(part, min_count, taken, elsewhere)

    def _pieces(self, number: int) -> Iterator[Piece]:
        for keys, vectors in batches_of(self._readers, number):
            yield keys, vectors, np.ones(len(keys), np.bool_)  # no other rows were written


def put_own_rows(
    writer: RowsWriter, parts: Sequence[Part], worker: int, min_count: int
) -> list[dict[str, Any]]:
    """Writes the rows that a worker has of each part of tables.

    Args:
        writer: The file of the worker.
        parts: The parts of all tables, on this worker.
        worker: The number of this worker.
        min_count: The least number of updates; other rows are left out, except static rows.

    Returns:
        The entries for the index of the file. Their size is the number of rows of a part on this
        worker, including those that were left out.
    """
    own = PartWriter(writer, parts)
    for number, part in enumerate(parts):
        if worker and part.shared:
            continue  # worker 0 has the same rows
        held = HeldRows(part, 0 if part.name == "static" else min_count)
        own.put_rows(number, held.batches())
        own.entries[number]["size"] = held.count
    return own.entries
