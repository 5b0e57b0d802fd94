"""How many keys the sketch promotes that were not seen often enough."""

import numpy as np
import pytest
from adaptive_reference import make
from tiers import long

KEYS = 1_000_000
DRAWS = 10_000_000
BATCH = 65_536
BUCKETS = 50_000


@pytest.fixture(scope="module")
def stream():
    """Draws of keys, the one of rank r with a probability of r^-1.05."""
    seed = 17
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    shares = np.cumsum(np.arange(1, KEYS + 1) ** -1.05)
    ranks = np.searchsorted(shares / shares[-1], random.random(DRAWS)).clip(max=KEYS - 1)
    keys = random.permutation(KEYS)[ranks]
    return keys * 2654435761 - 2**50, np.bincount(keys, minlength=KEYS)


@pytest.mark.parametrize("promote_after", [2, long(5), 10])
def test_of_a_million_zipf_keys_less_than_one_percent_is_promoted_too_early(stream, promote_after):
    keys, counts = stream
    layer = make(
        output_dim=1,
        static_buckets=BUCKETS,
        promote_after=promote_after,
        sketch_capacity=KEYS,
    )
    layer.build()
    for first in range(0, DRAWS, BATCH):
        layer(keys[first : first + BATCH], training=True)
    promoted = np.zeros(KEYS, bool)
    promoted[(layer.table.export()[0] + 2**50) // 2654435761] = True
    often = counts >= promote_after
    assert promoted[often].all()
    early = (promoted & ~often).sum() / (counts > 0).sum()
    print(f"{early:.3%} too early, {layer.stats()['sketch_bytes'] / KEYS:.1f} bytes a key")
    assert early < 0.01
