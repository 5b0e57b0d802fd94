"""Trains a group whose rows expire while a small cache drops others, and compares with NumPy.

A program of its own: where eviction and expiry get into each other's way, the process may end.
"""

from __future__ import annotations

import sys

import numpy as np
from bare_core import load_core
from table_model import GroupConfig, TableModel, gradients_of, key_at

TTL = 100
START = 1_700_000_000
KEYS = 13_000
GROUP = GroupConfig(number=0, dim=64)


class Trainer:
    """The group in a storage of the least cache, and as it should be."""

    def __init__(self, core_path: str, folder: str) -> None:
        core = load_core(core_path)
        self.now = START
        self.model = TableModel(GROUP, GROUP.starts(core, KEYS))
        self.storage = core.Storage(folder, TTL, 1 << 20, False, False)
        self.wait(0)
        self._table = GROUP.open_table(self.storage)
        self._optimizer = core.Optimizer(GROUP.rule, GROUP.hypers)

    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.storage.set_now(self.now)

    def update(self, positions: np.ndarray, gradients: np.ndarray) -> None:
        self._table.update(key_at(positions), gradients.ravel(), self._optimizer, False)
        self.model.make(self.model.to_update(positions, self.now, TTL), self.now)
        self.model.update(positions, gradients, self.now, TTL, False)

    def look_up(self, positions: np.ndarray) -> int:
        """Looks keys up without making rows, and returns how many vectors are wrong."""
        found = np.empty((positions.size, GROUP.dim), np.float32)
        self._table.lookup(key_at(positions), found.reshape(-1), False)
        return int((found != self.model.vectors(positions, self.now, TTL)).any(1).sum())


def expired_in_the_cache_and_live_outside(trainer: Trainer, random: np.random.Generator) -> int:
    """One batch mixes expired rows that are cached with live ones that are not."""
    early, late = np.arange(3_000), np.arange(10_000, 13_000)
    trainer.update(early, gradients_of(random, early.size, GROUP.dim))
    trainer.wait(50)
    trainer.update(late, gradients_of(random, late.size, GROUP.dim))
    differ = trainer.look_up(np.arange(2_000))
    trainer.wait(60)
    both = random.permutation(np.concatenate([early, late]))
    trainer.update(both, gradients_of(random, both.size, GROUP.dim))
    return differ + trainer.look_up(np.arange(KEYS))


def batches_of_all_ages(trainer: Trainer, random: np.random.Generator) -> int:
    """Rows expire all the time; a third of each batch is looked up first."""
    differ = 0
    for _ in range(60):
        trainer.wait(int(random.integers(0, 60)))
        positions = random.integers(0, 12_000, random.integers(500, 5_001))
        differ += trainer.look_up(positions[: positions.size // 3])
        trainer.update(positions, gradients_of(random, positions.size, GROUP.dim))
        differ += trainer.look_up(random.integers(0, KEYS, 1_000))
    return differ


SCENARIOS = {
    run.__name__: run for run in (expired_in_the_cache_and_live_outside, batches_of_all_ages)
}


def main(core_path: str, folder: str, scenario: str, seed: int) -> None:
    """Prints how many vectors differ from what they should be."""
    trainer = Trainer(core_path, folder)
    print(SCENARIOS[scenario](trainer, np.random.default_rng(seed)))
    survey = trainer.storage.survey(GROUP.number)
    assert survey["rows"] == trainer.model.live(trainer.now, TTL).sum()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
