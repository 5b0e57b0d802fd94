"""A device that fails is an error of the disk: no damage, and no wrong argument."""

import shutil
from pathlib import Path

import pytest
from bare_core import CORE_PATH
from broken_disk import faulty, run_python


@pytest.mark.parametrize(("work", "least"), [("dump", 6), ("open", 6), ("flush", 3)])
def test_a_device_that_fails_is_told_and_costs_no_folder(tmp_path, work, least):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    disk = tmp_path / "disk"
    disk.mkdir()
    worker = Path(__file__).with_name(f"failing_{work}_worker.py")
    done = run_python(worker, CORE_PATH, disk, **faulty(tmp_path))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least
