"""Whatever happens to a folder, it has one writer at most, and keeps what was flushed to it."""

import os

import numpy as np
from lock_program import run_program

PROGRAMS = int(os.environ.get("SOK_LOCK_PROGRAMS", "6"))


def test_random_programs_of_two_processes_lose_no_row():
    first = int(np.random.SeedSequence().entropy % 2**32)
    for seed in range(first, first + PROGRAMS):
        assert run_program(seed) is None
