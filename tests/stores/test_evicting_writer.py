"""A call that made room, and could not be made durable, says what is true of it."""

import subprocess
import sys
from pathlib import Path

import pytest
from bare_core import CORE_PATH
from limits import HANG_S

WORKER = Path(__file__).with_name("evicting_writer.py")


@pytest.mark.parametrize("call", ["assign", "update", "lookup"])
def test_a_call_and_its_eviction_are_told_of_as_one(tmp_path: Path, call: str) -> None:
    result = subprocess.run(
        [sys.executable, WORKER, CORE_PATH, tmp_path / "rows", call],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    error, before, after = result.stdout.splitlines()
    if call == "lookup":
        assert error == "none"  # what it changes goes to the journal with the next call
    else:
        assert "not on disk yet" in error and "do not repeat the call" in error, error
    assert before == after == "[2, 3] 1"
