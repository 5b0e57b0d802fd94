"""Rows of tables in a dump of a storage, each a group; its layout is in the file formats."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from sok_embed.binding import _core
from sok_embed.checkpoint.files.dump_rows import BLOCK, HEADER_BYTES, MOST_BYTES, rows_of_dump
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.files.rows_index import row_bytes
from sok_embed.checkpoint.tools.conversion.tables import (
    Head,
    Moving,
    head_of_group,
    in_pieces,
)
from sok_embed.files.records import checksum
from sok_embed.kv import GROUPS

_HEADER = struct.Struct("<8sII")
_GROUP = struct.Struct("<IIIIQ")
_FOOTER = struct.Struct("<QQQ")
_FOOTER_BYTES = 40
_UINT64 = 2**64


def groups_of(heads: Sequence[Head], group: int | None) -> list[int]:
    """Returns a group for each table: the groups from which they come, or 0, 1, 2 and so on.

    Args:
        heads: The heads of the tables.
        group: The group of the only table; `None`: any group.

    Raises:
        ValueError: If they are too many, or `group` is given for several.
    """
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


def check_seconds(head: Head) -> None:
    """Raises ValueError for a table that counts times in steps, which storages read as seconds."""
    if head.step_clock >= 0:
        raise ValueError(
            f"Table '{head.label}': expected times of updates in seconds, as a storage has them. "
            "Received: times in steps, which its eviction counts. Convert it to Parquet, .npz or "
            "into a checkpoint."
        )


def write_dump(path: str, tables: Sequence[Moving], groups: Sequence[int]) -> int:
    """Writes tables as groups, and forces them to disk. Returns the number of rows.

    Raises:
        ValueError: For a table whose times are steps.
    """
    for table in tables:
        check_seconds(table.head)
    with open(path, "xb", buffering=1 << 20) as file:
        file.write(_with_checksum(_HEADER.pack(b"SOKDUMP\n", 1, HEADER_BYTES), 0))
        index = [struct.pack("<I", len(tables))]
        total = 0
        for group, table in sorted(zip(groups, tables, strict=True), key=lambda each: each[0]):
            head = table.head
            number = _write_group(file, group, head, table.pieces())
            meta = json.dumps(_meta(head, number)).encode()
            index += [_GROUP.pack(group, head.dim, head.slot_floats, len(meta), number), meta]
            total += number
        offset = file.tell()
        end = b"".join(index)
        end += _FOOTER.pack(offset, offset + len(end) + _FOOTER_BYTES, total)
        file.write(_with_checksum(end, offset) + b"SOKDEND\n")
        file.flush()
        os.fsync(file.fileno())
    return total


def _with_checksum(data: bytes, offset: int) -> bytes:
    return data + checksum(data, offset).to_bytes(8, "little")


def _write_group(file: Any, group: int, head: Head, pieces: Iterable[Rows]) -> int:
    number = 0
    most = max(1, MOST_BYTES // row_bytes(head.dim, head.slot_floats))
    for rows in in_pieces(pieces, most):
        n = len(rows.keys)
        floats = np.concatenate([rows.embeddings, rows.slots], axis=1)
        payload = b"".join(
            column.tobytes()
            for column in (
                rows.keys,
                rows.update_nums.astype(np.uint32),
                rows.update_times.astype(np.uint32),
                floats,
            )
        )
        block = BLOCK.pack(group, n, len(payload)) + payload
        file.write(_with_checksum(block, file.tell()))
        number += n
    return number


def _meta(head: Head, rows: int) -> dict[str, Any]:
    """Returns the description of a group as a storage writes it; storages ignore the name."""
    initializer = {"kind": "", "a": 0.0, "b": 0.0, "seed": 0, **head.initializer}
    return {
        "format": 1,
        "dim": head.dim,
        "initializer": {**initializer, "seed": initializer["seed"] % _UINT64},
        "rule": head.rule,
        "slots": head.slots,
        "steps": head.steps,
        "layout": 0,
        "rows": rows,
        "counted_at": 0,
        "ttl": head.ttl,
        "name": head.name,
    }


def dump_tables(path: str) -> list[Moving]:
    """Returns the groups of a dump.

    Raises:
        CorruptionError: For a damaged file.
        ValueError: For another kind of file.
    """
    return [
        Moving(head_of_group(path, *group), partial(rows_of_dump, path, group[0]))
        for group in _core.dump_groups(path)
    ]
