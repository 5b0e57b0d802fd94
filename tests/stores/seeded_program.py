"""Runs the programs of this folder as tests do, on this build and with a random seed."""

import subprocess
import sys
from pathlib import Path

from limits import HANG_S
from seeds import seed_of_test

from sok_embed.binding import _core


def assert_succeeds(program: Path, *arguments: object) -> None:
    """Runs a program with a seed, which is printed, and shows what it says if it fails."""
    seed = seed_of_test()
    command = [sys.executable, program, *arguments, "--seed", seed, "--core", _core.__file__]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
