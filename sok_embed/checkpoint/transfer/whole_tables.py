"""Joins tables of several workers in one process, and divides a whole table among workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sok_embed import tf_ops
from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import ADMISSION, SKETCH, Rows
from sok_embed.checkpoint.files.rows_index import merged_head
from sok_embed.checkpoint.state.tables import LocatedTable, contents_of
from sok_embed.checkpoint.tools.newest_first import CountedBytes
from sok_embed.checkpoint.transfer.pieces import blocks_of_all, readers_of
from sok_embed.files.records import FileRecord
from sok_embed.tables.base_table import BaseTable, Part
from sok_embed.tables.counts import merge_sketches

_COLUMNS = Rows._fields


class WholeTables:
    """The contents of the tables of all workers, read from the files that they have written.

    Args:
        folder: The folder of the files.
        records: The record of the file of each worker, by its number.
        attempt: The number of the save.
        hosts: The tables, in the order in which workers have written them.
    """

    def __init__(
        self,
        folder: str,
        records: Sequence[FileRecord],
        attempt: int,
        hosts: Sequence[LocatedTable],
    ) -> None:
        self._readers = readers_of(folder, records, attempt)
        self._hosts: dict[int, tuple[LocatedTable, int]] = {}
        number = 0
        for host in hosts:
            self._hosts[id(host.table)] = (host, number)
            number += len(host.parts)

    def contents(self, table: BaseTable) -> Any:
        """Returns the contents of a process that has all rows: an `Export` or an `AdaptiveExport`.

        One table at a time is in memory, without a copy.

        Raises:
            ValueError: For a table that is not among `hosts`.
            CorruptionError: For a damaged file.
        """
        if id(table) not in self._hosts:
            raise ValueError(
                f"Table '{table.name}': expected a table that the model reaches by attributes, "
                "whose rows all workers have written. Received: a table that Keras found "
                "elsewhere. Make its layer an attribute of the model or of one of its layers."
            )
        host, number = self._hosts[id(table)]
        exports, others = [], []
        for i, part in enumerate(host.parts):
            export, other = self._part(part, number + i)
            exports.append(export)
            others.append(other)
        sketch = host.parts[0].sketch
        if sketch is None:
            return table._joined(exports)
        place = sketch._replace(owners=1, owner=0)
        cells = merge_sketches(others[0], len(self._readers), place)
        counters = [reader.tables[number]["counters"] for reader in self._readers]
        return table._joined(exports, cells, [counters[0][0], *np.sum(counters, 0)[1:]])

    def _part(self, part: Part, number: int) -> tuple[tf_ops.Export, dict[int, bytes]]:
        """Returns the rows of a part, and the counts of the sketch of each worker."""
        entries = [reader.tables[number] for reader in self._readers]
        head = merged_head(part.table.name, entries)
        empty = contents_of(head, part.table.dim)
        total = sum(entry["rows"] for entry in entries)
        columns = {
            name: np.empty((total, *value.shape[1:]), value.dtype)
            for name, value in empty._asdict().items()
            if name in _COLUMNS
        }
        filled = 0
        counts = [CountedBytes() for _ in self._readers]
        for worker, block, rows in blocks_of_all(self._readers, number):
            if rows is None:
                counts[worker].add(block)
                continue
            rows = rows.with_slots(head.slot_start)
            for name, column in columns.items():
                column[filled : filled + block.number] = getattr(rows, name)
            filled += block.number
        admissions = [counted.of(number, ADMISSION) or b"" for counted in counts]
        admission = _core.merge_admissions(admissions, lambda keys: np.ones(keys.shape, np.bool_))
        sketches = {
            worker: data
            for worker, counted in enumerate(counts)
            if (data := counted.of(number, SKETCH)) is not None
        }
        whole = empty._replace(
            **columns,
            rule=head.rule.encode(),  # as `Table.export` has it
            admission=np.frombuffer(admission, np.uint8),
        )
        return whole, sketches


def own_part(table: BaseTable, whole: Any) -> Any:
    """Returns the part of a whole table that belongs to a worker.

    Args:
        table: The table of the worker.
        whole: An `Export`, or an `AdaptiveExport`, of NumPy arrays.

    Returns:
        An object of the same kind with the worker's rows and the counts of their keys. Worker 0
        gets the figures of an adaptive table, so that their sum stays the same.

    Raises:
        ValueError: For columns of different lengths.
        CorruptionError: For damaged counts.
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
    columns = {name: np.asarray(getattr(whole, name)) for name in _COLUMNS}
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
