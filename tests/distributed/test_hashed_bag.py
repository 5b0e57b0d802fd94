"""Hashed weights in data parallel: workers with batches of b train like one with all samples."""

from __future__ import annotations

import numpy as np
import pytest
from sharded.results import Results, assert_equal_weights


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
def test_workers_train_like_one(one: Results, many: Results, scenario: str) -> None:
    # Every slot of 50 is trained in five batches of 12 bags.
    (alone,) = one.of(scenario)
    assert (np.abs(alone["weight.bag.0"] - alone["start.weight.bag.0"]) > 1e-4).mean() > 0.95
    # This allows for float32, in which the workers' sums are added in another order.
    assert_equal_weights(one, many, scenario, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_slices_train_like_dense_gradients(one: Results, many: Results, optimizer: str) -> None:
    for results in (one, many):
        dense, sparse = (
            results.of(f"hashed_{optimizer}_{kind}")[0]["weight.bag.0"]
            for kind in ("dense", "sparse")
        )
        np.testing.assert_allclose(sparse, dense, rtol=0, atol=1e-5)


def test_workers_keep_equal_weights(many: Results) -> None:
    first, *others = many.of("hashed_shared")
    for other in others:
        np.testing.assert_array_equal(first["weight.bag.0"], other["weight.bag.0"])
