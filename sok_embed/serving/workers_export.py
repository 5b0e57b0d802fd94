"""Exports by several workers: each writes its rows, and worker 0 makes the model of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed.checkpoint.files.rows_file import Rows, RowsWriter
from sok_embed.checkpoint.files.rows_index import Head, entry_of
from sok_embed.checkpoint.state.tables import LocatedTable, find
from sok_embed.checkpoint.transfer.worker_rows import (
    WorkerRows,
    agreed_tables,
    records_of,
    write_file,
)
from sok_embed.communicators.agreement import Agreement
from sok_embed.files.records import FileRecord
from sok_embed.files.scratch import locked_folder, remove_leftovers, work_folder
from sok_embed.serving.delta_files import Batches
from sok_embed.serving.held_rows import Elsewhere, HeldRows, Piece
from sok_embed.serving.moments import Moment
from sok_embed.serving.versions import made_root, root_of
from sok_embed.tables.base_table import Part

_NAME = "export"  # begins the name of the folder in which workers put their rows


class PartWriter:
    """Writes what one of several workers has of an export or a delta, as `DeltaWriter` writes all.

    Rows have no slots.

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


class WrittenTables(WorkerRows):
    """The rows that all workers have written for an export."""

    def size(self) -> int:
        """Returns the number of rows of all tables that belong to one key."""
        return sum(
            self._count(number) for (_, name), number in self._numbers.items() if name != "static"
        )

    def held(
        self, part: Part, min_count: int = 0, taken: Callable[[int], None] | None = None
    ) -> HeldRows:
        """Returns the rows of a part; the arguments are those of `HeldRows`."""
        number = self.number_of(part)
        elsewhere = Elsewhere(self._count(number), partial(self._pieces, number))
        return HeldRows(part, min_count, taken, elsewhere)

    def _count(self, number: int) -> int:
        return sum(entry["size"] for entry in self.entries(number))

    def _pieces(self, number: int) -> Iterator[Piece]:
        for rows in self.rows(number):
            # No other rows were written.
            yield rows.keys, rows.embeddings, np.ones(len(rows.keys), np.bool_)


def export_of_workers(
    agreement: Agreement,
    model: keras.Model,
    path: str | os.PathLike[str],
    options: str,
    min_count: int,
    write: Callable[[WrittenTables, Moment], str],
) -> str:
    """Exports the rows of all workers. Collective: an error of one worker is an error of all.

    The model is at the same step on all workers, which share the folder of all versions. `options`
    is a text of the other arguments, which must be equal on all workers. Worker 0 calls `write`,
    which writes the model with these rows, as it is at a moment. Returns the path of the version.
    """
    root = os.fsdecode(path)
    texts = {"path": os.path.realpath(root), "arguments": options}
    hosts, number = agreed_tables(
        agreement, "export", lambda: _tables_of(model, root), model, texts
    )
    parts = [part for host in hosts for part in host.parts]
    work = work_folder(root, _NAME, number)
    with contextlib.ExitStack() as stack:

        def make_folder() -> None:
            if agreement.rank:
                return
            made_root(root)
            remove_leftovers(root, _NAME)
            folder, lock = locked_folder(root, _NAME, number)
            stack.callback(lock.close)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)

        agreement.together("make a folder for their rows", make_folder)
        moment = agreement.together("look at the model", lambda: Moment(model))

        def put(writer: RowsWriter) -> list[dict[str, Any]]:
            own = PartWriter(writer, parts)
            for i, part in enumerate(parts):
                if agreement.rank and part.shared:
                    continue  # worker 0 has the same rows
                held = HeldRows(part, 0 if part.name == "static" else min_count)
                own.put_rows(i, held.batches())
                own.entries[i]["size"] = held.count  # with the rows that are left out
            moment.check()
            return own.entries

        _, written = agreement.gather_together(
            "write their rows",
            lambda: write_file(work, number, agreement.rank, agreement.size, put),
            FileRecord.numbers,
        )

        def write_all() -> str:
            rows = WrittenTables(work, records_of(written, number), number, hosts)
            return write(rows, moment)

        return written_by_first(agreement, root, write_all)


def written_by_first(agreement: Agreement, root: str, write: Callable[[], str]) -> str:
    """Makes worker 0 write a version, while the others wait. Returns its path on all workers."""
    version = agreement.first_alone("write the export", write)
    number = agreement.gather(int(os.path.basename(version or "0")), "number of the export")[0]
    return os.path.join(root, str(number))


def _tables_of(model: keras.Model, root: str) -> list[LocatedTable]:
    root_of(root)
    return find(tf.train.Checkpoint(model=model)).tables
