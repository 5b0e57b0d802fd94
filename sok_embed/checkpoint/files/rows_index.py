"""The index of a file of rows, as JSON: the contents of each table in it; merged over files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from sok_embed.files.schema import (
    MOST_DIM,
    MOST_SLOT_FLOATS,
    Misfit,
    brief,
    checked,
    flag,
    integer,
    list_of,
    number,
    parsed,
    record,
    text,
)

MOST_INDEX_BYTES = 64 << 20
_MOST_VALUES = 1 << 22
# The core describes an adaptive table by these numbers: see `adaptive_commit.cc`.
_COUNTERS, _COUNTERS_VERSION = 5, 1
ROW_HEAD_BYTES = 16  # key, update count and update time

_count = integer()
_entry = record(
    {
        "path": text,
        "part": text,
        "dim": integer(1, MOST_DIM),
        "slot_floats": integer(0, MOST_SLOT_FLOATS),
        "rule": text,
        "steps": _count,
        "step_clock": integer(-1),
        "slot_start": list_of(number, MOST_SLOT_FLOATS),
        "rows": _count,
        "admission_bytes": _count,
    },
    {"size": _count, "removed": _count, "whole": flag},
)
_index = record({"tables": list_of(_entry)})
_sketch = record({"sketch_bytes": _count, "counters": list_of(_count)})


def _check_entry(room: int, entry: dict[str, Any], field: str) -> None:
    """Checks that the numbers of an entry agree, and that its rows fit into `room` bytes."""
    if len(entry["slot_start"]) != entry["slot_floats"]:
        received = f"{len(entry['slot_start'])} numbers"
        raise Misfit(f"{field}.slot_start", f"{entry['slot_floats']} numbers", received)
    if entry["part"] == "own":
        _sketch(entry, field)
        counters = entry["counters"]
        if len(counters) != _COUNTERS or counters[0] != _COUNTERS_VERSION:
            expected = f"{_COUNTERS} counts, the first of which is the version {_COUNTERS_VERSION}"
            raise Misfit(f"{field}.counters", expected, brief(counters))
    width = row_bytes(entry["dim"], entry["slot_floats"])
    for name, each in (
        ("rows", width), ("removed", 8), ("admission_bytes", 1), ("sketch_bytes", 1),
    ):  # fmt: skip
        if entry.get(name, 0) * each > room:
            raise Misfit(f"{field}.{name}", f"what {room} bytes have room for", f"{entry[name]}")
    if entry["whole"] and entry["size"] != entry["rows"]:
        raise Misfit(f"{field}.size", f"{entry['rows']}, the number of rows", f"{entry['size']}")


def row_bytes(dim: int, slot_floats: int) -> int:
    """Returns the bytes of a row in a block."""
    return ROW_HEAD_BYTES + 4 * (dim + slot_floats)


def index_bytes(tables: Sequence[dict[str, Any]]) -> bytes:
    """Returns the index of a file."""
    index = json.dumps({"tables": list(tables)}, allow_nan=False).encode()
    if len(index) > MOST_INDEX_BYTES or index.count(b",") > _MOST_VALUES // 2:
        raise ValueError(
            f"Expected an index of at most {MOST_INDEX_BYTES} bytes and {_MOST_VALUES // 2} "
            f"values for {len(tables)} tables. Received: {len(index)} bytes. Save the tables in "
            "several checkpoints."
        )
    return index


def tables_of_index(path: str, index: bytes, room: int) -> list[dict[str, Any]]:
    """Returns the entries of an index; all that it counts must fit into `room` bytes before it."""
    content = parsed(path, index, _MOST_VALUES)
    checked(path, content, _index)
    for i, entry in enumerate(content["tables"]):
        # Files from before incremental checkpoints lack these.
        for name, value in (("size", entry["rows"]), ("removed", 0), ("whole", True)):
            entry.setdefault(name, value)
        checked(path, entry, partial(_check_entry, room), f"tables[{i}]")
    return list(content["tables"])


class Head(NamedTuple):
    """The fields of a table beside rows and counts."""

    rule: str = ""  # the name of its row optimizer's rule, empty before the first commit
    steps: int = 0  # the number of commits so far
    step_clock: int = -1  # the time of its clock if that counts steps, else -1
    slot_start: tuple[float, ...] = ()  # the floats of the slots of a new row


def entry_of(
    path: str, part: str, dim: int, head: Head, admission_bytes: int = 0
) -> dict[str, Any]:
    """Returns the index's entry of a part of a table whose rows are not written yet."""
    return {
        "path": path,
        "part": part,
        "dim": dim,
        "slot_floats": len(head.slot_start),
        **head._asdict(),
        "rows": 0,
        "size": 0,
        "removed": 0,
        "whole": True,
        "admission_bytes": admission_bytes,
    }


def merged_head(name: str, entries: Sequence[dict[str, Any]]) -> Head:
    """Returns the head of a table that is merged from the files of several workers."""
    trained = [entry for entry in entries if entry["rule"]] or list(entries)
    first = trained[0]
    if any(entry[field] != first[field] for entry in trained for field in ("rule", "slot_start")):
        raise ValueError(
            f"Table '{name}': expected workers with one optimizer in the checkpoint. Received: "
            f"{sorted({entry['rule'] for entry in trained})}. No save writes that: take another "
            "checkpoint."
        )
    return Head(
        rule=first["rule"],
        steps=max(entry["steps"] for entry in entries),
        step_clock=max(entry["step_clock"] for entry in entries),
        slot_start=tuple(map(float, first["slot_start"])),
    )


def total(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the entry of a manifest for rows that several workers have."""
    return {
        "rule": max(entry["rule"] for entry in entries),
        "slot_floats": max(entry["slot_floats"] for entry in entries),
        "steps": max(entry["steps"] for entry in entries),
        "rows": sum(entry["rows"] for entry in entries),
        "size": sum(entry["size"] for entry in entries),
    }
