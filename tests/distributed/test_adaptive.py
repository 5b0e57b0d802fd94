"""Adaptive tables that are spread over workers by bucket train like those of one worker."""

from __future__ import annotations

import numpy as np
import pytest
from sharded.results import Results, assert_equal_weights

SCENARIOS = (
    "adaptive_sgd",
    "adaptive_adam",
    "adaptive_all_own",
    "adaptive_uneven",
    "adaptive_masked",
    "adaptive_ragged",
    "adaptive_resumed",
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_workers_train_like_one(one: Results, many: Results, scenario: str) -> None:
    for table in ("adaptive", "static"):
        keys, rows = one.table(scenario, table)
        got_keys, got_rows = many.table(scenario, table)
        np.testing.assert_array_equal(got_keys, keys, err_msg=table)
        # This allows for float32, in which gradients are summed in another order.
        np.testing.assert_allclose(got_rows, rows, rtol=0, atol=1e-5, err_msg=table)
        _, untrained = one.table(scenario, table, "untrained")
        if (scenario, table) != ("adaptive_all_own", "static"):
            assert np.abs(rows - untrained).max() > 1e-3, table
    assert_equal_weights(one, many, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_workers_promote_what_one_promotes(one: Results, many: Results, scenario: str) -> None:
    expected = one.of(scenario)[0]["stats"]
    np.testing.assert_array_equal(sum(worker["stats"] for worker in many.of(scenario)), expected)
    assert len(one.table(scenario, "adaptive")[0]) == expected[0] > 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_key_lives_on_the_worker_of_its_bucket(many: Results, scenario: str) -> None:
    for rank, worker in enumerate(many.of(scenario)):
        assert set(worker["owners"].tolist()) == {rank}


@pytest.mark.parametrize("scenario", ["adaptive_sgd", "adaptive_adam", "adaptive_all_own"])
def test_each_worker_predicts_the_same_and_changes_nothing(
    one: Results, many: Results, scenario: str
) -> None:
    expected = one.of(scenario)[0]["predictions"]
    for worker in many.of(scenario):
        np.testing.assert_allclose(worker["predictions"], expected, rtol=0, atol=1e-5)
        assert worker["unchanged"]


def test_vectors_start_bitwise_equal_whatever_the_number_of_workers(
    one: Results, many: Results
) -> None:
    expected = one.of("adaptive_initial_rows")[0]["evaluated"]
    for worker in many.of("adaptive_initial_rows"):
        for way in ("evaluated", "static", "mixed", "trained"):
            np.testing.assert_array_equal(worker[way], expected, err_msg=way)
    sizes = [int(worker["size"]) for worker in many.of("adaptive_initial_rows")]
    assert sum(sizes) == len(expected)
    assert min(sizes) > 0


def test_flipped_keys_start_as_their_static_rows_bit_for_bit(one: Results, many: Results) -> None:
    expected = one.of("adaptive_flipped")[0]["static"]
    workers = many.of("adaptive_flipped")
    for worker in workers:
        np.testing.assert_array_equal(worker["own"], worker["static"])
        np.testing.assert_allclose(worker["static"], expected, rtol=0, atol=1e-5)
        assert np.abs(worker["static"] - worker["start"]).max() > 1e-2
        assert worker["size"] == 0
    assert sum(int(worker["later_size"]) for worker in workers) == len(expected)


def test_a_wrong_mask_is_an_error_on_its_worker(many: Results) -> None:
    for worker in many.of("adaptive_wrong_mask"):
        assert "Expected a mask of -1, 0 and 1" in str(worker["message"])
