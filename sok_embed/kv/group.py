"""The description of a group in a storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sok_embed.binding import _core

GROUPS = 256  # the most groups of a storage


@dataclass(frozen=True)
class Group:
    """One group of a storage.

    Attributes:
        number: The number of the group, in [0, 256).
        dimension: The length of its vectors.
        optimizer: The name of the rule that trains it, such as `"adam"`; `"keras.adam"` for the
            form that layers use; `None` of rows that nothing has been opened or trained with, such
            as those of `load_damo`.
        rows: The number of rows; with a TTL, it may include some that have expired.
        steps: The number of updates, of any number of rows each.
        initializer: `kind`, `a`, `b` and `seed`; see `Initializer.bounds`. `None`: unknown,
            since the rows come from `load_damo`.
        slots: The name, and the number of float32, of each vector that the optimizer keeps for a
            row.
        eviction: The eviction that the group was last opened with: its `kind`, and `max_age` in
            seconds, or `min_l2` and `every`; `None`: it had none.
        row_dtype: The type of its vectors on disk and in the cache; see `Embedding`.
        slot_dtype: The type of the optimizer's state.
    """

    number: int
    dimension: int
    optimizer: str | None
    rows: int
    steps: int
    initializer: dict[str, Any] | None
    slots: tuple[tuple[str, int], ...]
    eviction: dict[str, Any] | None = None
    row_dtype: str = "float32"
    slot_dtype: str = "float32"


def group_of(number: int, meta: dict[str, Any], rows: int | None = None) -> Group:
    """Makes a group from the core's description.

    `rows` is their number, if it is known better than by `meta`.
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
        row_dtype=meta.get("row_dtype", "float32"),
        slot_dtype=meta.get("slot_dtype", "float32"),
    )
