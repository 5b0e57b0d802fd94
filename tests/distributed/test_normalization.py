"""Batch normalization has the same statistics on all workers, and those of all examples."""

from __future__ import annotations

import numpy as np
from sharded.normalizing import variances_of
from sharded.results import Results

GAMMA, BETA, MEAN, VARIANCE = (f"weight.{i}" for i in range(4))


def test_moving_statistics_are_those_of_the_batches_of_all_workers(
    one: Results, many: Results
) -> None:
    (alone,) = one.of("normalized_by_each")
    workers = many.of("normalized_by_each")
    for worker in workers:
        for name in worker:
            if name.startswith("weight."):
                np.testing.assert_array_equal(worker[name], workers[0][name])
        # Float32 means of numbers near 100.
        np.testing.assert_allclose(worker[MEAN], alone[MEAN], rtol=1e-6)
        np.testing.assert_allclose(worker[VARIANCE], variances_of(many.workers), rtol=1e-4)
    np.testing.assert_allclose(alone[VARIANCE], variances_of(1), rtol=1e-4)


def test_synchronized_layers_train_like_those_of_one_worker(one: Results, many: Results) -> None:
    (alone,) = one.of("normalized_by_all")
    for worker in many.of("normalized_by_all"):
        names = [name for name in alone if name.startswith("weight.")]
        assert len(names) == 12
        for name in names:
            # Float32 sums in another order, over five steps.
            np.testing.assert_allclose(worker[name], alone[name], rtol=2e-4, atol=2e-5)


def test_statistics_of_uneven_data_count_every_example_alike(one: Results, many: Results) -> None:
    (alone,) = one.of("normalized_uneven")
    workers = many.of("normalized_uneven")
    for worker in workers:
        np.testing.assert_array_equal(worker[VARIANCE], workers[0][VARIANCE])
        # Float32 means of small integers.
        np.testing.assert_allclose(worker[MEAN], alone[MEAN], rtol=1e-5, atol=1e-6)
