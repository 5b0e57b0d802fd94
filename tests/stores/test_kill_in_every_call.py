"""Whichever call a process is killed in, its storage holds what its durability promises."""

import pytest
from kill_storage import DURABILITIES, TTLS, kill
from seeds import seed_of_test
from tiers import rounds

from sok_embed.binding import _core

KILLS = rounds(3, 6)


@pytest.mark.cover("values")
@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_kill_leaves_what_the_durability_promises(tmp_path, durability, ttl):
    seed = seed_of_test()
    _, difference = kill(_core, tmp_path / "killed", durability, ttl, seed, KILLS)
    assert difference is None, difference
