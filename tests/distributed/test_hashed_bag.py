"""Hashed weights in data parallel: workers with batches of b train like one with all samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sharded.launch import launch, require_horovod
from sharded.results import Results, assert_equal_weights

WORKER = Path(__file__).parent / "sharded" / "hashed_worker.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    """The results of a number of workers."""

    @cache
    def start(workers: int) -> Results:
        if workers > 1:
            require_horovod()
        folder = tmp_path_factory.mktemp(f"hashed_{workers}")
        return Results(folder, workers, launch(WORKER, workers, [str(folder)]))

    return start


@pytest.mark.parametrize(
    "scenario",
    [
        "hashed_sgd_dense",
        "hashed_sgd_sparse",
        "hashed_adagrad_dense",
        "hashed_adagrad_sparse",
        "hashed_shared",
    ],
)
def test_two_workers_train_like_one(run, scenario: str) -> None:
    one, two = run(1), run(2)
    # Every slot of 50 is trained in five batches of 12 bags.
    (alone,) = one.of(scenario)
    assert (np.abs(alone["weight.bag.0"] - alone["start.weight.bag.0"]) > 1e-4).mean() > 0.95
    # float32, in which the workers' sums are added in another order.
    assert_equal_weights(one, two, scenario, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_slices_train_like_dense_gradients(run, optimizer: str) -> None:
    for results in (run(1), run(2)):
        dense, sparse = (
            results.of(f"hashed_{optimizer}_{kind}")[0]["weight.bag.0"]
            for kind in ("dense", "sparse")
        )
        np.testing.assert_allclose(sparse, dense, rtol=0, atol=1e-5)


def test_workers_keep_equal_weights(run) -> None:
    first, second = run(2).of("hashed_shared")
    np.testing.assert_array_equal(first["weight.bag.0"], second["weight.bag.0"])
