"""The memory that a key takes, measured by the benchmark in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from limits import HANG_S

MEMORY = Path(__file__).resolve().parents[2] / "benchmarks/memory.py"


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MEMORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)


@pytest.mark.long
def test_a_key_takes_at_most_1_4_times_its_bytes_also_just_after_growth():
    done = measure("--keys", "1000000", "--dim", "16", "--optimizer", "adam", "--check")
    assert done.stdout, done.stderr[-2000:]
    case = json.loads(done.stdout)
    # A key takes so many bytes at least: int64 key, embedding, and Adam's two slots.
    assert case["bytes_of_key_row_slots"] == 8 + 4 * 16 * 3
    assert case["ratio"] <= 1.4
    assert case["after_growth"]["ratio"] <= 1.4
    assert done.returncode == 0


@pytest.mark.long
def test_a_target_that_is_missed_is_an_exit_status_of_1():
    # In rows of 4 bytes the index and the counters weigh more than what is kept.
    arguments = ("--keys", "100000", "--dim", "1", "--optimizer", "sgd")
    assert measure(*arguments).returncode == 0
    assert measure(*arguments, "--check").returncode == 1
