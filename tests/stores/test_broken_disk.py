"""A disk that becomes full, or fails, costs no row that was promised, and no process."""

import shutil
from pathlib import Path

import pytest
from broken_disk import why_not
from seeded_program import assert_succeeds
from tiers import long

PROGRAM = Path(__file__).with_name("broken_disk.py")
RUNS = 4


@pytest.mark.parametrize("file_system", [long("tmpfs"), long("ext4"), "faulty"])
def test_a_storage_goes_on_once_its_disk_is_mended(file_system):
    if file_system == "faulty":
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc, to make system calls fail")
    elif reason := why_not(file_system):
        pytest.skip(f"cannot mount a small {file_system}: {reason}")
    assert_succeeds(PROGRAM, "--runs", RUNS, "--file-system", file_system, "--calls", 40)
