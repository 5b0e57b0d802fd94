"""A damaged copy of a storage has all of its rows, or says that it is damaged."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from seeds import seed_of_test
from tiers import few_or_many
from whole_folders import rows_after, rows_in

from sok_embed.binding import _core

PROGRAM = Path(__file__).with_name("whole_folders.py")
CALLS = 37
DURABILITIES = ("checkpoint", "update", "sync")
STATES = ("killed", "closed", "copied")
# The kinds of files, and what their names are.
KINDS = {
    "log": r"\d+\.log",
    "journal": r"sok-journal-\d+",
    "manifest": r"MANIFEST-\d+",
    "current": "CURRENT",
    "table": r"\d+\.sst",
    "options": r"OPTIONS-\d+",
    "note": "sok-written",
    "keys": "sok-keys",
    "mark": r"sok-closed-.*",
    "other": "IDENTITY|LOCK|LOG|sok-lock",
}
PAGE = 4096


def make(folder: Path, durability: str, state: str) -> None:
    """Makes a folder that a process has left: killed or closed, or a copy by `checkpoint`."""
    process = subprocess.Popen(
        [sys.executable, PROGRAM, folder, durability, "1", str(CALLS), "12"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if line == "done\n":
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    if state == "killed":
        return
    storage = _core.Storage(str(folder), None, 1 << 24, False, state == "copied")
    if state == "copied":
        # A reader's copy has the journal's files, too.
        storage.checkpoint(f"{folder}-copy")
    storage.close()
    if state == "copied":
        shutil.rmtree(folder)
        Path(f"{folder}-copy").rename(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[tuple[str, str], Path]:
    made = {}
    for durability in DURABILITIES:
        for state in STATES:
            made[durability, state] = tmp_path_factory.mktemp("whole") / "rows"
            make(made[durability, state], durability, state)
    return made


def copy(whole: Path, to: Path) -> None:
    """Copies a folder. Its tables, which nobody changes, are the same files."""
    to.mkdir()
    for path in whole.iterdir():
        if path.suffix == ".sst":
            os.link(path, to / path.name)
        else:
            shutil.copyfile(path, to / path.name)


def damage(path: Path, random: np.random.Generator) -> str:
    """Damages a file, and returns how."""
    content = bytearray(path.read_bytes())
    path.unlink()  # other folders may have the same file
    how = str(random.choice(["bit", "page", "cut", "removed"]))
    if how == "removed" or not content:
        return "removed"
    at = int(random.integers(len(content)))
    if how == "bit":
        content[at] ^= 1 << int(random.integers(8))
    elif how == "page":
        at -= at % PAGE
        content[at : at + PAGE] = bytes(len(content[at : at + PAGE]))
    else:
        del content[at:]
    path.write_bytes(content)
    return f"{how} at byte {at}"


@pytest.mark.parametrize("copies", few_or_many(24, 2000))
def test_a_damaged_copy_is_whole_or_says_that_it_is_damaged(tmp_path, folders, copies):
    random = np.random.default_rng(seed_of_test())
    whole = rows_after(CALLS)
    outcomes: Counter[tuple[str, str]] = Counter()
    wrong = []
    for number in range(copies):
        key = list(folders)[number % len(folders)]
        folder = tmp_path / f"copy-{number}"
        copy(folders[key], folder)
        names = sorted(path.name for path in folder.iterdir())
        kinds = [kind for kind in KINDS if any(re.fullmatch(KINDS[kind], name) for name in names)]
        kind = str(random.choice(kinds))
        name = str(random.choice([name for name in names if re.fullmatch(KINDS[kind], name)]))
        how = damage(folder / name, random)
        read_only = bool(random.integers(2))
        what = f"{key}, {name}: {how}, read_only={read_only}"
        try:
            found = rows_in(_core, folder, read_only)
        except _core.CorruptionError as error:
            outcomes[kind, "error"] += 1
            if str(folder) not in str(error):
                wrong.append(f"{what}: the error does not name the folder: {error}")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        else:
            outcomes[kind, "whole"] += 1
            if older := int((found != whole).sum()):
                wrong.append(f"{what}: {older} rows are older, and no error says so")
        shutil.rmtree(folder)
    print(*sorted(outcomes.items()), sep="\n")
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} of {copies} copies:", *wrong]))


@pytest.mark.cover("values")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_whole_copy_has_all_rows(tmp_path, folders, durability, state):
    for read_only in (True, False):
        folder = tmp_path / str(read_only)
        copy(folders[durability, state], folder)
        np.testing.assert_array_equal(rows_in(_core, folder, read_only), rows_after(CALLS))
