"""Where memory ends within a call on a storage, it has happened as a whole or not at all."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from failing_memory_worker import BEFORE, KINDS, rows_of, value_after
from kill_storage import DURABILITIES
from limits import HANG_S
from tiers import rounds

from sok_embed.binding import _core

WORKER = Path(__file__).with_name("failing_memory_worker.py")
SHORT_WORKER = Path(__file__).with_name("short_memory_worker.py")
ENDED_WORKER = Path(__file__).with_name("ended_memory_worker.py")
READ_WORKER = Path(__file__).with_name("failing_read_worker.py")
LIBRARY = Path(__file__).with_name("failing_memory.c")
# `make test-all` has each allocation fail by itself, and `make test` each 23rd one.
SHORT_KINDS = ("load", "assign")
ENDED_KINDS = ("update", "assign", "remove", "flush", "dump")
STRIDE = rounds(23, 1)


def turn_of(kinds, kind, durability):
    """Returns a number by which the types of rows go round."""
    return len(DURABILITIES) * kinds.index(kind) + DURABILITIES.index(durability)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make allocations fail")
    built = tmp_path_factory.mktemp("library") / "failing_memory.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(built), str(LIBRARY)]
    subprocess.run(command, check=True)
    return built


def life(library, folder, durability, kind, turn, after):
    """Has one allocation fail. Returns how many there were, and what the process says of rows."""
    folder.mkdir()
    command = [sys.executable, WORKER, _core.__file__, folder, durability, kind, turn, after]
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, f"after {after}: {done.stdout}{done.stderr}"
    calls, there = done.stdout.split()
    return int(calls), there


@pytest.mark.cover("values")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_before_or_of_after(library, tmp_path, durability, kind):
    turn = turn_of(KINDS, kind, durability)
    rows = rows_of(turn)
    for after in itertools.count(step=STRIDE):
        folder = tmp_path / str(after)
        calls, there = life(library, folder, durability, kind, turn, after)
        storage = _core.Storage(str(folder / "rows"), None, 1 << 20, False, True)
        found = rows.value_of(rows.config.open_table(storage))
        storage.close()
        if there == "stuck":  # only what was flushed need be there
            emptied = kind in ("survey", "flush") and durability == "checkpoint"
            assert found in {BEFORE, value_after(kind), 0.0 if emptied else BEFORE}, f"{after}"
        else:
            assert found == float(there), f"after {after}"
        shutil.rmtree(folder)
        if calls <= after:
            break
    print(f"{after // STRIDE} allocations failed")


@pytest.mark.cover("values")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", SHORT_KINDS)
def test_small_allocations_that_fail_leave_what_a_kill_would(library, tmp_path, durability, kind):
    turn = turn_of(SHORT_KINDS, kind, durability)
    run_worker(library, SHORT_WORKER, tmp_path, durability, kind, turn)


@pytest.mark.cover(3)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", ENDED_KINDS)
def test_errors_of_ended_memory_say_whether_rows_changed(library, tmp_path, durability, kind):
    turn = turn_of(ENDED_KINDS, kind, durability)
    run_worker(library, ENDED_WORKER, tmp_path, durability, kind, turn)


def test_reads_whose_allocations_fail_raise_or_read_what_is_there(library, tmp_path):
    raised = int(run_worker(library, READ_WORKER, tmp_path))
    assert raised > 1_000  # 2,400 reads are tried


def run_worker(library, worker, tmp_path, *arguments):
    command = [sys.executable, worker, _core.__file__, tmp_path / "lives", *arguments]
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, f"{done.stdout[-200:]}{done.stderr[-2000:]}"
    return done.stdout
