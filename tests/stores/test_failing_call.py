"""A system call that fails in a call on a storage costs no row, whichever it is."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kill_storage import DURABILITIES

from sok_embed.tf_ops import _core

PROGRAM = Path(__file__).with_name("failing_call.py")


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_failed_system_call_is_told_or_does_no_harm(durability):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to make system calls fail")
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    arguments = ["--durability", durability, "--runs", 1, "--seed", seed]
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments), "--core", _core.__file__],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
