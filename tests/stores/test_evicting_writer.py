"""A call that could make room and nothing else says so: it can be repeated."""

import subprocess
import sys
from pathlib import Path

import pytest
from bare_core import CORE_PATH

WORKER = Path(__file__).with_name("evicting_writer.py")


@pytest.mark.parametrize("call", ["assign", "update", "lookup"])
def test_a_call_is_not_said_to_have_happened_where_only_its_eviction_has(
    tmp_path: Path, call: str
) -> None:
    result = subprocess.run(
        [sys.executable, WORKER, CORE_PATH, tmp_path / "rows", call],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    error, before, after = result.stdout.splitlines()
    assert error != "none"
    assert "do not repeat" not in error, error
    assert before == "[2] 1"
    assert after == "[2, 3] 1"
