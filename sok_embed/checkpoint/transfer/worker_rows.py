"""Hands rows of workers to one of them, by files that all share, and whole tables to all."""

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
from sok_embed.binding import _core
from sok_embed.checkpoint.files.names import rows_name
from sok_embed.checkpoint.files.rows_file import (
    ADMISSION,
    REMOVED,
    ROWS,
    SKETCH,
    Block,
    Rows,
    RowsReader,
    RowsWriter,
)
from sok_embed.checkpoint.files.rows_index import Head, merged_head, row_bytes
from sok_embed.checkpoint.state.tables import (
    LocatedTable,
    contents_of,
    head_of,
    read_head,
    step_of,
)
from sok_embed.checkpoint.tools.newest_first import CountedBytes
from sok_embed.checkpoint.transfer.writing import described
from sok_embed.communicators.agreement import Agreement, check_same, number_of_text
from sok_embed.files.place_of import place_of
from sok_embed.files.places import Place
from sok_embed.files.records import FileRecord
from sok_embed.kv import CorruptionError
from sok_embed.tables.base_table import BaseTable, Part
from sok_embed.tables.counts import merge_sketches
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
        check_same(name, each, f"Give all of them the same {name}.", texts=True)
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
        """Returns the number of a part in the files; raises for a table that is not in them."""
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


def whole_contents(rows: WorkerRows, table: BaseTable) -> Any:
    """Returns the contents of a table in a process that has the rows of all workers.

    They are an `Export` or an `AdaptiveExport`, without a second copy in memory.
    """
    parts = table.parts
    exports, others = zip(*(_whole_part(rows, part) for part in parts), strict=True)
    sketch = parts[0].sketch
    if sketch is None:
        return table._joined(exports)
    place = sketch._replace(owners=1, owner=0)
    cells = merge_sketches(others[0], len(rows.readers), place)
    counters = [entry["counters"] for entry in rows.entries(rows.number_of(parts[0]))]
    return table._joined(exports, cells, [counters[0][0], *np.sum(counters, 0)[1:]])


def _whole_part(rows: WorkerRows, part: Part) -> tuple[tf_ops.Export, dict[int, bytes]]:
    """Returns the rows of a part, and the counts of the sketch of each worker."""
    number = rows.number_of(part)
    entries = rows.entries(number)
    head = merged_head(part.table.name, entries)
    empty = contents_of(head, part.table.dim)
    total = sum(entry["rows"] for entry in entries)
    columns = {
        name: np.empty((total, *getattr(empty, name).shape[1:]), getattr(empty, name).dtype)
        for name in Rows._fields
    }
    filled = 0
    counts = [CountedBytes() for _ in entries]
    for worker, block, found in rows.blocks(number):
        if found is None:
            counts[worker].add(block)
            continue
        found = found.with_slots(head.slot_start)
        for name, column in columns.items():
            column[filled : filled + block.number] = getattr(found, name)
        filled += block.number
    admissions = [counted.of(number, ADMISSION) or b"" for counted in counts]
    admission = _core.merge_admissions(admissions, lambda keys: np.ones(keys.shape, np.bool_))
    whole = empty._replace(
        **columns,
        rule=head.rule.encode(),  # as `Table.export` has it
        admission=np.frombuffer(admission, np.uint8),
    )
    sketches = enumerate(counted.of(number, SKETCH) for counted in counts)
    return whole, {worker: data for worker, data in sketches if data is not None}


def own_part(table: BaseTable, whole: Any) -> Any:
    """Returns the part of a whole table that belongs to a worker.

    Returns:
        An object of the same kind with the worker's rows and the counts of their keys. Worker 0
        gets the figures of an adaptive table, so that their sum stays the same.
    """
    if table.owners == 1:
        return whole
    parts = table.parts
    exports = [_own_rows(part, each) for part, each in zip(parts, whole.parts, strict=True)]
    if parts[0].sketch is None:
        return table._joined(exports)
    cells = merge_sketches({0: np.asarray(whole.cells).tobytes()}, 1, parts[0].sketch)
    counters = np.array(whole.counters, np.int64)
    if table.owner:
        counters[1:] = 0  # behind the version
    return table._joined(exports, cells, counters)


def _own_rows(part: Part, whole: tf_ops.Export) -> tf_ops.Export:
    columns = {name: np.asarray(getattr(whole, name)) for name in Rows._fields}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or columns["keys"].ndim != 1:
        raise ValueError(
            f"Table '{part.table.name}': expected as many keys as rows, slots and counts of "
            f"updates. Received: {lengths}. The file is damaged, or was written by another program."
        )
    mine = part.mine(columns["keys"])
    admission = np.asarray(whole.admission).tobytes()
    return whole._replace(
        **{name: column[mine] for name, column in columns.items()},
        admission=np.frombuffer(_core.merge_admissions([admission], part.mine), np.uint8),
    )
