"""Workers whose data ends at different times train like one that has all of it."""

from __future__ import annotations

import numpy as np
import pytest
from sharded.joining import SIZES
from sharded.results import Results, assert_equal_tables, assert_equal_weights

FITTED = (
    "joined_sgd",
    "joined_adam_weighted",
    "joined_dealt",
    "joined_validation",
    "joined_of_known_lengths",
)


@pytest.mark.parametrize("scenario", FITTED)
def test_fit_counts_the_examples_of_uneven_steps_alike(
    one: Results, many: Results, scenario: str
) -> None:
    # Float32 sums in another order.
    assert_equal_tables(one, many, scenario, "users", "items", "words", all_trained=False)
    assert_equal_weights(one, many, scenario)


def test_what_is_reported_is_of_the_examples_of_all_workers(one: Results, many: Results) -> None:
    (alone,) = one.of("joined_reports")
    workers = many.of("joined_reports")
    names = {"loss", "mae", "auc", "rmse"}
    names |= {"best", *(f"val_{name}" for name in names)}
    assert set(alone) >= names
    for worker in workers:
        for name in names:
            # Float32 sums in another order, of a model that trained on such.
            np.testing.assert_allclose(worker[name], alone[name], rtol=2e-6, err_msg=name)
            np.testing.assert_array_equal(worker[name], workers[0][name])


def test_each_worker_predicts_its_own_examples(one: Results, many: Results) -> None:
    (alone,) = one.of("joined_validation")
    predicted, first = {}, 0
    for step in range(len(SIZES[1][0])):
        for rank, sizes in enumerate(SIZES[many.workers]):
            count = sizes[step] if step < len(sizes) else 0
            predicted.setdefault(rank, []).append(alone["predicted"][first : first + count])
            first += count
    for rank, worker in enumerate(many.of("joined_validation")):
        expected = np.concatenate(predicted[rank])
        np.testing.assert_allclose(worker["predicted"], expected, rtol=0, atol=1e-5)


def test_batches_and_their_weights_are_those_of_the_step(many: Results) -> None:
    for rank, worker in enumerate(many.of("joined_in_a_loop")):
        sizes = SIZES[many.workers][rank]
        own = sizes + [0] * (4 - len(sizes))
        assert worker["sizes"].tolist() == own[:2] * 2 + own
        totals = SIZES[1][0]
        expected = [many.workers / totals[step] * own[step] for step in (0, 1)] * 2
        np.testing.assert_allclose(worker["factors"], expected, rtol=1e-6)


def test_normalization_is_not_changed_by_batches_without_examples(many: Results) -> None:
    for worker in many.of("joined_normalization"):
        values = [worker[f"normal.{number}"] for number in range(4)]
        assert all(np.isfinite(value).all() for value in values)
        assert np.abs(values[2]).max() > 0


def test_the_greatest_number_of_batches_is_the_length_on_every_worker(many: Results) -> None:
    lengths = [int(worker["length"]) for worker in many.of("joined_of_known_lengths")]
    assert lengths == [len(SIZES[1][0])] * many.workers


def test_two_joined_datasets_are_taken_in_turns(many: Results) -> None:
    for rank, worker in enumerate(many.of("joined_two_at_once")):
        first = SIZES[many.workers][rank][0] if SIZES[many.workers][rank] else 0
        assert worker["sizes"].tolist() == [[first, first]]
