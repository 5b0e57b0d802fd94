"""Calls on a storage that follow from a seed and a number, and what they leave behind.

A process that makes the calls may be killed; another then knows from the numbers that were begun
and done what must be there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
from coded_rows import TYPES
from table_model import GroupConfig, Rows, TableModel, gradients_of

KEYS = 7_000
CACHE_BYTES = 1 << 20  # less than the rows of one large call
# The time is later than the present: what the library does before it is told the time, finds no row
# expired.
START = 2_000_000_000
SECONDS_A_CALL = 7
FILES = 2  # dumps replace each other in these files

SHARES = {
    "look_up": 10,
    "update": 24,
    "assign": 12,
    "remove": 10,
    "flush": 8,
    "flush_beside": 8,
    "survey": 3,
    "dump": 6,
    "load": 6,
    "checkpoint": 4,
    "compact": 4,
    "reopen": 4,
}
KINDS = list(SHARES)
_CHANCES = np.array(list(SHARES.values())) / sum(SHARES.values())
# These calls have everything before them survive, whatever the durability. After "flush_beside" a
# thread takes the rows of one moment from then on, and writes them while other calls are made.
FLUSHING = {"flush", "load", "checkpoint", "compact", "reopen", "close"}


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        positions: Of its keys.
        numbers: float32 [n, dim], gradients or vectors.
        file: The number of the dump that is written or read.
    """

    number: int
    kind: str
    group: GroupConfig
    positions: np.ndarray
    numbers: np.ndarray
    in_turn: bool
    file: int

    @property
    def now(self) -> int:
        return time_at(self.number)


def groups_of(seed: int) -> tuple[GroupConfig, GroupConfig]:
    """Returns the groups of a storage. The types of their rows go round."""
    turn = seed + seed // len(TYPES)
    types = [TYPES[(turn + more) % len(TYPES)] for more in (0, 3)]
    return GroupConfig(0, 64, types=types[0]), GroupConfig(5, 23, momentum=True, types=types[1])


def time_at(number: int) -> int:
    """Returns the time of a call, in seconds since 1970."""
    return START + SECONDS_A_CALL * number


def call_at(seed: int, number: int) -> Call:
    """Returns the call of a number."""
    random = np.random.default_rng([seed, number])
    kind = str(random.choice(KINDS, p=_CHANCES))
    groups = groups_of(seed)
    group = groups[int(random.integers(len(groups)))]
    # Now and then there are all keys: more than the cache holds.
    n = KEYS if random.random() < 0.2 else int(random.integers(1, 3_000))
    positions = random.integers(0, KEYS, n)
    return Call(
        number,
        kind,
        group,
        positions,
        gradients_of(random, n, group.dim),
        bool(random.random() < 0.2),
        int(random.integers(FILES)),
    )


@dataclass
class Replay:
    """The storage after the calls so far.

    Attributes:
        ttl: Of the storage.
        models: By group.
        unwritten: bool [KEYS] by group: rows that a lookup made and nothing has changed since. A
            kill may take them, unless they were flushed.
        dumps: What is in each file: rows by group. Copies share it, as they share the files.
    """

    ttl: int
    models: dict[int, TableModel]
    unwritten: dict[int, np.ndarray]
    dumps: dict[int, dict[int, Rows]] = field(default_factory=dict)

    @classmethod
    def of(cls, core: ModuleType, ttl: int, seed: int) -> Replay:
        models = {g.number: TableModel(g, g.starts(core, KEYS)) for g in groups_of(seed)}
        return cls(ttl, models, {number: np.zeros(KEYS, bool) for number in models})

    def copy(self) -> Replay:
        models = {number: model.copy() for number, model in self.models.items()}
        unwritten = {number: mask.copy() for number, mask in self.unwritten.items()}
        return Replay(self.ttl, models, unwritten, self.dumps)

    def rows(self, now: int) -> dict[int, Rows]:
        """Returns the rows of each group that have not expired."""
        return {n: model.rows(model.live(now, self.ttl)) for n, model in self.models.items()}

    def makes_rows(self, call: Call) -> bool:
        """Returns whether there are keys without a row among those of a call."""
        model = self.models[call.group.number]
        return bool(model.to_update(call.positions, call.now, self.ttl).size)

    def make_rows(self, call: Call) -> None:
        """Makes rows for the keys of a call that have none, as a lookup does."""
        model = self.models[call.group.number]
        fresh = model.count_seen(call.positions, call.now, self.ttl)
        model.make(fresh, call.now)
        self.unwritten[call.group.number][fresh] = True

    def apply(self, call: Call) -> None:
        """Makes a call."""
        model, ttl, now = self.models[call.group.number], self.ttl, call.now
        unwritten = self.unwritten[call.group.number]
        if call.kind == "look_up":
            self.make_rows(call)
        elif call.kind == "update":
            model.make(model.to_update(call.positions, now, ttl), now)
            model.update(call.positions, call.numbers, now, ttl, call.in_turn)
            unwritten[call.positions] = False
        elif call.kind == "assign":
            model.assign(call.positions, call.numbers, now, ttl)
            unwritten[call.positions] = False
        elif call.kind == "remove":
            model.remove(call.positions, now, ttl)
            unwritten[call.positions] = False
        elif call.kind == "dump":
            self.dumps[call.file] = self.rows(now)
        elif call.kind == "load":
            for number, rows in self.dumps.get(call.file, {}).items():
                self.models[number].take(rows, now, ttl)
        if call.kind in FLUSHING:
            for mask in self.unwritten.values():
                mask[:] = False
