"""What one group of a storage should hold, kept by NumPy in plain arrays.

Rows are numbered by position; `key_at` spreads positions over all 64-bit keys. Gradients are small
integers and learning rates are 1, so that each new number comes from one rounded float32 operation,
which NumPy rounds like everybody else. Rows in fewer bytes are rounded once more: see coded_rows.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from coded_rows import PLAIN, RowRounding

SEED = 7  # of the initializer


@dataclass(frozen=True)
class GroupConfig:
    """How a group is made.

    Attributes:
        number: In the storage.
        dim: The length of its vectors.
        momentum: Whether it is trained with momentum 1/2, which keeps a slot; else plainly.
        min_count: How often a key is looked up until it has a row.
        max_rows: The most rows; 0: any number.
        types: The types of its rows and of what its rule keeps.
    """

    number: int
    dim: int
    momentum: bool = False
    min_count: int = 1
    max_rows: int = 0
    types: tuple[str, str] = PLAIN

    @property
    def rule(self) -> str:
        return "momentum" if self.momentum else "kv_sgd"

    @property
    def hypers(self) -> list[tuple[str, float]]:
        if self.momentum:
            return [("learning_rate", 1.0), ("momentum", 0.5)]
        return [("gamma", 1.0)]

    @property
    def floats(self) -> int:
        """The number of floats in a row, with those that the rule keeps."""
        return 2 * self.dim if self.momentum else self.dim

    @property
    def unit(self) -> float:
        """A number whose small multiples are exact, as elements of a row that are all equal."""
        return 127 / 128 if self.types[0] == "int8" else 1.0

    @property
    def rounding(self) -> RowRounding:
        return RowRounding(*self.types, self.dim, SEED)

    def open_table(self, storage: Any) -> Any:
        """Opens the group's table in a storage of the native module."""
        return storage.open_table(
            json.dumps(
                {
                    "group": self.number,
                    "dim": self.dim,
                    "initializer": "uniform",
                    "initializer_a": -1.0,
                    "initializer_b": 1.0,
                    "seed": SEED,
                    "admission": "frequency" if self.min_count > 1 else "",
                    "admission_min_count": self.min_count,
                    "max_rows": self.max_rows,
                    "row_dtype": self.types[0],
                    "slot_dtype": self.types[1],
                }
            ),
            rule=self.rule,
            hypers=self.hypers,
        )

    def starts(self, core: ModuleType, rows: int) -> np.ndarray:
        """Returns what each row starts from: float32 [rows, dim]. No two are alike."""
        initializer = core.Initializer("uniform", -1.0, 1.0, SEED, self.number)
        starts = np.empty((rows, self.dim), np.float32)
        for start, key in zip(starts, key_at(np.arange(rows)).tolist(), strict=True):
            initializer.fill(key, start)
        return self.rounding.nearest(starts)


def key_at(positions: np.ndarray) -> np.ndarray:
    """Spreads positions over all 64-bit numbers, in another order."""
    return positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def gradients_of(random: np.random.Generator, n: int, dim: int) -> np.ndarray:
    """Small integers, float32 [n, dim]."""
    gradients = random.integers(-3, 4, (n, 1)) + np.arange(dim) % 3
    return gradients.astype(np.float32)


@dataclass
class Rows:
    """Some rows, ascending by position.

    Attributes:
        positions: int64 [n].
        floats: float32 [n, floats].
        updates: int64 [n].
        times: int64 [n], of the last updates.
    """

    positions: np.ndarray
    floats: np.ndarray
    updates: np.ndarray
    times: np.ndarray


class TableModel:
    """A group in memory.

    Attributes:
        there: bool [rows], whether there is a row, expired ones included: until something comes
            upon them, these may be counted.
        floats, updates, times: Of each row, by position.
        outlived: How many rows had expired when their keys got new ones or were removed. RocksDB
            may have dropped them before, which nobody counts until all rows are counted anew.
        steps: How many updates there were.
    """

    def __init__(self, config: GroupConfig, starts: np.ndarray) -> None:
        rows = len(starts)
        self.config = config
        self.starts = starts
        self.there = np.zeros(rows, bool)
        self.floats = np.zeros((rows, config.floats), np.float32)
        self.updates = np.zeros(rows, np.int64)
        self.times = np.zeros(rows, np.int64)
        self.outlived = 0
        self.steps = 0
        self._seen = np.zeros(rows, np.int64)
        order = np.argsort(key_at(np.arange(rows)))
        self._order, self._sorted = order, key_at(order)

    def positions(self, keys: np.ndarray) -> np.ndarray:
        """Returns where keys are; a key that nobody used is an error."""
        found = self._order[np.searchsorted(self._sorted, keys).clip(max=len(self._order) - 1)]
        assert (key_at(found) == keys).all(), "there are keys that nobody used"
        return found

    def copy(self) -> TableModel:
        """Another one, which goes its own way."""
        other = copy.copy(self)
        for name in ("there", "floats", "updates", "times", "_seen"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def live(self, now: int, ttl: int) -> np.ndarray:
        """bool [rows]: the rows that a lookup finds."""
        return self.there & (self.times + ttl > now) if ttl else self.there.copy()

    def vectors(self, positions: np.ndarray, now: int, ttl: int) -> np.ndarray:
        """Returns what a lookup that makes no rows returns: float32 [n, dim]."""
        live = self.live(now, ttl)[positions]
        return np.where(
            live[:, None], self.floats[positions, : self.config.dim], self.starts[positions]
        )

    def count_seen(self, positions: np.ndarray, now: int, ttl: int) -> np.ndarray:
        """A lookup counts keys without a row. Returns those that get one, distinct."""
        missing = positions[~self.live(now, ttl)[positions]]
        if self.config.min_count == 1:
            return np.unique(missing)
        np.add.at(self._seen, missing, 1)
        return self._admitted(missing)

    def to_update(self, positions: np.ndarray, now: int, ttl: int) -> np.ndarray:
        """Returns those keys of an update without a row that get one, distinct."""
        missing = positions[~self.live(now, ttl)[positions]]
        return np.unique(missing) if self.config.min_count == 1 else self._admitted(missing)

    def _admitted(self, missing: np.ndarray) -> np.ndarray:
        distinct = np.unique(missing)
        return distinct[self._seen[distinct] >= self.config.min_count]

    def make(self, fresh: np.ndarray, now: int) -> None:
        """Makes rows, at distinct positions."""
        self.outlived += int(self.there[fresh].sum())
        self.there[fresh] = True
        self.floats[fresh] = 0
        self.floats[fresh, : self.config.dim] = self.starts[fresh]
        self.updates[fresh] = 0
        self.times[fresh] = now
        self._seen[fresh] = 0

    def update(
        self, positions: np.ndarray, gradients: np.ndarray, now: int, ttl: int, sequential: bool
    ) -> None:
        """Updates the rows that there are; keys without one are left out."""
        live = self.live(now, ttl)[positions]
        positions, gradients = positions[live], gradients[live]
        self.steps += 1
        if not sequential:
            distinct, inverse = np.unique(positions, return_inverse=True)
            sums = np.zeros((distinct.size, self.config.dim), np.float32)
            np.add.at(sums, inverse, gradients)
            self._step(distinct, sums, now)
            return
        order = np.argsort(positions, kind="stable")
        first = np.r_[True, np.diff(positions[order]) != 0] if order.size else np.zeros(0, bool)
        begins = np.maximum.accumulate(np.where(first, np.arange(order.size), 0))
        turns = np.arange(order.size) - begins
        for turn in range(turns.max(initial=-1) + 1):
            chosen = order[turns == turn]
            self._step(positions[chosen], gradients[chosen], now)

    def _step(self, positions: np.ndarray, gradients: np.ndarray, now: int) -> None:
        dim = self.config.dim
        if self.config.momentum:
            self.floats[positions, dim:] = self.floats[positions, dim:] / 2 - gradients
            self.floats[positions, :dim] += self.floats[positions, dim:]
        else:
            self.floats[positions] -= gradients
        self.updates[positions] += 1
        self.times[positions] = now
        self.floats[positions] = self.config.rounding.updated(
            self.floats[positions], key_at(positions), self.updates[positions]
        )

    def assign(self, positions: np.ndarray, vectors: np.ndarray, now: int, ttl: int) -> None:
        """Sets vectors. Of equal keys the last counts; slots, counts and times stay."""
        self.make(np.unique(positions[~self.live(now, ttl)[positions]]), now)
        self._seen[positions] = 0
        last = vectors.shape[0] - 1 - np.unique(positions[::-1], return_index=True)[1]
        assigned = self.config.rounding.nearest(vectors[last])
        self.floats[positions[last], : self.config.dim] = assigned

    def remove(self, positions: np.ndarray, now: int, ttl: int) -> int:
        """Removes rows, expired ones too. Returns how many of the others there were."""
        distinct = np.unique(positions)
        removed = int(self.live(now, ttl)[distinct].sum())
        self.outlived += int(self.there[distinct].sum()) - removed
        self.there[distinct] = False
        return removed

    def take(self, rows: Rows, now: int, ttl: int, is_open: bool = True) -> int:
        """Rows of a dump that have not expired replace those of their keys. Returns how many."""
        live = (rows.times + ttl > now) if ttl else np.ones(rows.positions.size, bool)
        positions = rows.positions[live]
        self.there[positions] = True
        if is_open:
            self._seen[positions] = 0
        self.floats[positions] = self.config.rounding.nearest(rows.floats[live])
        self.updates[positions] = rows.updates[live]
        self.times[positions] = rows.times[live]
        return int(live.sum())

    def rows(self, chosen: np.ndarray) -> Rows:
        """Returns a copy of the rows of a mask."""
        positions = np.flatnonzero(chosen)
        return Rows(
            positions, self.floats[positions], self.updates[positions], self.times[positions]
        )
