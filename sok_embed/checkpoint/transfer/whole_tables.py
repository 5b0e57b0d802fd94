"""Joins tables of several workers in one process, and divides a whole table among workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sok_embed import tf_ops
from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import ADMISSION, SKETCH, Rows
from sok_embed.checkpoint.files.rows_index import merged_head
from sok_embed.checkpoint.state.tables import contents_of
from sok_embed.checkpoint.tools.newest_first import CountedBytes
from sok_embed.checkpoint.transfer.worker_rows import WorkerRows
from sok_embed.tables.base_table import BaseTable, Part
from sok_embed.tables.counts import merge_sketches


def whole_contents(rows: WorkerRows, table: BaseTable) -> Any:
    """Returns the contents of a table in a process that has the rows of all workers.

    They are an `Export` or an `AdaptiveExport`, without a second copy in memory.

    Raises:
        ValueError: For a table that workers have not written.
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
