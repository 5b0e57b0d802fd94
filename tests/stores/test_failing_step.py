"""Whichever system call fails: calls of one step happen or do not; a table knows its rows."""

import shutil
from pathlib import Path

import pytest
from broken_disk import faulty, run_python
from kill_storage import DURABILITIES

from sok_embed.binding import _core

WORKER = Path(__file__).with_name("failing_step_worker.py")
BURIALS = Path(__file__).with_name("failing_burial_worker.py")


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    ("kind", "durability"),
    [*((kind, way) for kind in ("load", "reset") for way in DURABILITIES), ("open", "update")],
)
def test_an_error_of_a_call_with_one_step_means_that_it_has_not_happened(
    tmp_path, kind, durability
):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    (tmp_path / "disk").mkdir()
    done = run_python(WORKER, _core.__file__, tmp_path, kind, durability, **faulty(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.cover(1)
@pytest.mark.parametrize("way", ["assign", "look_up", "update"])
def test_rows_that_expired_and_live_again_are_counted_though_the_disk_fails(tmp_path, way):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    (tmp_path / "disk").mkdir()
    done = run_python(BURIALS, _core.__file__, tmp_path, way, **faulty(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
