"""A device that fails while a dump is written or read is an error of the disk, and no damage."""

import shutil
from pathlib import Path

import pytest
from bare_core import CORE_PATH
from broken_disk import faulty, run_python

WORKER = Path(__file__).with_name("failing_dump_worker.py")


def test_a_device_that_fails_is_not_called_damage(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = run_python(WORKER, CORE_PATH, disk, **faulty(tmp_path))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
