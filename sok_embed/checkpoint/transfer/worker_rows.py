"""Hands rows of workers to one of them, by files in a folder that all of them share."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from sok_embed import tf_ops
from sok_embed.checkpoint.files.names import rows_name
from sok_embed.checkpoint.files.rows_file import (
    REMOVED,
    ROWS,
    Block,
    Rows,
    RowsReader,
    RowsWriter,
)
from sok_embed.checkpoint.files.rows_index import Head, row_bytes
from sok_embed.checkpoint.state.tables import LocatedTable, head_of, read_head, step_of
from sok_embed.checkpoint.transfer.writing import described
from sok_embed.communicators.agreement import Agreement, check_same, number_of_text
from sok_embed.files.place_of import place_of
from sok_embed.files.places import Place
from sok_embed.files.records import FileRecord
from sok_embed.kv import CorruptionError
from sok_embed.tables.base_table import Part
from sok_embed.tables.tensors import as_errors

# The bytes of the rows that are in memory twice while they are copied.
_PIECE_BYTES = 64 << 20


def agreed_tables(
    agreement: Agreement,
    verb: str,
    find: Callable[[], list[LocatedTable]],
    model: keras.Model,
    texts: Mapping[str, str],
) -> tuple[list[LocatedTable], int]:
    """Returns what `find` has found, and a number that worker 0 has drawn. Collective.

    All workers have tables of the same kinds, the same step of the model and the same texts, or
    there is an error on all of them. The verb says what they do, such as `"save"`.
    """

    def numbers_of(hosts: list[LocatedTable]) -> list[int]:
        tables = repr([host.description() for host in hosts])
        numbers = [number_of_text(each) for each in (tables, *texts.values())]
        return [step_of(model), *numbers, secrets.randbits(62)]

    hosts, told = agreement.gather_together(f"be ready to {verb}", find, numbers_of)
    steps, models, *others, (number, *_) = zip(*told, strict=True)
    check_same("step", steps, f"{verb.capitalize()} after the same step on all of them.")
    check_same("model", models, "Make the same model on all of them.", texts=True)
    for name, each in zip(texts, others, strict=True):
        check_same(name, each, "Give all of them the same one.", texts=True)
    return hosts, number


def write_file(
    folder: str,
    attempt: int,
    worker: int,
    workers: int,
    put: Callable[[RowsWriter], Sequence[dict[str, Any]]],
) -> FileRecord:
    """Writes the file of rows of this worker, which is removed on an error.

    The function `put` writes rows, and returns the entries of the index. Worker 0 has made the
    folder.

    Raises:
        FileNotFoundError: If the folder is missing.
    """
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"Expected the folder '{folder}', which worker 0 has made. Received: nothing there. "
            "Use a folder that all workers share."
        )
    with RowsWriter(folder, attempt, worker, workers) as writer:
        return writer.finish(put(writer))


def write_rows(
    folder: str, hosts: Sequence[LocatedTable], attempt: int, worker: int, workers: int
) -> FileRecord:
    """Writes all rows of this worker in memory into one file, which is removed on an error.

    It needs no capture, of which a table can have only one at a time, so a checkpoint may be
    written meanwhile. Rows that every worker has are written by worker 0.

    Raises:
        RuntimeError: If a table was changed meanwhile.
    """

    def put(writer: RowsWriter) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for host in hosts:
            for part in host.parts:
                number, rows = len(entries), 0
                head, admission = read_head(part.handle, part.table.dim)
                for piece in _pieces(part, head) if worker == 0 or not part.shared else ():
                    writer.put_rows(number, piece)
                    rows += len(piece.keys)
                entry, counts = described(host, part, head, admission)
                for kind, data in counts:
                    writer.put_bytes(number, kind, data)
                entries.append(entry | {"rows": rows, "size": rows})
        return entries

    return write_file(folder, attempt, worker, workers, put)


def _pieces(part: Part, head: Head) -> Iterator[Rows]:
    """Yields all rows in pieces; raises RuntimeError if the table is changed meanwhile."""
    table = part.table
    most = max(1, _PIECE_BYTES // row_bytes(table.dim, len(head.slot_start)))
    expected = None
    for begin in itertools.count(0, most):
        size, exported = as_errors(
            lambda begin=begin: tf_ops.export_piece(part.handle, table.dim, begin, most)
        )
        now = (int(size), head_of(exported))
        expected = expected or now
        if now != expected or now[1] != head:
            raise RuntimeError(
                f"Table '{table.name}': expected it to stay as it is while it is saved. "
                "Received: a change. Save between two steps, on the thread that trains."
            )
        yield Rows._make(exported._asdict()[field].numpy() for field in Rows._fields)
        if begin + most >= expected[0]:
            return


def records_of(numbers: Sequence[Sequence[int]], attempt: int) -> list[FileRecord]:
    """Returns the record of the file of each worker from its `numbers`."""
    return [
        FileRecord.of_numbers(rows_name(worker, len(numbers), attempt), each)
        for worker, each in enumerate(numbers)
    ]


class WorkerRows:
    """The rows of tables in the files of all workers.

    The hosts are in the order in which workers have written them.

    Attributes:
        readers: The reader of each file.
    """

    def __init__(
        self,
        folder: str | Place,
        records: Sequence[FileRecord],
        attempt: int,
        hosts: Sequence[LocatedTable] = (),
    ) -> None:
        place = place_of(folder)
        there = set(place.names())
        self.readers: list[RowsReader] = []
        for worker, record in enumerate(records):
            if record.name not in there:
                raise FileNotFoundError(
                    f"Expected '{place.file(record.name)}', which worker {worker} has written. "
                    "Received: nothing there. Use a folder that all workers share."
                )
            self.readers.append(RowsReader(place, record, attempt, worker, len(records)))
        parts = [(id(host.table), part.name) for host in hosts for part in host.parts]
        self._numbers = {part: number for number, part in enumerate(parts)}

    def number_of(self, part: Part) -> int:
        """Returns the number of a part in the files.

        Raises:
            ValueError: For a part of a table that is not among `hosts`.
        """
        number = self._numbers.get((id(part.table), part.name))
        if number is None:
            raise ValueError(
                f"Table '{part.table.name}': expected a table that the model reaches by "
                "attributes, whose rows all workers have written. Received: a table that Keras "
                "found elsewhere. Make its layer an attribute of the model or of one of its "
                "layers."
            )
        return number

    def entries(self, number: int) -> list[dict[str, Any]]:
        """Returns the entry of a part in the index of each file."""
        return [reader.tables[number] for reader in self.readers]

    def blocks(self, number: int) -> Iterator[tuple[int, Block, Rows | None]]:
        """Yields a worker, a block of a part in its file, and the rows in it, if it has rows."""
        for worker, reader in enumerate(self.readers):
            found, expected = 0, reader.tables[number]["rows"]
            for block in reader.blocks_of(number):
                rows = reader.rows_of(block) if block.kind == ROWS else None
                found += 0 if rows is None else block.number
                yield worker, block, rows
            if found != expected:
                raise CorruptionError(
                    f"Expected {expected} rows of table '{reader.tables[number]['path']}' in "
                    f"'{reader.path}'. Received: {found}. Save again."
                )

    def rows(self, number: int) -> Iterator[Rows]:
        """Yields the rows of a part."""
        return (rows for _, _, rows in self.blocks(number) if rows is not None)

    def removed(self, number: int) -> npt.NDArray[np.int64]:
        """Returns the keys of a part that have no row any more."""
        blocks = (block for _, block, _ in self.blocks(number) if block.kind == REMOVED)
        return np.concatenate([np.empty(0, np.int64), *map(RowsReader.removed_in, blocks)])
