"""A table while it is converted: its properties, and its rows in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.tools.saved import SavedTable
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


@dataclass(frozen=True)
class Head:
    """The properties of a table, without its rows."""

    # The path in the checkpoint, with the part of an adaptive table; for a storage or a dump, the
    # number of the group.
    label: str
    name: str  # the name of the table
    dim: int  # the length of its vectors
    # The rule of its row optimizer, as checkpoints and dumps have it; empty before the first
    # commit.
    rule: str
    slot_start: tuple[float, ...]  # the values of a new row's slots, slot after slot
    steps: int  # the number of commits
    step_clock: int  # the time of its clock if it counts steps; -1: times are in seconds since 1970
    initializer: dict[str, Any]  # `kind`, `a`, `b` and `seed`
    rows: int  # the number of rows
    ttl: int = 0  # seconds after its last update that a row is kept; 0: no limit
    # The group in a storage or a dump; `None` if the table comes from another source.
    group: int | None = None

    @property
    def slot_floats(self) -> int:
        """The floats of a row that its optimizer keeps."""
        return len(self.slot_start)

    @property
    def slots(self) -> list[dict[str, Any]]:
        """Name, width and start of each slot.

        Raises:
            ValueError: For a rule that this version does not know.
        """
        names = _core.rule_slots(self.rule) if self.rule else []
        # Each slot has a number for each element of the embedding, or one for all of them.
        width = self.slot_floats if len(names) == 1 else self.dim
        if len(names) * width != self.slot_floats:
            raise ValueError(
                f"Expected the slots {names} of optimizer '{_core.shown_rule(self.rule)}' in table "
                f"'{self.label}'. Received: {self.slot_floats} floats a row at dim {self.dim}. "
                "Convert it with the sok-embed that wrote it, or a newer one."
            )
        return [
            {"name": name, "width": width, "initial": self.slot_start[i * width]}
            for i, name in enumerate(names)
        ]

    def metadata(self) -> dict[str, Any]:
        """Returns the metadata from which `head_of_metadata` makes the head again."""
        told = {"version": _VERSION, **asdict(self), "slots": self.slots}
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


def head_of_metadata(path: str, data: bytes) -> Head:
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
    known = {name: fields[name] for name in Head.__dataclass_fields__ if name in fields}
    return Head(**{**known, "slot_start": tuple(map(float, fields["slot_start"]))})


def head_of_group(
    path: str, number: int, dim: int, slot_floats: int, rows: int, description: str
) -> Head:
    """Returns the head of a group of a dump, which a storage or a conversion has written."""
    meta = parsed(path, description.encode(), MOST_METADATA_VALUES)
    checked(path, meta, _group, f"group {number}")
    widths = [slot["width"] for slot in meta["slots"]]
    if sum(widths) != slot_floats:
        raise damaged(path, f"slots of {slot_floats} floats in group {number}", str(sum(widths)))
    start = [float(slot["initial"]) for slot in meta["slots"] for _ in range(slot["width"])]
    return Head(
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


def head_of_saved(table: SavedTable) -> Head:
    """Returns the head of a table of a checkpoint."""
    described = table.described
    return Head(
        label=table.label,
        name=described["name"],
        dim=table.dim,
        rule=table.rule,
        slot_start=table.slot_start,
        steps=table.steps,
        step_clock=table.step_clock,
        initializer={**described["initializer"], "seed": described["seed"]},
        rows=table.rows,
    )


class Moving(NamedTuple):
    """A table while it is converted."""

    head: Head  # the head of the table
    # The function that yields the rows; each call starts again with the first row.
    pieces: Callable[[], Iterator[Rows]]


def chosen(source: str, heads: Sequence[Head], names: Sequence[str]) -> list[Head]:
    """Returns the heads with these labels or names; without names, all heads."""
    if not names:
        return list(heads)
    found = []
    for name in names:
        fits = [head for head in heads if name in (head.label, head.name)]
        if len(fits) != 1:
            known = ", ".join(f"'{head.label}'" for head in heads) or "none"
            raise ValueError(
                f"Expected the name of a table in '{source}', which has {known}. Received: "
                f"{name!r}, which {'several tables have' if fits else 'no table has'}."
            )
        found += fits
    return found


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
