"""Kills processes that work on a storage, at any moment of any call, and looks at what they leave.

    python tests/stores/kill_storage.py --kills 1000
    python tests/stores/kill_storage.py --kills 50 --durability update --ttl 100 --seed 3

With `durability="checkpoint"` the last flush that returned must be there, or the one under way;
with "update" every call that returned, and the one under way as a whole or not at all.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from bare_core import CORE_PATH, load_core
from dump_rows import DumpedRows, read_dump
from killed_process import kill_and_read
from storage_work import (
    CACHE_BYTES,
    FLUSHING,
    KEYS,
    KINDS,
    Call,
    Replay,
    call_at,
    groups_of,
    time_at,
)
from table_model import Rows, TableModel, key_at

WORKER = Path(__file__).with_name("killed_worker.py")
CALLS = 60  # what a process does if nobody kills it
NEW_FOLDER_AFTER = 25  # kills
DURABILITIES = ("checkpoint", "update")
TTLS = (0, 140)  # the life of 20 calls


class Difference(AssertionError):
    """Says that a folder does not hold what was promised."""


@dataclass
class Run:
    """One life of a worker.

    Attributes:
        opened: Whether it came so far.
        begun, done: The last call of which it said so; one less than the first, before.
        seconds: Of each call that was done.
    """

    opened: bool
    begun: int
    done: int
    seconds: dict[int, float]


class Killer:
    """Kills workers in one folder, one after another, and compares what each of them leaves.

    Attributes:
        counts: How often a worker was killed in which call.
    """

    def __init__(
        self, core: ModuleType, folder: Path, durability: str, ttl: int, seed: int
    ) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._core = core
        self._folder = folder
        self._durability = durability
        self._ttl = ttl
        self._seed = seed
        self._random = np.random.default_rng([seed, 0])
        self._first = 1  # the number of the next worker's first call
        self._replay = Replay.of(core, ttl, seed)
        self._checkpoints: dict[int, Replay] = {}
        self._seconds = collections.defaultdict[str, float](lambda: 0.02)

    def kill_once(self) -> str:
        """Starts a worker, kills it and compares. Returns when that was."""
        run = self._run(str(self._random.choice(["opening", "anywhere", "close", *KINDS])))
        under_way = "opening"
        if run.opened:
            under_way = self._call(run.begun).kind if run.begun > run.done else "between"
        self.counts[under_way] += 1
        for number, seconds in run.seconds.items():
            made = self._call(number).kind
            self._seconds[made] = 0.8 * self._seconds[made] + 0.2 * seconds
        said = f"calls {self._first} to {run.begun}, killed in {under_way}"
        try:
            self._compare(run)
        except Difference as error:
            raise Difference(f"{said}: {error}") from None
        self._first = run.begun + 1
        return said

    def _call(self, number: int) -> Call:
        call = call_at(self._seed, number)
        return call if number < self._first + CALLS else replace(call, kind="close")

    def _run(self, kind: str) -> Run:
        first, last = self._first, self._first + CALLS
        command = [sys.executable, WORKER, self._core.__file__, self._folder, self._durability]
        process = subprocess.Popen(
            [str(part) for part in [*command, self._ttl, self._seed, first, last]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # The test waits for this line, and knows how long the call that follows may take.
        wanted, most = "opening", 0.05
        if kind == "anywhere":
            wanted, most = "opened", 1.0
        elif kind == "close":
            wanted, most = f"begin {last}", self._seconds[kind]
        elif kind != "opening":
            start = first + int(self._random.integers(0, CALLS - 20))
            numbers = [n for n in range(start, last) if call_at(self._seed, n).kind == kind]
            wanted, most = f"begin {(numbers or [start])[0]}", self._seconds[kind]
        lines = []
        for line in process.stdout:
            lines.append(line.split())
            if line.strip() == wanted:
                break
        time.sleep(self._random.uniform(0, 1.2 * most))
        rest, errors = kill_and_read(process)
        lines += [line.split() for line in rest.splitlines()]
        if process.returncode not in (-signal.SIGKILL, 0) or errors:
            raise Difference(f"the worker ended with {process.returncode}: {errors[-1500:]}")
        said = collections.defaultdict(list)
        for what, *numbers in lines:
            said[what].append(numbers)
        return Run(
            "opened" in said,
            max([first - 1, *(int(n[0]) for n in said["begin"])]),
            max([first - 1, *(int(n[0]) for n in said["done"])]),
            {int(number): float(seconds) for number, seconds in said["done"]},
        )

    def _candidates(self, run: Run) -> list[Replay]:
        """Returns what may be there, by what the worker has said."""
        replay = self._replay
        flushed = [replay.copy()]
        flush_asked = False  # one that takes the rows of some moment from then on
        self._checkpoints = {}
        for number in range(self._first, run.done + 1):
            call = self._call(number)
            if flush_asked and call.kind == "update":  # which makes rows first
                flushed.append(replay.copy())
                flushed[-1].make_rows(call)
            replay.apply(call)
            if call.kind in FLUSHING:
                flushed = [replay.copy()]
                flush_asked = False
            flush_asked |= call.kind == "flush_beside"
            if flush_asked:
                flushed.append(replay.copy())
            if call.kind == "checkpoint":
                self._checkpoints[number] = flushed[0]
        if run.begun == run.done:
            return [replay] if self._durability == "update" else flushed
        call = self._call(run.begun)
        after = replay.copy()
        if call.kind != "dump":  # a dump changes no row: see _check_dumps
            after.apply(call)
        if call.kind == "checkpoint":
            self._checkpoints[run.begun] = after
        if self._durability == "update":
            return [replay, after]
        # A load flushes first.
        if flush_asked and call.kind == "update":
            flushed.append(replay.copy())
            flushed[-1].make_rows(call)
        flush_asked |= call.kind in FLUSHING or call.kind == "flush_beside"
        return [*flushed, replay, after] if flush_asked else flushed

    def _compare(self, run: Run) -> None:
        candidates = self._candidates(run)
        path = self._folder / "rows"
        if not run.opened and not (path / "CURRENT").exists():
            return  # killed before there was a storage
        now = time_at(run.begun)
        read_only = bool(run.opened and self._random.random() < 0.5)
        storage = self._core.Storage(str(path), None, CACHE_BYTES, False, read_only)
        storage.set_now(now)
        found = Found(storage, self._folder / "found")
        differences = []
        for replay in candidates:
            differences.append(found.difference(replay, now))
            if differences[-1] is None:
                break
        else:
            storage.close()
            raise Difference(" / ".join(map(str, differences)))
        self._check_dumps(run)
        found.settle(replay)
        self._check_vectors(storage, replay, now)
        storage.close()
        if not read_only and list(path.glob("sok-publish-*")):
            raise Difference("files of a flush are left")
        self._check_checkpoints(run)
        self._replay = replay

    def _check_vectors(self, storage: Any, replay: Replay, now: int) -> None:
        everything = np.arange(KEYS)
        present = {number for number, _ in storage.groups()}
        for group in groups_of(self._seed):
            if group.number not in present:
                continue
            vectors = np.empty((KEYS, group.dim), np.float32)
            group.open_table(storage).lookup(key_at(everything), vectors.reshape(-1), False)
            wanted = replay.models[group.number].vectors(everything, now, replay.ttl)
            differ = (vectors != wanted).any(1).sum()
            if differ:
                raise Difference(f"group {group.number}: lookups find {differ} other vectors")

    def _check_dumps(self, run: Run) -> None:
        """Each file is whole; the one that was under way is the old one or the new one."""
        dumps = self._replay.dumps
        call = self._call(run.begun)
        under_way = run.begun > run.done and call.kind == "dump"
        if under_way and (self._folder / f"dump-{call.file}").exists():
            # The file is of the worker's moment, which knows of all rows that it made.
            rows = self._replay.rows(call.now)
            if self._dump_difference(call.file, rows) is None:
                dumps[call.file] = rows
        for file, rows in dumps.items():
            difference = self._dump_difference(file, rows)
            if difference is not None:
                raise Difference(f"dump-{file}, {difference}")

    def _dump_difference(self, file: int, rows: dict[int, Rows]) -> str | None:
        dumped = read_dump(self._folder / f"dump-{file}")
        for number, wanted in rows.items():
            difference = rows_difference(
                dumped.get(number), wanted, self._replay.models[number], may_lack=None
            )
            if difference is not None:
                return f"group {number}: {difference}"
        return None

    def _check_checkpoints(self, run: Run) -> None:
        """Checks that checkpoints are whole; one that was under way may be missing."""
        for number, replay in self._checkpoints.items():
            path = self._folder / f"checkpoint-{number}"
            if not path.exists():
                if number <= run.done:
                    raise Difference(f"{path.name} is missing")
                continue
            storage = self._core.Storage(str(path), None, CACHE_BYTES, False, True)
            storage.set_now(time_at(number))
            difference = Found(storage, self._folder / "found").difference(replay, time_at(number))
            storage.close()
            if difference is not None:
                raise Difference(f"{path.name}: {difference}")
        for path in self._folder.glob("checkpoint-*"):
            shutil.rmtree(path)


class Found:
    """What a storage holds, by a dump and the descriptions of its groups."""

    def __init__(self, storage: Any, path: Path) -> None:
        described = {number: json.loads(text) for number, text in storage.groups()}
        self._steps = {number: group["steps"] for number, group in described.items()}
        self._counts = {number: group["rows"] for number, group in described.items()}
        storage.dump(str(path))
        self._rows = read_dump(path)

    def difference(self, replay: Replay, now: int) -> str | None:
        """Returns in which way the storage is not as the replay; `None` if it is."""
        wanted = replay.rows(now)
        for number, model in replay.models.items():
            steps, rows = self._steps.get(number, 0), self._rows.get(number)
            if steps != model.steps:
                return f"group {number}: {steps} steps of {model.steps}"
            difference = rows_difference(rows, wanted[number], model, replay.unwritten[number])
            if difference is not None:
                return f"group {number}: {difference}"
            size = 0 if rows is None else rows.keys.size
            if not replay.ttl and self._counts.get(number, 0) != size:
                return f"group {number}: {self._counts.get(number, 0)} rows are counted of {size}"
        return None

    def settle(self, replay: Replay) -> None:
        """Removes rows from the replay that a lookup made and no flush had, if they are gone."""
        for number, model in replay.models.items():
            there = np.zeros(KEYS, bool)
            if number in self._rows:
                there[model.positions(self._rows[number].keys)] = True
            model.there &= there | ~replay.unwritten[number]
            replay.unwritten[number][:] = False


def rows_difference(
    found: DumpedRows | None, wanted: Rows, model: TableModel, may_lack: np.ndarray | None
) -> str | None:
    """Returns how rows differ from those wanted; those of the mask `may_lack` may be missing."""
    if found is None:
        empty = np.empty(0, np.uint64)
        found = DumpedRows(empty, empty, empty, np.empty((0, model.config.floats), np.float32))
    positions = model.positions(found.keys)
    missing = np.setdiff1d(wanted.positions, positions)
    if may_lack is not None:
        missing = missing[~may_lack[missing]]
    more = np.setdiff1d(positions, wanted.positions).size
    if missing.size or more or np.unique(positions).size != positions.size:
        return f"{missing.size} of {wanted.positions.size} rows are missing, {more} are too many"
    at = np.searchsorted(wanted.positions, positions)
    differ = (found.floats != wanted.floats[at]).any(1)
    differ |= (found.updates != wanted.updates[at]) | (found.times != wanted.times[at])
    return f"{differ.sum()} of {positions.size} rows differ" if differ.any() else None


def kill(
    core: ModuleType, folder: Path, durability: str, ttl: int, seed: int, kills: int
) -> tuple[collections.Counter[str], str | None]:
    """Kills workers in a new folder.

    Returns:
        How often in which call, and what was wrong, after which no more are killed.
    """
    folder.mkdir(parents=True)
    killer = Killer(core, folder, durability, ttl, seed)
    for _ in range(kills):
        try:
            print(f"{folder.name}: {killer.kill_once()}", flush=True)
        except Difference as error:
            return killer.counts, str(error)
    return killer.counts, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--durability", choices=DURABILITIES, action="append")
    parser.add_argument("--ttl", type=int, action="append", help="0: rows stay for ever")
    parser.add_argument("--seed", type=int, default=int(np.random.SeedSequence().entropy % 2**32))
    parser.add_argument("--core", default=CORE_PATH, help="the native module")
    arguments = parser.parse_args()
    core = load_core(arguments.core)
    print(f"seed {arguments.seed}")
    ways = list(itertools.product(arguments.durability or DURABILITIES, arguments.ttl or TTLS))
    counts: collections.Counter[str] = collections.Counter()
    killed, wrong = 0, []
    for seed in itertools.count(arguments.seed):
        if killed >= arguments.kills:
            break
        durability, ttl = ways[seed % len(ways)]
        name = f"{durability}-ttl-{ttl}-seed-{seed}"
        with tempfile.TemporaryDirectory(prefix="sok-kill-") as folder:
            kills = min(NEW_FOLDER_AFTER, arguments.kills - killed)
            made, difference = kill(core, Path(folder) / name, durability, ttl, seed, kills)
            killed += sum(made.values())
            counts += made
            if difference is not None:
                wrong.append(f"{name}: {difference}")
                print(wrong[-1], flush=True)
    print(f"{killed} kills: {dict(counts.most_common())}")
    print(f"{len(wrong)} folders differ from what was promised")
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
