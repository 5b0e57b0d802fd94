"""A checkpoint that fails leaves nothing where it was to be, whichever system call it was."""

import shutil
from pathlib import Path

import pytest
from bare_core import CORE_PATH
from broken_disk import faulty, run_python

WORKER = Path(__file__).with_name("failing_checkpoint_worker.py")


@pytest.mark.cover(1)
@pytest.mark.parametrize("who", ["writer", "reader"])
def test_a_checkpoint_that_fails_leaves_nothing(tmp_path, who):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = run_python(WORKER, CORE_PATH, disk, who, **faulty(tmp_path))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
