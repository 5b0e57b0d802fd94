"""A plain copy of a storage that is in use is whole, or says that it is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from killed_process import kill_and_read
from seeds import seed_of_test
from tiers import few_or_many
from whole_folders import keys_of, rows_after, rows_in

from sok_embed.binding import _core

PROGRAM = Path(__file__).with_name("whole_folders.py")
CALLS = 1_000_000


class Trainer:
    """A process that writes a storage until it is killed, and says which call has returned."""

    def __init__(self, folder: Path, durability: str, reopen: int) -> None:
        self.returned = 0
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, folder, durability, "1", str(CALLS), str(reopen)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.returned = int(line)

    def wait_for(self, call: int) -> None:
        while self.returned < call:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.001)

    def kill(self) -> None:
        self.process.kill()
        self._reader.join()
        kill_and_read(self.process)


def copy_in_order(folder: Path, to: Path, random: np.random.Generator) -> str:
    """Copies the files that there are at the beginning, in an order, and waits between them."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    order = str(
        random.choice(["ascending", "descending", "random", "manifest first", "logs first"])
    )
    if order == "descending":
        names.reverse()
    elif order != "ascending":
        random.shuffle(names)
    if order == "manifest first":
        names.sort(key=lambda name: not name.startswith(("MANIFEST", "CURRENT", "sok-")))
    elif order == "logs first":
        names.sort(key=lambda name: not name.endswith(".log"))
    pause = float(random.choice([0, 0.002, 0.01]))
    listed_again = bool(random.integers(2))
    to.mkdir()
    for name in names:
        if (folder / name).exists():
            _copy_file(folder / name, to)
        time.sleep(pause)
    if listed_again:  # as by rsync, which lists a folder again
        for path in folder.iterdir():
            if path.is_file() and not (to / path.name).exists():
                _copy_file(path, to)
    return f"{order}, {pause} s between files, listed again: {listed_again}"


def _copy_file(path: Path, to: Path) -> None:
    try:
        shutil.copyfile(path, to / path.name)
    except FileNotFoundError:  # it has gone meanwhile
        (to / path.name).unlink(missing_ok=True)


def copy(folder: Path, to: Path, random: np.random.Generator) -> str:
    tool = str(random.choice(["order", "order", "cp", "tar", "rsync"]))
    if tool == "order" or shutil.which(tool) is None:
        return copy_in_order(folder, to, random)
    to.mkdir()
    commands = {
        "cp": f"cp -r {folder}/. {to}",
        "tar": f"tar -C {folder} -cf - . | tar -C {to} -xf -",
        "rsync": f"rsync -a {folder}/ {to}",
    }
    # Files go meanwhile, which these say by their exit code.
    subprocess.run(commands[tool], shell=True, capture_output=True)
    return tool


def is_of_one_moment(found: np.ndarray, first: int, last: int) -> bool:
    """Returns whether rows are those after one of the calls [first, last]."""
    rows = rows_after(first)
    for call in range(first + 1, last + 1):
        if (found == rows).all():
            return True
        rows[keys_of(call)] = call
    return bool((found == rows).all())


@pytest.mark.parametrize("copies", few_or_many(4, 100))
@pytest.mark.parametrize("durability", ["checkpoint", "update"])
def test_a_copy_of_a_storage_in_use_is_whole_or_says_that_it_is_not(tmp_path, durability, copies):
    random = np.random.default_rng(seed_of_test())
    outcomes: Counter[str] = Counter()
    wrong = []
    trainer = Trainer(tmp_path / "rows", durability, reopen=25)
    try:
        trainer.wait_for(40)
        for _ in range(copies):
            to = tmp_path / "copy"
            first = trainer.returned
            how = copy(tmp_path / "rows", to, random)
            read_only = bool(random.integers(2))
            try:
                found = rows_in(_core, to, read_only)
            except _core.CorruptionError as error:
                outcomes["refused"] += 1
                again = str(error)
                if not read_only:  # it goes on saying so
                    with pytest.raises(_core.CorruptionError):
                        rows_in(_core, to, read_only=True)
                assert str(to) in again
                assert "journal" not in again or "only checkpoint(path) makes one" in again
            except Exception as error:
                wrong.append(f"{how}, read_only={read_only}: {type(error).__name__}: {error}")
            else:
                outcomes["whole"] += 1
                last = trainer.returned + 2  # it may have done more than it has said
                if not is_of_one_moment(found, first, last):
                    wrong.append(
                        f"{how}, read_only={read_only}: it has rows of call {int(found.max())}, "
                        f"and was copied from call {first} to {last}"
                    )
            shutil.rmtree(to)
    finally:
        trainer.kill()
    print(outcomes)
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} of {copies} copies:", *wrong]))
