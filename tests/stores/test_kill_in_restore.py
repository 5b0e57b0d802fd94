"""A table whose rows are all replaced holds the old ones or the new ones after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from dump_rows import read_dump
from killed_process import kill_and_read
from killed_restorer import DIM, contents_of
from seeds import seed_of_test
from tiers import rounds

from sok_embed import kv

# A process takes seconds to start: more for a long run.
KILLS = rounds(1, 2, "SOK_RESTORE_KILLS")
RESTORER = Path(__file__).with_name("killed_restorer.py")


def life(folder: Path, durability: str, seed: int, first: int, random) -> dict[str, int]:
    """Kills a restorer. Returns the last number of which it said each thing."""
    process = subprocess.Popen(
        [sys.executable, str(RESTORER), str(folder), durability, str(seed), str(first)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    kind = random.choice(["begin", "flushing"], p=[0.75, 0.25])
    wait, lines = random.integers(1, 5), []
    for line in process.stdout:
        lines.append(line.split())
        wait -= lines[-1][0] == kind
        if wait == 0:
            break
    time.sleep(random.uniform(0, 0.03))
    rest, errors = kill_and_read(process)
    assert process.returncode == -signal.SIGKILL, errors
    lines += [line.split() for line in rest.splitlines()]
    said = dict.fromkeys(("done", "begin", "flushing", "flushed"), first - 1)
    return said | {what: int(number) for what, number in lines}


def assert_rows(folder: Path, dump: Path, seed: int, numbers: set[int]) -> int:
    """All rows are those of one of the restores. Returns which."""
    with kv.Storage(folder, read_only=True) as storage:
        groups = {group.number: group for group in storage.groups()}
        number = groups[0].steps if groups else 0
        assert number in numbers
        storage.dump(dump)
    found = read_dump(dump).get(0)
    if number == 0:
        assert found is None
        return 0
    keys, floats, updates = contents_of(seed, number)
    order = np.argsort(keys.view(np.uint64))
    np.testing.assert_array_equal(found.keys, keys.view(np.uint64)[order])
    assert found.floats.shape[1] == 2 * DIM
    np.testing.assert_array_equal(found.floats, floats[order])
    np.testing.assert_array_equal(found.updates, updates[order])
    assert groups[0].rows == keys.size
    return number


@pytest.mark.cover(1)
@pytest.mark.parametrize("durability", ["checkpoint", "update"])
def test_a_kill_leaves_the_rows_of_one_restore(tmp_path, durability):
    seed = seed_of_test()
    random = np.random.default_rng(seed)
    number = 0
    for _ in range(KILLS):
        said = life(tmp_path / "rows", durability, seed, number + 1, random)
        if durability == "update":
            numbers = {max(number, said["done"]), max(number, said["begin"])}
        else:
            # A restore begins with a flush of what was there, so that it can go back to that. One
            # that was killed before may leave what the restore before it has flushed.
            flushes = (said["flushing"], said["begin"] - 1, said["begin"] - 2)
            numbers = {max(number, said["flushed"], flush) for flush in flushes}
        number = assert_rows(tmp_path / "rows", tmp_path / "dump", seed, numbers)
        print(f"{said}: restore {number} is there")
