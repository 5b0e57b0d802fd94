"""Runs short programs with the core in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

from sok_embed.binding import _core

# In front of every program: argument 1 is the core's file, and those of the caller follow.
BEGINNING = """
import importlib.util, json, os, shutil, sys
import numpy as np
spec = importlib.util.spec_from_file_location("_core", sys.argv[1])
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
KEYS = np.arange(1000, dtype=np.uint64)
DIM = 16
def opens(path, read_only=False):
    try:
        core.Storage(path, None, 1 << 20, False, read_only)
    except core.StorageLockedError:
        return "locked"
    return "open"
class Rows:
    def __init__(self, path, read_only=False):
        self.storage = core.Storage(path, None, 1 << 20, False, read_only)
        self.table = self.storage.open_table(
            json.dumps({"dim": DIM, "initializer": "constant", "initializer_a": 0.0, "seed": 1}))
    def train(self):
        ones = np.ones(KEYS.size * DIM, np.float32)
        self.table.update(KEYS, ones, core.Optimizer("kv_sgd", [("gamma", 1.0)]), False)
    def vectors(self):
        out = np.empty(KEYS.size * DIM, np.float32)
        self.table.lookup(KEYS, out, False)
        return np.unique(out).tolist()
"""


def command(program: str, *arguments: object) -> list[str]:
    """Returns the command of a program in Python, which has the names of BEGINNING."""
    whole = BEGINNING + textwrap.dedent(program)
    return [sys.executable, "-c", whole, _core.__file__, *map(str, arguments)]


def run(
    program: str,
    *arguments: object,
    within: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> str:
    """Runs a program to its end, which must be a good one, and returns what it prints.

    Args:
        program: In Python.
        arguments: From `sys.argv[2]` on.
        within: A command in front of the whole, such as `unshare`.
        environment: Variables beside those of this process.
    """
    done = subprocess.run(
        [*within, *command(program, *arguments)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()
