"""A group whose rows are all alike, so that one number says what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from coded_rows import TYPES
from table_model import GroupConfig


class EqualRows:
    """Rows of some keys, every element of which is the same small number: 0 without a row.

    Attributes:
        keys: uint64 [n].
        config: The group. Its types go round with `turn`.
    """

    def __init__(self, number: int, dim: int, keys: np.ndarray, turn: int) -> None:
        self.keys = keys
        self.config = GroupConfig(number, dim, types=TYPES[turn % len(TYPES)])

    def floats(self, value: float) -> np.ndarray:
        """Returns the vectors of rows that hold a number: float32 [n * dim]."""
        return np.full(self.keys.size * self.config.dim, value * self.config.unit, np.float32)

    def assign(self, table: Any, value: float) -> None:
        table.assign(self.keys, self.floats(value))

    def value_of(self, table: Any) -> float:
        """Returns what all rows hold, and raises if they differ."""
        rows = np.empty((self.keys.size, self.config.dim), np.float32)
        exists = np.empty(self.keys.size, np.uint8)
        table.lookup(self.keys, rows.reshape(-1), False, exists)
        rows[exists == 0] = 0
        values = np.unique(rows)
        assert values.size == 1, f"the rows are of {values}"
        return float(values[0]) / self.config.unit
