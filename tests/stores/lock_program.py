"""Random programs of opens, copies, reads, renames and second writers of one folder.

    python tests/stores/lock_program.py --programs 1000
    python tests/stores/lock_program.py --seed 17 --programs 1 --verbose

Two processes do what this one tells them, each with a storage open or none: they open the folder
for writing or reading, write, flush, close, are killed, fork children that live on, and copy and
read the files in ways that end POSIX locks. The folder is renamed, replaced by a copy, put back,
and loses its lock files. After every step there is one writer at most, whoever is to be told is
told, and each folder holds the rows that were flushed to it last.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from core_programs import command

STEPS = 30
NONE = -1  # of a process without a storage

# Answers a line for each line: a command and its arguments.
WORKER = """
import time
rows = None
def answer(words):
    global rows
    what, *rest = words
    if what == "open":
        rows = Rows(rest[0], read_only=rest[1] == "reads")
    elif what == "write":
        value = float(rest[0])
        rows.table.assign(KEYS, np.full(KEYS.size * DIM, value, np.float32))
    elif what == "look":
        return str(rows.vectors())
    elif what == "flush":
        rows.storage.flush()
    elif what == "compact":
        rows.storage.compact()
    elif what == "close":
        rows.storage.close()
        rows = None
    elif what == "give-up":
        rows = None
    elif what == "copy":
        shutil.copytree(*rest)
    elif what == "read-files":
        for name in os.listdir(rest[0]):
            if os.path.isfile(os.path.join(rest[0], name)):
                open(os.path.join(rest[0], name), "rb").read()
    elif what == "fork":
        child = os.fork()
        if child == 0:
            for number in (0, 1, 2):
                os.close(number)
            time.sleep(300)
            os._exit(0)
        return str(child)
    return "done"
for line in sys.stdin:
    try:
        said = answer(line.split())
    except Exception as error:
        said = type(error).__name__ + " " + str(error).replace("\\\\n", " ")
    print(said, flush=True)
"""


class Worker:
    """A process that answers."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            command(WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.folder: int = NONE  # the number of the folder that it has open
        self.writes = False
        self.value = 0.0  # what the rows hold in its memory

    def ask(self, *words: object) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def kill_and_start(self) -> None:
        self.kill()
        self._start()


@dataclass
class Program:
    """The folders and processes of one random program, as they should be.

    Attributes:
        place: A folder for all of it.
        random: The source of the steps.
        at: The number of the folder at the path; `None`: there is none.
        flushed: Of each folder that was ever flushed, by number, the value of its rows on disk.
        aside: Where folders are that were moved away, by number.
    """

    place: Path
    random: np.random.Generator
    workers: list[Worker]
    at: int | None = None
    flushed: dict[int, float] = field(default_factory=dict)
    aside: dict[int, Path] = field(default_factory=dict)
    children: list[int] = field(default_factory=list)
    folders: int = 0
    names: int = 0
    calls: int = 0

    def new_folder(self) -> int:
        """Returns the number of a folder that is made."""
        self.folders += 1
        return self.folders

    def new_place(self, name: str) -> Path:
        """Returns a path at which nothing is."""
        self.names += 1
        return self.place / f"{name}-{self.names}"

    @property
    def path(self) -> Path:
        return self.place / "rows"

    def writer_of(self, folder: int | None) -> Worker | None:
        """Returns the process that has a folder open for writing."""
        writers = [each for each in self.workers if each.folder == folder and each.writes]
        assert len(writers) < 2, "two processes write to one folder"
        return writers[0] if writers else None

    def step(self) -> str:
        """Makes a step. Returns what it was."""
        worker = self.workers[int(self.random.integers(len(self.workers)))]
        steps = _STEPS_OPEN if worker.folder != NONE else _STEPS_CLOSED
        step = steps[int(self.random.integers(len(steps)))]
        return f"{self.workers.index(worker)} {step.__name__} {step(self, worker)}"

    def end(self) -> None:
        """Ends the processes and looks at every folder."""
        for worker in self.workers:
            worker.kill()
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        places = dict(self.aside)
        if self.at is not None:
            places[self.at] = self.path
        reader = Worker()
        for number, place in places.items():
            if number in self.flushed:
                assert reader.ask("open", place, "writes") == "done"
                assert reader.ask("look") == str([self.flushed[number]])
                assert reader.ask("close") == "done"
        reader.kill()


def open_folder(program: Program, worker: Worker, how: str) -> str:
    said = worker.ask("open", program.path, how)
    if program.at is not None and program.writer_of(program.at) is not None:
        assert said.startswith("StorageLockedError"), said
        return "locked"
    if how == "reads" and program.at not in program.flushed:
        assert said.startswith("FileNotFoundError"), said  # no storage, or one without the group
        return "nothing"
    assert said == "done", said
    if program.at is None:
        program.at = program.new_folder()
    worker.folder, worker.writes = program.at, how == "writes"
    worker.value = program.flushed.get(program.at, 0.0)
    return "open"


def open_to_write(program: Program, worker: Worker) -> str:
    return open_folder(program, worker, "writes")


def open_to_read(program: Program, worker: Worker) -> str:
    return open_folder(program, worker, "reads")


def write(program: Program, worker: Worker) -> str:
    program.calls += 1
    said = worker.ask("write", program.calls)
    if not worker.writes:
        assert said.startswith("PermissionError"), said
    elif worker.folder == program.at:
        assert said == "done", said
        worker.value = float(program.calls)
    else:
        assert said.startswith("FileNotFoundError"), said
    return said[:40]


def look(program: Program, worker: Worker) -> str:
    """Reads what is in memory, which works wherever the folder is."""
    if worker.writes:
        assert worker.ask("look") == str([worker.value])
    return ""


def flush(program: Program, worker: Worker, how: str = "flush") -> str:
    said = worker.ask(how)
    if not worker.writes:
        assert said == "done" or said.startswith("PermissionError"), said
    elif worker.folder == program.at:
        assert said == "done", said
        program.flushed[worker.folder] = worker.value
    else:
        assert said.startswith("FileNotFoundError"), said
    return said[:40]


def compact(program: Program, worker: Worker) -> str:
    return flush(program, worker, "compact")


def close(program: Program, worker: Worker) -> str:
    said = flush(program, worker, "close")
    if said == "done":
        worker.folder, worker.writes = NONE, False
    return said


def give_up(program: Program, worker: Worker) -> str:
    """Frees the storage, which flushes it where it can. A process that cannot is ended."""
    mine = worker.folder == program.at
    if worker.writes and mine:
        program.flushed[worker.folder] = worker.value
    assert worker.ask("give-up") == "done"
    worker.folder, worker.writes = NONE, False
    return "flushed" if mine else "lost"


def kill(program: Program, worker: Worker) -> str:
    worker.kill_and_start()
    return ""


def fork(program: Program, worker: Worker) -> str:
    """A child that lives on keeps no lock."""
    if len(program.children) < 4:
        program.children.append(int(worker.ask("fork")))
    return ""


def copy(program: Program, worker: Worker) -> str:
    """Copies the folder, as a backup does, and looks at the copy."""
    if program.at is None or program.at not in program.flushed:
        return "nothing"
    target = program.new_place("copy")
    writer = program.writer_of(program.at)
    quiet = writer is None or writer.value == program.flushed[program.at]
    assert worker.ask("copy", program.path, target) == "done"
    if quiet:  # else files may change meanwhile, as RocksDB works on
        reader = Worker()
        assert reader.ask("open", target, "writes") == "done"
        assert reader.ask("look") == str([program.flushed[program.at]])
        reader.kill()
    shutil.rmtree(target)
    return ""


def read_files(program: Program, worker: Worker) -> str:
    if program.at is not None:
        assert worker.ask("read-files", program.path) == "done"
    return ""


def remove_locks(program: Program, worker: Worker) -> str:
    """Removes lock files, as somebody does who takes them for leftovers."""
    if program.at is None:
        return "nothing"
    for name in ("sok-lock", "LOCK"):
        if program.random.random() < 0.5:
            (program.path / name).unlink(missing_ok=True)
    writer = program.writer_of(program.at)
    if writer is not None:  # its next call locks the folder anew
        assert flush(program, writer) == "done"
    return ""


def move_away(program: Program, worker: Worker) -> str:
    """Renames the folder; a copy of it may take its place."""
    if program.at is None:
        return "nothing"
    place = program.new_place("aside")
    os.rename(program.path, place)
    moved, program.at = program.at, None
    program.aside[moved] = place
    writer = program.writer_of(moved)
    quiet = writer is None or writer.value == program.flushed.get(moved)
    if moved in program.flushed and quiet and program.random.random() < 0.5:
        shutil.copytree(place, program.path)
        program.at = program.new_folder()
        program.flushed[program.at] = program.flushed[moved]
        return "and copied"
    return ""


def put_back(program: Program, worker: Worker) -> str:
    """Puts a folder back that was moved away; what is at its place goes aside."""
    if not program.aside:
        return "nothing"
    if program.at is not None:
        move = program.new_place("aside")
        os.rename(program.path, move)
        program.aside[program.at] = move
    number = sorted(program.aside)[int(program.random.integers(len(program.aside)))]
    os.rename(program.aside.pop(number), program.path)
    program.at = number
    return ""


_ANYWHERE: list[Callable[[Program, Worker], str]] = [
    copy, read_files, remove_locks, move_away, put_back, put_back, kill,
]  # fmt: skip
_STEPS_CLOSED = [open_to_write, open_to_write, open_to_write, open_to_read, *_ANYWHERE]
_STEPS_OPEN = [
    write, write, write, look, look, flush, flush, compact, close, give_up, fork, *_ANYWHERE,
]  # fmt: skip


def run_program(seed: int, verbose: bool = False) -> str | None:
    """Runs one program. Returns what went wrong, with the steps before it; `None`: nothing."""
    steps: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        random = np.random.default_rng(seed)
        program = Program(Path(place), random, [Worker(), Worker()])
        try:
            for _ in range(STEPS):
                steps.append(program.step())
                if verbose:
                    print(steps[-1], flush=True)
            program.end()
        except AssertionError as error:
            for worker in program.workers:
                worker.kill()
            for child in program.children:
                os.kill(child, signal.SIGKILL)
            return f"seed {seed}: {error!r} after\n  " + "\n  ".join(steps)
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="of the first program")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    first = options.seed
    if first is None:
        first = int(np.random.SeedSequence().entropy % 2**32)
    failures = 0
    for seed in range(first, first + options.programs):
        wrong = run_program(seed, options.verbose)
        if wrong is not None:
            failures += 1
            print(wrong, flush=True)
    print(f"{options.programs} programs from seed {first}: {failures} went wrong")
    return failures


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
