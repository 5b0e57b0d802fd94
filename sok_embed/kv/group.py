"""What a storage says of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sok_embed.binding import _core

GROUPS = 256  # a storage has so many at most


@dataclass(frozen=True)
class Group:
    """One group of a storage.

    Attributes:
        number: In [0, 256).
        dimension: The length of its vectors.
        optimizer: The name of the rule that trains it, such as `"adam"`; `"keras.adam"` for the
            form that layers use; `None` before the first.
        rows: How many there are; with a TTL, some that have expired may be among them.
        steps: How many updates there were, of any number of rows each.
        initializer: `kind`, `a`, `b` and `seed`; see `Initializer.bounds`. `None`: nobody has said
            what rows start from, since they come from `load_damo`.
        slots: Name and number of float32 of each vector that the optimizer keeps of a row.
        eviction: That it was opened with last: its `kind` and numbers; `None`: none.
    """

    number: int
    dimension: int
    optimizer: str | None
    rows: int
    steps: int
    initializer: dict[str, Any] | None
    slots: tuple[tuple[str, int], ...]
    eviction: dict[str, Any] | None = None


def group_of(number: int, meta: dict[str, Any], rows: int | None = None) -> Group:
    """Makes the group that the core describes so.

    Args:
        number: Of the group.
        meta: What the core says of it.
        rows: If it is known better than by `meta`.
    """
    return Group(
        number=number,
        dimension=meta["dim"],
        optimizer=_core.shown_rule(meta["rule"]) if meta["rule"] else None,
        rows=meta["rows"] if rows is None else rows,
        steps=meta["steps"],
        initializer=meta["initializer"] if meta["initializer"]["kind"] else None,
        slots=tuple((slot["name"], slot["width"]) for slot in meta["slots"]),
        eviction=meta.get("eviction"),
    )
