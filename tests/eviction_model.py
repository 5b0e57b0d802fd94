"""What a table with an eviction by use holds, in NumPy: the reference of the eviction tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.intp]


class Full(Exception):
    """Not enough rows may go."""


class EvictionModel:
    """The counters of rows, by the place of their keys among all keys in the order of uint64.

    Args:
        kind: `"lru"`, `"lfu"` or `None`, by which no row goes.
        universe: How many keys there are.
        max_rows: The most rows.
    """

    def __init__(self, kind: str | None, universe: int, max_rows: int) -> None:
        self.kind = kind
        self.max_rows = max_rows
        self.has = np.zeros(universe, np.bool_)
        self.updates = np.zeros(universe, np.int64)
        self.times = np.zeros(universe, np.int64)
        self.evicted = 0
        self.left_out = 0

    def make(self, keys: Places, in_use: Sequence[Places], now: int, partly: bool = False) -> None:
        """Makes rows for keys without one, instead of rows that are not in use.

        Args:
            keys: Places.
            in_use: Places of rows that stay.
            now: The time.
            partly: Whether the last keys get no row where there is no room, which else raises.
        """
        absent = keys[~self.has[keys]]
        new = absent[np.sort(np.unique(absent, return_index=True)[1])]  # by first appearance
        excess = int(self.has.sum()) + len(new) - self.max_rows
        if len(new) and excess > 0:
            may_go = self.has & (self.kind is not None)
            for batch in in_use:
                may_go[batch] = False
            rows = np.flatnonzero(may_go)
            if len(rows) < excess:
                if not partly:
                    raise Full
                self.left_out += excess - len(rows)
                new = new[: len(new) - (excess - len(rows))]
                excess = len(rows)
            # The last key of lexsort counts most; places are in the order of the keys.
            counts = self.updates[rows] if self.kind == "lfu" else np.zeros(len(rows))
            order = np.lexsort((rows, self.times[rows], counts))
            self.has[rows[order[:excess]]] = False
            self.evicted += excess
        self.has[new] = True
        self.updates[new] = 0
        self.times[new] = now

    def train(self, keys: Places, now: int) -> None:
        """One update of those that have a row."""
        rows = np.unique(keys[self.has[keys]])
        self.updates[rows] += 1
        self.times[rows] = now

    def remove(self, keys: Places) -> None:
        """Removes rows."""
        self.has[keys] = False
