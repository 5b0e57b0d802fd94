"""A failure of power leaves what durabilities promise, on a disk that has what was synced alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from core_programs import command, run
from killed_process import kill_and_read
from seeds import seed_of_test
from tiers import rounds

LIBRARY = Path(__file__).with_name("surviving_files.c")
FAILURES = rounds(3, 6, "SOK_POWER_FAILURES")
KEYS = 40
TOUCHED = 9

# Call number i of a group sets the keys i, i + 1, ... to i + 1, each eighth call removes them.
TRAIN = """
import threading
folder, durability, groups = sys.argv[2], sys.argv[3], int(sys.argv[4])
storage = core.Storage(
    folder, None, 1 << 20, durability != "checkpoint", False, sync=durability == "sync")
tables = [storage.open_table(json.dumps(
    {"group": group, "dim": 2, "initializer": "constant", "initializer_a": 0.0}))
    for group in range(groups)]
storage.flush()
os.write(1, b"opened\\n")
def work(group):
    for i in range(1_000_000):
        keys = np.arange(i, i + 9, dtype=np.uint64) % 40
        if i % 8 == 7:
            tables[group].remove(keys)
        else:
            tables[group].assign(keys, np.full(18, i + 1, np.float32))
        os.write(1, b"call %d %d\\n" % (group, i))
        if group == 0 and i % 25 == 24:
            os.write(1, b"flushing 0 %d\\n" % i)
            storage.flush()
            os.write(1, b"flushed 0 %d\\n" % i)
threads = [threading.Thread(target=work, args=(group,)) for group in range(groups)]
for thread in threads:
    thread.start()
"""
READ = """
rows = core.Storage(sys.argv[2], None, 1 << 20, False, sys.argv[4] == "reads")
for group in range(int(sys.argv[3])):
    table = rows.open_table(json.dumps(
        {"group": group, "dim": 2, "initializer": "constant", "initializer_a": 0.0}))
    out = np.empty(80, np.float32)
    table.lookup(np.arange(40, dtype=np.uint64), out, False)
    print(*out[::2].astype(int))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to see what is brought to the disk")
    built = tmp_path_factory.mktemp("library") / "surviving_files.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", built, LIBRARY], check=True)
    return built


def states(calls: int) -> np.ndarray:
    """Returns the values of the keys after 0, 1, ... calls: int [calls + 1, KEYS]."""
    rows = np.zeros((calls + 1, KEYS), int)
    for i in range(calls):
        rows[i + 1] = rows[i]
        rows[i + 1, np.arange(i, i + TOUCHED) % KEYS] = 0 if i % 8 == 7 else i + 1
    return rows


def surviving(survives: Path, folder: Path) -> None:
    """Makes a folder of what survives."""
    folder.mkdir()
    for line in (survives / "names").read_text().splitlines():
        inode, name = line.split(" ", 1)
        if (survives / inode).exists():
            shutil.copyfile(survives / inode, folder / name)
        else:
            (folder / name).touch()


def life(
    library: Path, place: Path, program: str, seconds: float, *arguments: object
) -> list[list[str]]:
    """Has a program work for a while after it says "opened", and the power fail.

    Returns:
        The lines that it has printed since, by words. What survives is in "after" in `place`.
    """
    (place / "survives").mkdir(parents=True)
    process = subprocess.Popen(
        command(program, place / "rows", *arguments),
        env={
            **os.environ,
            "LD_PRELOAD": str(library),
            "SOK_DEVICE": str(place / "rows"),
            "SOK_SURVIVES": str(place / "survives"),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert line == "opened\n", process.communicate()[1]
    time.sleep(seconds)
    rest, errors = kill_and_read(process)
    assert process.returncode == -signal.SIGKILL, errors
    surviving(place / "survives", place / "after")
    whole = rest if rest.endswith("\n") else rest[: rest.rfind("\n") + 1]
    return [line.split() for line in whole.splitlines()]


def after_the_failure(library: Path, place: Path) -> dict[str, str]:
    """Returns the environment of a program on the machine that has been started again."""
    (place / "boot_id").write_text("another start")
    return {"LD_PRELOAD": str(library), "SOK_BOOT_ID": str(place / "boot_id")}


def last(lines: list[list[str]], what: str, group: int) -> int:
    """Returns after how many calls of the group the process has said this last."""
    said = [int(line[2]) + 1 for line in lines if line[0] == what and line[1] == str(group)]
    return max(said, default=0)


@pytest.mark.cover("values")
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("durability", ["checkpoint", "update", "sync"])
def test_a_failure_of_power_leaves_what_the_durability_promises(
    tmp_path, library, durability, groups
):
    random = np.random.default_rng(seed_of_test())
    for failure in range(FAILURES):
        place = tmp_path / str(failure)
        lines = life(library, place, TRAIN, random.uniform(0.05, 0.6), durability, groups)
        how = "reads" if failure % 2 else "writes"
        environment = after_the_failure(library, place)
        found = run(READ, place / "after", groups, how, environment=environment).splitlines()
        for group, line in enumerate(found):
            returned = last(lines, "call", group)
            there = states(returned + 1)
            first = {
                "checkpoint": last(lines, "flushed", group),
                "update": last(lines, "flushed", group),
                "sync": returned,
            }[durability]
            # With "update" the disk may have more of the calls since the flush, each as a whole.
            possible = there[first:]
            if durability == "checkpoint" and group == 0:
                flushing = last(lines, "flushing", group)
                possible = there[[first, flushing]]
            values = np.array(line.split(), int)
            assert (possible == values).all(1).any(), (
                f"group {group} after {returned} calls, the flush of {first}: {values}"
            )
        shutil.rmtree(place)


# About 20 MB, which a flush hands over in files; see kBatchBytes in storage.cc.
FLUSH = """
storage = core.Storage(sys.argv[2], None, 1 << 22, False, False)
table = storage.open_table(json.dumps(
    {"dim": 128, "initializer": "constant", "initializer_a": 0.0}))
keys = np.arange(40_000, dtype=np.uint64)
for value in (1, 2):
    table.assign(keys, np.full(keys.size * 128, value, np.float32))
    storage.flush()
os.write(1, b"opened\\n")
table.assign(keys, np.full(keys.size * 128, 3, np.float32))
sys.stdin.read()
"""


def test_a_large_flush_survives_a_failure_of_power(tmp_path, library):
    lines = life(library, tmp_path, FLUSH, 0.1)
    assert lines == []
    found = run(
        """
        storage = core.Storage(sys.argv[2], None, 1 << 22, False, False)
        table = storage.open_table(json.dumps(
            {"dim": 128, "initializer": "constant", "initializer_a": 0.0}))
        out = np.empty(40_000 * 128, np.float32)
        table.lookup(np.arange(40_000, dtype=np.uint64), out, False)
        print(*np.unique(out))
        """,
        tmp_path / "after",
        environment=after_the_failure(library, tmp_path),
    )
    assert found == "2.0"


SYNCS = """
import ctypes, threading
library = ctypes.CDLL(os.environ["LD_PRELOAD"])
folder, sync, groups, calls = sys.argv[2], sys.argv[3] == "sync", int(sys.argv[4]), 20
storage = core.Storage(folder, None, 1 << 20, True, False, sync=sync)
tables = [storage.open_table(json.dumps(
    {"group": group, "dim": 2, "initializer": "constant", "initializer_a": 0.0}))
    for group in range(groups)]
tables[0].assign(np.arange(3, dtype=np.uint64), np.ones(6, np.float32))
storage.flush()
tables[0].assign(np.arange(3, dtype=np.uint64), np.ones(6, np.float32))
library.break_files(5, ctypes.c_long(1 << 40), 1, 0, 2)
def work(table):
    for i in range(calls):
        table.assign(np.arange(3, dtype=np.uint64), np.ones(6, np.float32))
threads = [threading.Thread(target=work, args=(table,)) for table in tables]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(library.calls_on_files())
library.mend_files()
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to count system calls")
    built = tmp_path_factory.mktemp("library") / "faulty_files.so"
    source = Path(__file__).with_name("faulty_files.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


def test_each_call_is_brought_to_the_disk_and_calls_at_once_together(tmp_path, faulty):
    def syncs(name: str, durability: str, groups: int) -> int:
        folder = tmp_path / name
        environment = {"LD_PRELOAD": str(faulty), "SOK_FAULTY": str(folder)}
        return int(run(SYNCS, folder, durability, groups, environment=environment))

    assert syncs("none", "update", 1) == 0
    assert syncs("one", "sync", 1) == 20
    assert 20 <= syncs("four", "sync", 4) <= 80


FAILS = """
import ctypes
library = ctypes.CDLL(os.environ["LD_PRELOAD"])
storage = core.Storage(sys.argv[2], None, 1 << 20, True, False, sync=True)
table = storage.open_table(json.dumps(
    {"dim": 2, "initializer": "constant", "initializer_a": 0.0}))
keys = np.arange(3, dtype=np.uint64)
table.assign(keys, np.full(6, 1, np.float32))
library.break_files(5, ctypes.c_long(0), 1, 0, 2)
try:
    table.assign(keys, np.full(6, 2, np.float32))
except core.StorageError as error:
    print(error)
library.mend_files()
# What the disk has refused once is not asked of it again, but flushed.
table.assign(keys, np.full(6, 3, np.float32))
shutil.copytree(sys.argv[2], sys.argv[3])
"""


def test_a_call_that_the_disk_refuses_says_so_and_the_next_one_flushes(tmp_path, faulty):
    folder, copy = tmp_path / "rows", tmp_path / "copy"
    environment = {"LD_PRELOAD": str(faulty), "SOK_FAULTY": str(folder)}
    said = run(FAILS, folder, copy, environment=environment)
    assert "not on disk yet" in said
    assert set(run(READ, copy, 1, "writes").split()) == {"3", "0"}
