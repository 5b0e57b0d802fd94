"""A process that trains two groups of a storage until somebody kills it, and what it should leave.

As a program it loads the core by itself, without TensorFlow: it starts in a fifth of a second, and
a test can afford to kill it many times. As a module it foretells the rows of every step.
Gradients are small integers, so that float32 holds their sums exactly, in any order; one product
with a power of two and one sum of an update are rounded alike everywhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

CACHE_BYTES = 1 << 20  # a tenth of either group, and less than the rows of one step
KEYS = 16_000
BATCH = 4_000
# About 24 MB are changed by then, which a flush hands over in files; see batch_bytes in storage.h.
LARGE_FLUSH = 12
START = 0.5


@dataclass(frozen=True)
class Group:
    """One of the two groups.

    Attributes:
        number: In the storage.
        dim: The length of its vectors.
        rule: Of the core.
        hypers: Of the rule.
        slot_floats: How many floats the rule keeps of a row.
    """

    number: int
    dim: int
    rule: str
    hypers: tuple[tuple[str, float], ...]
    slot_floats: int

    def spec(self) -> str:
        """Returns the description of the group's table, as the core reads it."""
        return json.dumps(
            {
                "group": self.number,
                "dim": self.dim,
                "initializer": "constant",
                "initializer_a": START,
                "initializer_b": 0.0,
                "seed": 1,
            }
        )


GROUPS = (
    Group(0, 128, "kv_sgd", (("gamma", 1.0),), 0),
    Group(5, 64, "momentum", (("learning_rate", 1.0), ("momentum", 0.5)), 64),
)


def batch_of(seed: int, step: int, group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Returns keys of a step, some of them twice and some above 2**63, and their gradients."""
    random = np.random.default_rng([seed, step, group.number])
    positions = random.integers(0, KEYS, BATCH)
    gradients = random.integers(-3, 4, (BATCH, 1)) + np.arange(group.dim) % 2
    return key_at(positions), gradients.astype(np.float32)


def key_at(positions: np.ndarray) -> np.ndarray:
    """Spreads [0, KEYS) over all 64-bit numbers, in another order."""
    return positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def flushes(step: int) -> bool:
    """Returns whether a flush follows a step: small ones early, then large ones."""
    return step % LARGE_FLUSH in (0, 2, 3)


class Replay:
    """A group in memory, trained by NumPy.

    Attributes:
        step: The steps so far.
        rows: float32 [KEYS, dim + slot_floats], by position.
        updates: int [KEYS]; 0 for keys that were not met.
    """

    def __init__(self, seed: int, group: Group) -> None:
        self.step = 0
        self.rows = np.zeros((KEYS, group.dim + group.slot_floats), np.float32)
        self.rows[:, : group.dim] = START
        self.updates = np.zeros(KEYS, np.int64)
        self._seed = seed
        self._group = group
        order = np.argsort(key_at(np.arange(KEYS)))
        self._order, self._sorted = order, key_at(order)

    def positions(self, keys: np.ndarray) -> np.ndarray:
        """Returns where keys are in `rows`; a key that nobody trained on is an error."""
        found = self._order[np.searchsorted(self._sorted, keys).clip(max=KEYS - 1)]
        assert (key_at(found) == keys).all(), "there are keys that nobody trained on"
        return found

    def go_to(self, step: int) -> None:
        """Trains up to a step."""
        while self.step < step:
            self.step += 1
            keys, gradients = batch_of(self._seed, self.step, self._group)
            met, inverse = np.unique(self.positions(keys), return_inverse=True)
            sums = np.zeros((met.size, self._group.dim), np.float32)
            np.add.at(sums, inverse, gradients)
            dim = self._group.dim
            if self._group.rule == "momentum":
                self.rows[met, dim:] = self.rows[met, dim:] / 2 - sums
                self.rows[met, :dim] += self.rows[met, dim:]
            else:
                self.rows[met] -= sums
            self.updates[met] += 1


def main(core_path: str, folder: str, durability: str, seed: int, done: int, last: int) -> None:
    """Trains on after `done` steps. Says each thing that it begins or has done in a line."""
    spec = importlib.util.spec_from_file_location("_core", core_path)
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)

    def say(what: str, step: int = 0) -> None:
        os.write(1, f"{what} {step}\n".encode())

    say("opening")
    storage = core.Storage(folder, 0, CACHE_BYTES, durability == "update", False)
    tables = [
        storage.open_table(
            group.spec(),
            rule=group.rule,
            hypers=list(group.hypers),
        )
        for group in GROUPS
    ]
    optimizers = [core.Optimizer(group.rule, list(group.hypers)) for group in GROUPS]
    say("opened")
    ahead = ThreadPoolExecutor(1) if done % 2 == 0 else None  # half of the lives look ahead
    reads: list[Future[None]] = []
    for step in range(done + 1, last + 1):
        if ahead is not None and all(read.done() for read in reads):
            for read in reads:
                read.result()  # raises its error
            reads = [
                ahead.submit(table.prefetch, batch_of(seed, step + 1, group)[0])
                for group, table in zip(GROUPS, tables, strict=True)
            ]
        for group, table, optimizer in zip(GROUPS, tables, optimizers, strict=True):
            keys, gradients = batch_of(seed, step, group)
            if step % 3 > 0:  # else it is the update that makes rows
                table.lookup(keys, np.empty(BATCH * group.dim, np.float32), True)
            if table.steps() < step:  # the kill may have come between two groups
                table.update(keys, gradients.ravel(), optimizer, False)
            say(f"trained-{group.number}", step)
        if step % 7 == 0:
            storage.survey(0)  # has what was not flushed written to RocksDB
        if flushes(step):
            say("flushing", step)
            storage.flush()
            say("flushed", step)
    if ahead is not None:
        ahead.shutdown()
    say("flushing", last)
    storage.close()
    say("flushed", last)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
