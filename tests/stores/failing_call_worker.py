"""A process in which one system call fails in a call on a storage; see failing_call.py."""

from __future__ import annotations

import errno
import itertools
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from broken_disk_worker import Attempt, say
from storage_work import KINDS, call_at

# This is there before: rows in files of several levels, in RocksDB's memory, in the spill file and
# in the cache, and a dump; with a survey, pending rows too.
BEFORE = (
    *("update", "flush", "compact", "assign", "flush", "update", "dump", "flush", "remove"),
    *("flush", "update", "survey", "look_up", "assign"),
)
BEFORE_WITHOUT_PENDING = tuple(kind for kind in BEFORE if kind != "survey")
WAYS = tuple(itertools.product((BEFORE, BEFORE_WITHOUT_PENDING), (True, False)))
# This is made after the call: what it left behind must not show in these either.
AFTER = ("remove", "update", "flush", "reopen")
NEVER = 1 << 40


class FailingCall:
    """A call of one kind on storages that are alike."""

    def __init__(self, core_path: str, outside: Path, durability: str, kind: str, seed: int):
        self._core_path = core_path
        self._outside = outside
        self._durability = durability
        self._kind = kind
        self._seed = seed

    def fail(self, after: int, before: Sequence[str], once: bool) -> int:
        """Has the system call fail that comes after so many others, or all from there on, too.

        Returns:
            How many there were.
        """
        say(f"after {after}, once {once}, pending rows {before == BEFORE}")
        folder = self._outside / "disk" / "storage"
        folder.mkdir(parents=True)
        attempt = Attempt(self._core_path, folder, self._outside, self._durability, 0, self._seed)
        attempt.open(1)
        for number, kind in enumerate(before, 1):
            attempt.call(replace(call_at(self._seed, number), kind=kind, file=0))
        number = 1 + len(before)
        attempt.disk.break_down_after(after, errno.EIO, once)
        attempt.call(replace(call_at(self._seed, number), kind=self._kind, file=0))
        calls = attempt.disk.count()
        say(attempt.disk.mend())
        if once or attempt.states.rows_in_doubt:
            attempt.compare(number)  # not in every life: it writes all rows
        for later, kind in enumerate(AFTER, number + 1):
            attempt.call(replace(call_at(self._seed, later), kind=kind))
            attempt.compare(later)
        attempt.close(number + 1 + len(AFTER))
        shutil.rmtree(folder)
        return calls


def main(
    core_path: str, outside: str, durability: str, kind: str, seed: int, first: int, runs: int
) -> None:
    """Fails everywhere from `first` on, or, if `runs` is not 0, at random in as many places."""
    call = FailingCall(core_path, Path(outside), durability, kind, seed)
    if runs:
        random = np.random.default_rng([seed, KINDS.index(kind)])
        for _ in range(runs):
            before, once = WAYS[random.integers(len(WAYS))]
            calls = call.fail(NEVER, before, once)
            if calls:  # else all is in memory
                call.fail(int(random.integers(calls)), before, once)
        return
    for after in itertools.count(first):
        if not any([call.fail(after, *way) > after for way in WAYS]):
            break  # there are no more


if __name__ == "__main__":
    main(*sys.argv[1:5], *map(int, sys.argv[5:]))
