"""Whatever happens to a folder, it has one writer at most, and keeps what was flushed to it."""

from lock_program import run_program
from seeds import seed_of_test
from tiers import rounds

PROGRAMS = rounds(3, 6, "SOK_LOCK_PROGRAMS")


def test_random_programs_of_two_processes_lose_no_row():
    first = seed_of_test()
    for seed in range(first, first + PROGRAMS):
        assert run_program(seed) is None
