"""Rows of tables in a dump of a storage, each a group; its layout is in the file formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.tools.conversion.tables import Moving, head_of_group, slots_of
from sok_embed.checkpoint.tools.saved import TableHead
from sok_embed.kv import GROUPS

_UINT64 = 2**64


def groups_of(heads: Sequence[TableHead], group: int | None) -> list[int]:
    """Returns a group for each table: the groups from which they come, or 0, 1, 2 and so on."""
    if group is not None:
        if len(heads) != 1:
            raise ValueError(
                f"Expected one table for a group. Received: {len(heads)} tables. Name one of them."
            )
        return [group]
    if len(heads) > GROUPS:
        raise ValueError(
            f"Expected at most {GROUPS} tables. Received: {len(heads)} tables. Name the tables to "
            "convert."
        )
    known = [head.group for head in heads]
    given = [number for number in known if number is not None]
    return given if len(set(given)) == len(heads) else list(range(len(heads)))


def write_dump(path: str, tables: Sequence[Moving], groups: Sequence[int]) -> int:
    """Writes tables as groups, and forces them to disk. Returns the number of rows."""
    for table in tables:
        if table.head.step_clock >= 0:
            raise ValueError(
                f"Table '{table.head.label}': expected times of updates in seconds, as a storage "
                "has them. Received: times in steps, which its eviction counts. Convert it to "
                "Parquet, .npz or into a checkpoint."
            )
    writer = _core.DumpWriter(path)
    for group, table in sorted(zip(groups, tables, strict=True), key=lambda each: each[0]):
        head = table.head
        writer.begin_group(group, head.dim, head.slot_floats, json.dumps(_meta(head)))
        for rows in table.pieces():
            writer.put_rows(*rows.for_core())
    writer.finish()
    return sum(table.head.rows for table in tables)


def _meta(head: TableHead) -> dict[str, Any]:
    """Returns the description of a group as a storage writes it; storages ignore the name."""
    initializer = {"kind": "", "a": 0.0, "b": 0.0, "seed": 0, **head.initializer}
    return {
        "format": 1,
        "dim": head.dim,
        "initializer": {**initializer, "seed": initializer["seed"] % _UINT64},
        "rule": head.rule,
        "slots": slots_of(head),
        "steps": head.steps,
        "layout": 0,
        "rows": head.rows,
        "counted_at": 0,
        "ttl": head.ttl,
        "name": head.name,
    }


def dump_tables(path: str) -> list[Moving]:
    """Returns the groups of a dump, all of which is checked."""
    reader = _core.DumpReader(path)
    reader.verify()
    return [
        Moving(head_of_group(path, *group), partial(_rows, reader, index))
        for index, group in enumerate(reader.groups())
    ]


def rows_of_group(path: str, group: int) -> Iterator[Rows]:
    """Yields the rows of a group of a dump, which are checked when they are read."""
    reader = _core.DumpReader(path)
    return _rows(reader, [number for number, *_ in reader.groups()].index(group))


def _rows(reader: _core.DumpReader, index: int) -> Iterator[Rows]:
    _, dim, slot_floats, count, _ = reader.groups()[index]
    begin = 0
    while begin < count:
        keys, embeddings, slots, update_nums, update_times = reader.read(index, begin)
        n = len(keys)
        yield Rows(
            keys.view(np.int64),
            embeddings.reshape(n, dim),
            slots.reshape(n, slot_floats),
            update_nums,
            update_times,
        )
        begin += n
