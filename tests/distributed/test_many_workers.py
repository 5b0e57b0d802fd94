"""Many workers train like one."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sharded.launch import launch
from sharded.small_training import BATCH

SCRIPT = Path(__file__).parent / "sharded" / "small_training.py"
# 24 take some 10 GB.
WORKERS = int(os.environ.get("SOK_MANY_WORKERS", 8))
HOSTS = 4


@cache
def trained(folder: Path, workers: int, levels: int) -> list[dict[str, np.ndarray]]:
    """Returns what each worker has after 100 steps."""
    arguments = [str(levels), str(HOSTS), str(folder)]
    ended = launch(SCRIPT, workers, arguments, horovod=False)
    assert ended.status == 0 and not ended.timed_out, ended.output[-4000:]
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(workers)]


@pytest.mark.long
@pytest.mark.parametrize("levels", [1, 2])
def test_100_steps_of_many_workers_end_as_those_of_one(
    levels: int, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    assert BATCH % WORKERS == WORKERS % HOSTS == 0
    (one,) = trained(tmp_path_factory.getbasetemp(), 1, levels=1)
    assert np.abs(one["vectors"]).max() > 0.1  # it has learnt: rows start within 0.05
    many = trained(tmp_path, WORKERS, levels)
    for worker in many:
        for name, expected in one.items():
            assert worker[name].tobytes() == many[0][name].tobytes(), name
            # Sums of gradients are in another order, which rounds otherwise. Values are below 2,
            # where float32 has steps of 1.2e-7; 24 workers differed by one such step.
            np.testing.assert_allclose(worker[name], expected, rtol=0, atol=1e-6, err_msg=name)
