"""A process that makes the calls of storage_work on a disk that breaks and is mended again.

It becomes full, or system calls fail. Calls may raise errors as long as that lasts, and not
afterwards. The process compares its storage with what NumPy says, and says what it does.
"""

from __future__ import annotations

import ctypes
import errno
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


class FullDisk:
    """A small disk, with a file that takes what is left of it."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"
        self.broken = False

    def break_down(self, random: np.random.Generator) -> str:
        """Becomes full. Some room lets a call begin what it cannot end."""
        slack = int(random.choice([0, 10_000, 100_000, 1_000_000]) * random.random())
        status = os.statvfs(self._ballast.parent)
        size = status.f_bavail * status.f_frsize - slack
        with open(self._ballast, "wb") as file:
            while size > 0:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                    break
                except OSError:  # the file system, or another thread, has taken some
                    size -= 256 << 10
        self.broken = True
        return f"full but for {slack} bytes"

    def mend(self) -> str:
        self._ballast.unlink(missing_ok=True)
        self.broken = False
        return "has room"


class FaultyDisk:
    """A folder in which system calls fail; see faulty_files.c."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.broken = False

    def break_down(self, random: np.random.Generator) -> str:
        """From a call on, all fail, or that one alone; those that read too or not."""
        error = int(random.choice([errno.EIO, errno.EROFS, errno.ENOSPC]))
        after = int(random.choice([1, 10, 300]) * random.random())
        once, reads = bool(random.random() < 0.3), bool(random.random() < 0.3)
        # Either calls of all kinds fail, or one kind alone: those that write, that sync, or that
        # make names.
        kinds = int(random.choice([7, 7, 7, 1, 2, 2, 4]))
        # RocksDB can go on where only its table files fail, and must not forget what they were for.
        files = "[0-9]*.sst" if random.random() < 0.3 else "*"
        self.broken = True
        self._library.choose_files(files.encode())
        self._library.break_files(error, ctypes.c_long(after), once, reads, kinds)
        return (
            f"{errno.errorcode[error]} of {files} after {after}, once {once}, reads {reads}, "
            f"kinds {kinds}"
        )

    def break_down_after(self, calls: int, error: int, once: bool) -> None:
        """After that many, one call fails, whichever it is, or all do."""
        self.broken = True
        self._library.choose_files(b"*")
        self._library.break_files(error, ctypes.c_long(calls), once, True, 7)

    def count(self) -> int:
        """Returns how many calls there were since it broke down."""
        return self._library.calls_on_files()

    def mend(self) -> str:
        failed = self._library.mend_files()
        self.broken = False
        return f"mended after {failed} failures"


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
        self._worker = Worker(self._core, folder, durability, ttl, seed)
        self.states = PossibleStates(Replay.of(self._core, ttl, seed), durability)
        self._calls_left = 0  # until the disk is mended
        self.disk = FaultyDisk() if "LD_PRELOAD" in os.environ else FullDisk(folder)

    def open(self, number: int) -> None:
        """Opens the storage, as soon as the disk can be used."""
        try:
            self._worker.open(time_at(number))
            return
        except (self._core.StorageError, PermissionError) as error:
            self._expected(error, "opening")
        # Here nothing holds on to the storage that could not be opened as a whole.
        say(f"{self.disk.mend()}, to open")
        self._worker.open(time_at(number))

    def work(self, first: int, last: int) -> None:
        """Makes calls [first, last), on a disk that is broken now and then."""
        for number in range(first, last):
            if not self.disk.broken and self._random.random() < 0.12:
                self.break_down()
                self._calls_left = int(self._random.integers(1, 8))
            elif self.disk.broken and self._calls_left <= 0:
                say(self.disk.mend())
                if self._random.random() < 0.5:
                    self.compare(number)
                if len(self.states.kept) > 4 or self._random.random() < 0.3:
                    self.call(replace(call_at(self._seed, number), kind="flush"))
            self._calls_left -= 1
            self.call(call_at(self._seed, number))
            if self.states.rows_in_doubt:
                say(f"{self.disk.mend()}, to look for rows")
                self.compare(number)
                self.call(replace(call_at(self._seed, number), kind="flush"))

    def break_down(self) -> None:
        say(self.disk.break_down(self._random))

    def call(self, call: Call) -> None:
        """Makes a call, which may fail if the disk is broken."""
        if call.kind == "dump" and len(self.states.present) > 1:
            return  # several states are possible: nobody knows which is dumped
        try:
            if call.kind == "reopen":
                self._worker.close()
                self.open(call.number)
            else:
                self._check_vectors(call, self._worker.make(call))
        except (self._core.StorageError, PermissionError) as error:
            self._expected(error, f"{call.kind} {call.number}")
            self.states.failed(call, str(error))
            if call.kind in CHANGING:
                self._calls_left -= 2  # keeps the possible states few
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
        assert not isinstance(error, self._core.StorageLockedError), repr(error)
        status = os.statvfs(self._folder)
        free = status.f_bavail * status.f_frsize >> 20
        assert self.disk.broken, f"{what} fails on a good disk, {free} MiB free: {error}"

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
        except (self._core.StorageError, PermissionError) as error:
            self._expected(error, "close")
            self.states.failed(call, str(error))
        else:
            self.states.done(call)

    def leave(self, number: int) -> None:
        """Whatever the end of the process writes or not."""
        self.states.failed(replace(call_at(self._seed, number), kind="close"), "")

    def tell(self) -> None:
        """Writes down what the folder may hold."""
        with open(self._outside / "kept", "wb") as file:
            pickle.dump(self.states.kept, file)


SCENARIOS = (
    "good at the end",
    "broken at the end",
    "broken at exit",
    "broken while opening",
    "killed on a good disk",
)


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
    if scenario == "broken while opening":
        attempt.break_down()
    attempt.open(first)
    say(attempt.disk.mend())
    attempt.work(first, last)
    if scenario in ("broken at the end", "broken at exit"):
        attempt.break_down()
    else:
        say(attempt.disk.mend())
        attempt.compare(last)
    if scenario == "killed on a good disk":
        attempt.tell()
        os._exit(0)
    if scenario == "broken at exit":
        attempt.leave(last)
    else:
        attempt.close(last)
    attempt.tell()


if __name__ == "__main__":
    main(*sys.argv[1:6], *map(int, sys.argv[6:]))
