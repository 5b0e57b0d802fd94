"""Adaptive feature columns on n workers train like those of one."""

from __future__ import annotations

import numpy as np
import pytest
from sharded.results import Results, assert_equal_tables, assert_equal_weights

SCENARIOS = ("columns_sgd", "columns_adagrad", "columns_adam", "columns_evicted")


@pytest.mark.parametrize("scenario", [*SCENARIOS, "columns_of_strings"])
def test_workers_train_like_one(one: Results, many: Results, scenario: str) -> None:
    assert_equal_tables(one, many, scenario, "columns")
    assert_equal_weights(one, many, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_workers_keep_equal_static_rows(many: Results, scenario: str) -> None:
    first, *others = many.of(scenario)
    for other in others:
        np.testing.assert_array_equal(first["weight.static"], other["weight.static"])


@pytest.mark.parametrize("scenario", ["columns_flipped", "columns_flipped_with_a_filter"])
def test_first_own_rows_are_static_rows_bit_for_bit(many: Results, scenario: str) -> None:
    keys = []
    for rank, worker in enumerate(many.of(scenario)):
        np.testing.assert_array_equal(worker["columns.rows"], worker["static"][worker["buckets"]])
        np.testing.assert_array_equal(worker["after"], worker["before"])
        assert np.all(worker["columns.keys"] % many.workers == rank)
        keys.extend(worker["columns.keys"])
    # These are the ids of the batches whose mask is 1, filtered or not, by the third pass.
    assert len(keys) == len(set(keys)) > 20


def test_a_worker_without_ids_takes_part(two: Results) -> None:
    none, some = two.of("columns_of_no_ids")
    assert not none["outputs"].any()
    assert np.abs(some["outputs"]).min() > 0
    np.testing.assert_array_equal(some["outputs"][0], some["outputs"][1])
    assert sorted([*none["keys"], *some["keys"]]) == [5, 7]
