"""Random programs of training: see `random_training`. Longer runs are made by its command."""

import numpy as np
import pytest
import random_training
from tiers import long


# The last two have a new optimizer of v1 in their midst.
@pytest.mark.cover(2)
@pytest.mark.parametrize("seed", [*range(8), 32, 143, *map(long, range(8, 24))])
def test_a_random_program_trains_a_table_as_a_dense_weight(seed):
    case = random_training.Case.draw(np.random.default_rng(seed))
    print(f"seed {seed}: {case}")
    assert random_training.difference(case, seed) <= random_training.TOLERANCE
