"""Adaptive feature columns on n workers train like those of one."""

from __future__ import annotations

import numpy as np
import pytest
from sharded.many_columns import DENSE_TABLES, MASKED, SEQUENCE_TABLES
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


@pytest.mark.parametrize(
    ("scenario", "tables"),
    [
        ("many_columns_sgd", DENSE_TABLES),
        ("many_columns_adam", DENSE_TABLES),
        ("many_sequences", SEQUENCE_TABLES),
    ],
)
def test_many_columns_train_like_those_of_one_worker(
    one: Results, many: Results, scenario: str, tables: tuple[str, ...]
) -> None:
    assert_equal_tables(one, many, scenario, *tables)
    assert_equal_weights(one, many, scenario)
    (expected,) = one.of(scenario)
    for rank, got in enumerate(many.of(scenario)):
        for step in range(len(MASKED)):
            name = f"outputs.{step}"
            of_rank = expected[name][rank :: many.workers]
            np.testing.assert_allclose(got[name], of_rank, rtol=0, atol=1e-5, err_msg=name)


def test_frozen_columns_make_no_rows_on_any_worker(many: Results) -> None:
    for worker in many.of("many_columns_sgd"):
        assert len(worker["frozen_embedding.keys"]) == 0


def test_a_layer_without_adaptive_columns_waits_for_nobody(many: Results) -> None:
    np.testing.assert_array_equal(
        many.of("a_layer_of_no_adaptive_columns")[0]["outputs"], np.ones((2, 1))
    )
