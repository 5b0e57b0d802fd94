"""Kills a program that saves one version after another, for tests of files that it replaces."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import forked

KILLS = 5


def kill_again_and_again(program: str, folder: Path, found: Callable[[], float]) -> None:
    """Checks that each kill leaves a whole version, and one that had been saved.

    Args:
        program: It is given the first version, and prints each before it saves it.
        folder: Where it runs.
        found: Returns the version that is there after a kill; raises for a part of one.
    """
    seed = random.randrange(2**32)
    print("seed", seed)
    waits = random.Random(seed)
    last = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            forked.program(program, last + 1), cwd=folder, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        # The line of a version comes before it is saved, so the one before has been saved.
        printed = [int(process.stdout.readline()) for _ in range(2)]
        time.sleep(waits.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        printed += [int(line) for line in process.stdout.read().split()]
        process.wait()
        assert printed[-1] - 1 <= found() <= printed[-1]
        last = printed[-1]
