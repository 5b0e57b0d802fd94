"""A table while it is converted: its properties, and its rows in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.tools.saved import TableHead
from sok_embed.files.records import checksum_of_json, damaged
from sok_embed.files.schema import (
    MOST_DIM,
    MOST_SLOT_FLOATS,
    brief,
    checked,
    integer,
    list_of,
    nothing_or,
    number,
    parsed,
    record,
    text,
)
from sok_embed.kv import GROUPS

# Files in other forms keep the description of a table under this name.
METADATA = "sok_embed"
_VERSION = 1
MOST_METADATA_BYTES = 64 << 20
MOST_METADATA_VALUES = 1 << 22


def slots_of(head: TableHead) -> list[dict[str, Any]]:
    """Returns name, width and start of each slot of a table.

    Raises:
        ValueError: For a rule that this version does not know.
    """
    names = _core.rule_slots(head.rule) if head.rule else []
    # Each slot has a number for each element of the embedding, or one for all of them.
    width = head.slot_floats if len(names) == 1 else head.dim
    if len(names) * width != head.slot_floats:
        raise ValueError(
            f"Expected the slots {names} of optimizer '{_core.shown_rule(head.rule)}' in table "
            f"'{head.label}'. Received: {head.slot_floats} floats a row at dim {head.dim}. "
            "Convert it with the sok-embed that wrote it, or a newer one."
        )
    return [
        {"name": name, "width": width, "initial": head.slot_start[i * width]}
        for i, name in enumerate(names)
    ]


def metadata_of(head: TableHead) -> dict[str, Any]:
    """Returns the metadata from which `head_of_metadata` makes the head again."""
    fields = {name: getattr(head, name) for name in TableHead.__dataclass_fields__}
    told = {"version": _VERSION, **fields, "slots": slots_of(head)}
    return {**told, "checksum": checksum_of_json(told)}


_initializer = record(
    {}, {"kind": text, "a": number, "b": number, "seed": integer(-(2**63), 2**64)}
)
_metadata = record(
    {
        "label": text,
        "name": text,
        "dim": integer(1, MOST_DIM),
        "rule": text,
        "slot_start": list_of(number, MOST_SLOT_FLOATS),
        "steps": integer(),
        "step_clock": integer(-1),
        "initializer": _initializer,
        "rows": integer(),
    },
    {"ttl": integer(), "group": nothing_or(integer(0, GROUPS - 1))},
)
_slots = list_of(record({"width": integer(0, MOST_SLOT_FLOATS), "initial": number}))
_group = record(
    {"rule": text, "slots": _slots, "steps": integer(), "initializer": _initializer},
    {"name": text, "ttl": integer()},
)


def head_of_metadata(path: str, data: bytes) -> TableHead:
    """Returns the head from the metadata of a file; its checksum may be missing.

    Raises:
        ValueError: For metadata of a later version.
    """
    fields = parsed(path, data, MOST_METADATA_VALUES)
    checked(path, fields, record({}))
    if fields.get("version", 0) != _VERSION:
        raise ValueError(
            f"Expected metadata of version {_VERSION} in '{path}'. Received: "
            f"{brief(fields.get('version'))}. Convert it with the sok-embed that wrote it, or a "
            "newer one."
        )
    told = fields.pop("checksum", None)
    if told not in (None, checksum_of_json(fields)):
        raise damaged(path, "metadata that agree with their checksum", "others")
    checked(path, fields, _metadata)
    known = {name: fields[name] for name in TableHead.__dataclass_fields__ if name in fields}
    return TableHead(**{**known, "slot_start": tuple(map(float, fields["slot_start"]))})


def head_of_group(
    path: str, number: int, dim: int, slot_floats: int, rows: int, description: str
) -> TableHead:
    """Returns the head of a group of a dump, which a storage or a conversion has written."""
    meta = parsed(path, description.encode(), MOST_METADATA_VALUES)
    checked(path, meta, _group, f"group {number}")
    widths = [slot["width"] for slot in meta["slots"]]
    if sum(widths) != slot_floats:
        raise damaged(path, f"slots of {slot_floats} floats in group {number}", str(sum(widths)))
    start = [float(slot["initial"]) for slot in meta["slots"] for _ in range(slot["width"])]
    return TableHead(
        label=str(number),
        name=meta.get("name", f"group {number}"),
        dim=dim,
        rule=meta["rule"],
        slot_start=tuple(start),
        steps=meta["steps"],
        step_clock=-1,
        initializer=meta["initializer"],
        rows=rows,
        ttl=meta.get("ttl", 0),
        group=number,
    )


class Moving(NamedTuple):
    """A table while it is converted."""

    head: TableHead  # the head of the table
    # The function that yields the rows; each call starts again with the first row.
    pieces: Callable[[], Iterator[Rows]]


def in_pieces(rows: Iterable[Rows], most: int) -> Iterator[Rows]:
    """Yields the same rows in pieces of `most` rows. The last piece may have fewer rows."""
    held: list[Rows] = []
    number = 0
    for each in rows:
        held.append(each)
        number += len(each.keys)
        if number < most:
            continue
        joined = joined_rows(held)
        whole = number - number % most
        for begin in range(0, whole, most):
            yield joined.between(begin, begin + most)
        held, number = [joined.between(whole, number)], number - whole
    if number:
        yield joined_rows(held)


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Joins the rows of one or more pieces."""
    if len(parts) == 1:
        return parts[0]
    return Rows._make(np.concatenate(columns) for columns in zip(*parts, strict=True))
