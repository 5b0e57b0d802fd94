"""What a storage says of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GROUPS = 256  # the most that a storage has


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
        initializer: `kind`, `a`, `b` and `seed`; see `Initializer.bounds`.
        slots: Name and number of float32 of each vector that the optimizer keeps of a row.
    """

    number: int
    dimension: int
    optimizer: str | None
    rows: int
    steps: int
    initializer: dict[str, Any]
    slots: tuple[tuple[str, int], ...]
