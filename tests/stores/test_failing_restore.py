"""A restore of a table leaves the old rows or the new ones, whichever system call fails in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from broken_disk import faulty
from kill_storage import DURABILITIES
from limits import HANG_S
from tiers import rounds

# Each takes two short lives of a table: more for a long run.
PLACES = rounds(4, 8, "SOK_RESTORE_PLACES")


@pytest.mark.cover(1)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_failed_restore_leaves_the_rows_of_one(tmp_path, durability):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("failing_restorer.py")]
        + [tmp_path / "disk" / "rows", durability, str(PLACES)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **faulty(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
