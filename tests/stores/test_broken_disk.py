"""A disk that becomes full, or fails, costs no row that was promised, and no process."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from broken_disk import why_not

from sok_embed.tf_ops import _core

PROGRAM = Path(__file__).with_name("broken_disk.py")
RUNS = 4


@pytest.mark.parametrize("file_system", ["tmpfs", "ext4", "faulty"])
def test_a_storage_goes_on_once_its_disk_is_mended(file_system):
    if file_system == "faulty":
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc, to make system calls fail")
    elif reason := why_not(file_system):
        pytest.skip(f"cannot mount a small {file_system}: {reason}")
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    arguments = ["--runs", RUNS, "--file-system", file_system, "--seed", seed, "--calls", 40]
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments), "--core", _core.__file__],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
