"""Lookups within `tf.vectorized_map` on workers find and train the rows of one worker."""

from __future__ import annotations

import numpy as np
from sharded.mapping import STEPS
from sharded.results import Results, assert_equal_maps


def test_lookups_within_a_vectorized_map_train_like_one_worker(one: Results, many: Results) -> None:
    (alone,) = one.of("mapped")
    assert np.abs(alone["vectors.0"] - alone[f"vectors.{STEPS - 1}"]).max() > 1e-2
    assert_equal_maps(one, many)
