"""A process in which one system call fails in a call on a storage; see failing_call.py."""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
from broken_disk_worker import Attempt, say
from storage_work import KINDS, call_at

# What is there before: rows in files of several levels, in RocksDB's memory, in the spill file and
# in the cache, and a dump.
BEFORE = (
    *("update", "flush", "compact", "assign", "flush", "update", "dump", "flush", "remove"),
    *("flush", "update", "survey", "look_up", "assign"),
)
NEVER = 1 << 40


class FailingCall:
    """A call of one kind on storages that are alike."""

    def __init__(self, core_path: str, outside: Path, durability: str, kind: str, seed: int):
        self._core_path = core_path
        self._outside = outside
        self._durability = durability
        self._kind = kind
        self._seed = seed

    def fail(self, after: int) -> int:
        """Has the system call fail that comes after so many others. Returns how many there were."""
        say(f"after {after}")
        folder = self._outside / "disk" / "storage"
        folder.mkdir(parents=True)
        attempt = Attempt(self._core_path, folder, self._outside, self._durability, 0, self._seed)
        attempt.open(1)
        for number, kind in enumerate(BEFORE, 1):
            attempt.call(replace(call_at(self._seed, number), kind=kind, file=0))
        number = 1 + len(BEFORE)
        attempt.disk.break_down_once(errno.EIO, after)
        attempt.call(replace(call_at(self._seed, number), kind=self._kind, file=0))
        calls = attempt.disk.count()
        say(attempt.disk.mend())
        attempt.compare(number)
        for later in ("flush", "reopen"):
            attempt.call(replace(call_at(self._seed, number + 1), kind=later))
            attempt.compare(number + 1)
        attempt.close(number + 2)
        shutil.rmtree(folder)
        return calls


def main(
    core_path: str, outside: str, durability: str, kind: str, seed: int, first: int, runs: int
) -> None:
    """Fails everywhere from `first` on, or, if `runs` is not 0, at random in as many places."""
    call = FailingCall(core_path, Path(outside), durability, kind, seed)
    places: Iterable[int] = count(first)
    if runs:
        random = np.random.default_rng([seed, KINDS.index(kind)])
        calls = call.fail(NEVER)  # none, if all is in memory
        places = random.integers(0, calls, runs).tolist() if calls else []
    for after in places:
        if call.fail(after) <= after and runs == 0:
            break  # there are no more


if __name__ == "__main__":
    main(*sys.argv[1:5], *map(int, sys.argv[5:]))
