"""A system call that fails in a call on a storage costs no row, whichever it is."""

import shutil
from pathlib import Path

import pytest
from kill_storage import DURABILITIES
from seeded_program import assert_succeeds

PROGRAM = Path(__file__).with_name("failing_call.py")


@pytest.mark.cover(1)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_failed_system_call_is_told_or_does_no_harm(durability):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    assert_succeeds(PROGRAM, "--durability", durability, "--runs", 1)
