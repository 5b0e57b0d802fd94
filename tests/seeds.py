"""Seeds of random tests: the same ones in each run, unless others are asked for."""

from __future__ import annotations

import os
import random

VARIABLE = "SOK_TEST_SEED"


def seed_of_test() -> int:
    """Returns the seed of a random test, and prints it.

    It is what the environment variable SOK_TEST_SEED says, or 1. `SOK_TEST_SEED=random` has each
    test draw one, for long searches.
    """
    said = os.environ.get(VARIABLE, "1")
    seed = random.SystemRandom().randrange(2**32) if said == "random" else int(said)
    print(f"{VARIABLE}={seed}")
    return seed
