"""BroadcastVariables gives all workers the state of one."""

from __future__ import annotations

import numpy as np
import pytest
from sharded.results import Results

import sok_embed


def test_workers_start_with_the_weights_and_the_step_count_of_the_root(many: Results) -> None:
    workers = many.of("broadcast_variables")
    root = workers[-1]
    names = [name.removeprefix("start.") for name in root if name.startswith("start.")]
    assert {"weight.dense.0", "weight.norm.3", "iterations"} <= set(names)
    for name in names:
        for worker in workers:
            np.testing.assert_array_equal(worker[f"begin.{name}"], root[f"start.{name}"])
        assert not np.array_equal(workers[0][f"start.{name}"], root[f"start.{name}"]), name


def test_a_root_that_no_worker_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"root_rank=1\."):
        sok_embed.callbacks.BroadcastVariables(root_rank=1)
