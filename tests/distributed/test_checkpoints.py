"""Under Horovod each worker gets back the checkpoint that it wrote, and no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sharded.launch import launch, require_horovod
from tiers import long

WORKER = Path(__file__).parent / "sharded" / "checkpoint_worker.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two workers wrote."""
    require_horovod()
    folder = tmp_path_factory.mktemp("checkpoints")
    ended = launch(WORKER, 2, [str(folder), "write", "0"])
    assert ended.status == 0, ended.output
    for rank in range(2):
        keys = np.load(folder / f"rows-{rank}.npy")
        assert len(keys) and (keys % 2 == rank).all()
    return folder


@pytest.mark.parametrize(
    ("workers", "shift", "expected"),
    [
        (2, 0, ["same", "same"]),
        (2, 1, ["worker 0 of 2", "worker 1 of 2"]),
        long(1, 0, ["worker 0 of 1"]),
        long(3, 0, ["worker 0 of 3", "worker 1 of 3", "worker 2 of 3"]),
    ],
    ids=["the_same_workers", "another_rank", "one", "three"],
)
def test_a_worker_reads_only_its_own_checkpoint(folder, workers, shift, expected) -> None:
    task = f"read-{workers}-{shift}"
    ended = launch(WORKER, workers, [str(folder), task, str(shift)])
    assert ended.status == 0, ended.output
    for rank, text in enumerate(expected):
        found = (folder / f"{task}-{rank}.txt").read_text()
        if text == "same":
            assert found == text
        else:
            assert f"expected the checkpoint of {text}" in found or "expected keys of" in found
