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
        kind: `"lru"` or `"lfu"`.
        universe: How many keys there are.
        max_rows: The most rows.
    """

    def __init__(self, kind: str, universe: int, max_rows: int) -> None:
        self.kind = kind
        self.max_rows = max_rows
        self.has = np.zeros(universe, np.bool_)
        self.updates = np.zeros(universe, np.int64)
        self.times = np.zeros(universe, np.int64)
        self.evicted = 0

    def make(self, keys: Places, in_use: Sequence[Places], now: int) -> None:
        """Makes rows for keys without one, in the place of others but for those in use."""
        new = np.unique(keys[~self.has[keys]])
        excess = int(self.has.sum()) + len(new) - self.max_rows
        if len(new) and excess > 0:
            may_go = self.has.copy()
            for batch in in_use:
                may_go[batch] = False
            rows = np.flatnonzero(may_go)
            if len(rows) < excess:
                raise Full
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
