"""Exchanges of three layers on three workers begin in any order; nothing waits for ever, nothing is
mixed up, and every sum is that of NumPy. Numbers are integers, so that they are compared exactly.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded.any_order_worker import EAGER_EVERY, KEYS, NAMES, NUMBERS, factors_of, keys_of
from sharded.launch import launch
from tiers import rounds

SCRIPT = Path(__file__).parent / "sharded" / "any_order_worker.py"
WORKERS = 3
STEPS = rounds(60, 100, "SOK_ANY_ORDER_STEPS")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each worker has written down."""
    folder = tmp_path_factory.mktemp("any_order")
    arguments = [str(STEPS), str(folder)]
    ended = launch(SCRIPT, WORKERS, arguments, horovod=False)
    assert ended.status == 0 and not ended.timed_out, ended.output[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORKERS)]


@cache
def counts_of(rank: int, step: int) -> np.ndarray:
    """How often a worker looks up each key in a step, of each layer: `[3, KEYS]`."""
    keys = keys_of(rank, step).values()
    return np.stack([np.bincount(each, minlength=KEYS) for each in keys])


def summed_gradients(step: int) -> np.ndarray:
    """The sums of all workers' gradients of each key, `[3, KEYS]`."""
    return sum(factors_of(rank, step) * counts_of(rank, step) for rank in range(WORKERS))


def test_workers_begin_exchanges_in_different_orders(told: list[dict[str, Any]]) -> None:
    compiled = [step for step in range(STEPS) if step % EAGER_EVERY != EAGER_EVERY - 1]
    orders = [[worker["orders"][step] for worker in told] for step in range(STEPS)]
    for order in orders:
        # Three messages of each of six layers, and a reduction.
        assert [sorted(each) for each in order] == [sorted(order[0])] * WORKERS
        assert len(set(order[0])) == len(order[0]) == 3 * 2 * len(NAMES) + 1
    orders = [orders[step] for step in compiled]
    differ = [order for order in orders if order[0] != order[1] != order[2] != order[0]]
    assert len(differ) > len(orders) / 2
    # On each worker, each pair of layers begins in either order.
    for worker in told:
        keys = [f"plain.{name}.keys" for name in NAMES]
        seen = {
            (first, second)
            for step in compiled
            for first, second in permutations(keys, 2)
            if worker["orders"][step].index(first) < worker["orders"][step].index(second)
        }
        assert seen == set(permutations(keys, 2))


def test_vectors_of_each_step_are_those_of_numpy(told: list[dict[str, Any]]) -> None:
    for rank, worker in enumerate(told):
        expected = [counts_of(rank, step) @ NUMBERS for step in range(STEPS)]
        np.testing.assert_array_equal(worker["plain_sums"], expected)


def test_gradients_of_all_workers_are_added_up_at_the_owner(told: list[dict[str, Any]]) -> None:
    sums = sum(summed_gradients(step) for step in range(STEPS))
    for rank, worker in enumerate(told):
        owned = np.arange(KEYS) % WORKERS == rank
        np.testing.assert_array_equal(worker["gradients"], np.where(owned, sums, 0))


def test_tables_have_the_rows_of_numpy_in_each_step_and_at_the_end(
    told: list[dict[str, Any]],
) -> None:
    rows, expected = np.zeros((len(NAMES), KEYS)), []
    for step in range(STEPS):
        expected.append([(counts_of(rank, step) * rows).sum(1) for rank in range(WORKERS)])
        rows -= summed_gradients(step) / WORKERS
    weight = -sum(factors_of(rank, step)[0, 0] for rank in range(WORKERS) for step in range(STEPS))
    for rank, worker in enumerate(told):
        np.testing.assert_array_equal(worker["table_sums"], [each[rank] for each in expected])
        np.testing.assert_array_equal(worker["rows"], rows)
        assert worker["weight"] == weight / WORKERS
