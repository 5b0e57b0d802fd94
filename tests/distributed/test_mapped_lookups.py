"""Lookups within `tf.vectorized_map` on workers find and train the rows of one worker."""

from __future__ import annotations

import numpy as np
from sharded.mapping import STEPS
from sharded.results import Results, assert_equal_maps


def test_lookups_within_a_vectorized_map_train_like_one_worker(one: Results, many: Results) -> None:
    (alone,) = one.of("mapped")
    assert np.abs(alone["vectors.0"] - alone[f"vectors.{STEPS - 1}"]).max() > 1e-2
    assert_equal_maps(one, many)


def test_lookups_of_rows_on_disk_within_a_map_find_those_of_single_calls(many: Results) -> None:
    for worker in many.of("mapped_on_disk"):
        np.testing.assert_array_equal(worker["found"], worker["expected"])
        assert np.abs(worker["found"]).max() > 0
