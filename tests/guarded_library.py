"""Compiles the device of `ops/guarded_device.cc`, for tests on machines without a GPU."""

import shutil
import subprocess
from pathlib import Path

import tensorflow as tf
from limits import HANG_S

COMPILER = shutil.which("c++")
FOLDER = Path(__file__).parent / "ops"  # of the source, and of the plugin for pytest


def compile_device(folder: Path) -> Path:
    """Returns the compiled device, which lies in a folder."""
    library = folder / "guarded_device.so"
    command = [
        str(COMPILER),
        *("-O1", "-fPIC", "-shared"),
        *tf.sysconfig.get_compile_flags(),
        str(FOLDER / "guarded_device.cc"),
        *("-o", str(library)),
        *tf.sysconfig.get_link_flags(),
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert built.returncode == 0, built.stderr
    return library
