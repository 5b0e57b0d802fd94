"""Whichever call a process is killed in, its storage holds what its durability promises."""

import numpy as np
import pytest
from kill_storage import DURABILITIES, TTLS, kill

from sok_embed.kv import _core

KILLS = 6


@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_kill_leaves_what_the_durability_promises(tmp_path, durability, ttl):
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    _, difference = kill(_core, tmp_path / "killed", durability, ttl, seed, KILLS)
    assert difference is None, difference
