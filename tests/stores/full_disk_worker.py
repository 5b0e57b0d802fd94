"""A process that makes the calls of storage_work on a small disk, which it fills and empties.

Calls may fail with StorageError as long as the disk is full, and not afterwards. The process
compares its storage with what NumPy says, and says what it does.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bare_core import load_core
from kill_storage import Found
from killed_worker import Worker
from possible_states import CHANGING, PossibleStates
from storage_work import Call, Replay, call_at, time_at


class Disk:
    """A small disk, with a file that takes what is left of it."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"
        self.full = False

    def fill(self, slack: int) -> None:
        """Leaves so many bytes."""
        status = os.statvfs(self._ballast.parent)
        size = status.f_bavail * status.f_frsize - slack
        with open(self._ballast, "wb") as file:
            if size > 0:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError:  # the file system needs some for itself
                    os.posix_fallocate(file.fileno(), 0, max(1, size - (256 << 10)))
        self.full = True

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)
        self.full = False


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


class Attempt:
    """One life on the disk."""

    def __init__(
        self, core_path: str, folder: Path, outside: Path, durability: str, ttl: int, seed: int
    ) -> None:
        self._core = load_core(core_path)
        self._folder = folder
        self._outside = outside
        self._seed = seed
        self._random = np.random.default_rng([seed, 2**32])
        self._worker = Worker(self._core, folder, durability, ttl)
        self.states = PossibleStates(Replay.of(self._core, ttl), durability)
        self._calls_left = 0  # until there is room again
        self.disk = Disk(folder)

    def open(self, number: int) -> None:
        """Opens the storage, as soon as there is room."""
        try:
            self._worker.open(time_at(number))
        except self._core.StorageError as error:
            self._expected(error, "opening")
            self.disk.free()
            self._worker.open(time_at(number))

    def work(self, first: int, last: int) -> None:
        """Makes calls [first, last), on a disk that is full now and then."""
        for number in range(first, last):
            if not self.disk.full and self._random.random() < 0.12:
                self.fill()
                self._calls_left = int(self._random.integers(1, 8))
            elif self.disk.full and self._calls_left <= 0:
                self.disk.free()
                say("freed")
                if self._random.random() < 0.5:
                    self.compare(number)
                if len(self.states.kept) > 4 or self._random.random() < 0.3:
                    self._call(replace(call_at(self._seed, number), kind="flush"))
            self._calls_left -= 1
            self._call(call_at(self._seed, number))
            if self.states.rows_in_doubt:
                self.disk.free()
                say("freed to look for rows")
                self.compare(number)
                self._call(replace(call_at(self._seed, number), kind="flush"))

    def fill(self) -> None:
        # Some room lets a call begin what it cannot end.
        slack = int(self._random.choice([0, 10_000, 100_000, 1_000_000]) * self._random.random())
        self.disk.fill(slack)
        say(f"filled but for {slack}")

    def _call(self, call: Call) -> None:
        if call.kind == "dump" and len(self.states.present) > 1:
            return  # of which of them?
        try:
            if call.kind == "reopen":
                self._worker.close()
                self.open(call.number)
            else:
                self._check_vectors(call, self._worker.make(call))
        except self._core.StorageError as error:
            self._expected(error, f"{call.kind} {call.number}")
            self.states.failed(call)
            if call.kind in CHANGING:
                self._calls_left -= 2  # so that the states do not become too many
        else:
            say(f"done {call.kind} {call.number}")
            self.states.done(call)
        for checkpoint in self._folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)

    def _check_vectors(self, call: Call, vectors: np.ndarray | None) -> None:
        if vectors is None or len(self.states.present) > 1:
            return
        replay = self.states.present[0]
        wanted = replay.models[call.group.number].vectors(call.positions, call.now, replay.ttl)
        differ = (vectors != wanted).any(1).sum()
        assert differ == 0, f"call {call.number} reads {differ} other vectors"

    def _expected(self, error: Any, what: str) -> None:
        say(f"error {what}: {error}")
        assert type(error) is self._core.StorageError, repr(error)
        assert self.disk.full, f"{what} fails though there is room: {error}"

    def compare(self, number: int) -> None:
        """Looks at every row, in memory and on disk."""
        differences = []
        now = time_at(number)
        self._worker.storage.set_now(now)
        found = Found(self._worker.storage, self._outside / "found")
        for replay in self.states.present:
            differences.append(found.difference(replay, now))
            if differences[-1] is None:
                found.settle(replay)
                self.states.present = [replay]
                self.states.rows_in_doubt = False
                return
        raise AssertionError(f"before call {number}: " + " / ".join(map(str, differences)))

    def close(self, number: int) -> None:
        call = replace(call_at(self._seed, number), kind="close")
        try:
            self._worker.close()
        except self._core.StorageError as error:
            self._expected(error, "close")
            self.states.failed(call)
        else:
            self.states.done(call)

    def leave(self, number: int) -> None:
        """Whatever the end of the process writes or not."""
        self.states.failed(replace(call_at(self._seed, number), kind="close"))

    def tell(self) -> None:
        """Writes down what the folder may hold."""
        with open(self._outside / "kept", "wb") as file:
            pickle.dump(self.states.kept, file)


SCENARIOS = ("room at the end", "full at the end", "full at exit", "full while opening")


def main(
    core_path: str,
    folder: str,
    outside: str,
    durability: str,
    scenario: str,
    ttl: int,
    seed: int,
    first: int,
    last: int,
) -> None:
    """Makes calls [first, last), then ends, in one of the ways of SCENARIOS."""
    attempt = Attempt(core_path, Path(folder), Path(outside), durability, ttl, seed)
    if scenario == "full while opening":
        attempt.fill()
    attempt.open(first)
    attempt.disk.free()
    attempt.work(first, last)
    if scenario in ("full at the end", "full at exit"):
        attempt.fill()
    else:
        attempt.disk.free()
        attempt.compare(last)
    if scenario == "full at exit":
        attempt.leave(last)
    else:
        attempt.close(last)
    attempt.tell()


if __name__ == "__main__":
    main(*sys.argv[1:6], *map(int, sys.argv[6:]))
