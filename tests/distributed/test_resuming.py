"""A run that was killed within an epoch ends as one that was not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from sharded.launch import launch
from test_restored_by_others import Held, assert_as_trained, held
from tiers import long

from sok_embed.checkpoint import stopping

PROGRAM = Path(__file__).parent / "sharded" / "resuming.py"


def run(folder: Path, workers: int, name: str, position: str = "iterator") -> list[Held]:
    ended = launch(PROGRAM, workers, [str(folder), name, position], horovod=False)
    assert ended.status == 0, ended.output[-6000:]
    return held(folder, name, workers)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Held]:
    """A run of one worker that nobody stops."""
    return run(tmp_path_factory.mktemp("whole"), 1, "whole")


@pytest.fixture(scope="module", params=[long(1), 2])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one worker or two, of which the last was killed."""
    folder = tmp_path_factory.mktemp(f"killed_{request.param}")
    arguments = [str(folder), "killed", "iterator", "die"]
    ended = launch(PROGRAM, request.param, arguments, horovod=False)
    assert ended.status != 0 and not ended.timed_out, ended.output[-6000:]
    steps = [f"step-{step:09d}" for step in (2, 4, 6)]
    assert sorted(path.name for path in (folder / "run").iterdir()) == steps
    assert len(list((folder / "run" / steps[2]).glob("data-*"))) == 2 * request.param
    (folder / "workers").write_text(str(request.param))
    return folder


def resumed(killed: Path, workers: int, name: str, position: str = "iterator") -> list[Held]:
    """Goes on from the checkpoints of a killed run, which stay as they are."""
    folder = killed / name
    shutil.copytree(killed / "run", folder / "run")
    return run(folder, workers, name, position)


# What is left of three epochs of four batches.
LEFT = [[1, 2], [1, 3], [2, 0], [2, 1], [2, 2], [2, 3]]


def test_as_many_workers_go_on_at_the_next_batch(killed: Path, whole: list[Held]) -> None:
    workers = int((killed / "workers").read_text())
    found = resumed(killed, workers, "resumed")
    for worker in found:
        assert worker["seen"].tolist() == LEFT
        assert worker["epochs"].tolist() == [0, 1, 2]
    for name in ("history.loss", "history.mae"):
        atol = 0 if workers == 1 else 1e-5
        np.testing.assert_allclose(found[-1][name], whole[0][name], rtol=0, atol=atol, err_msg=name)
    assert_as_trained(found, whole, atol=1e-6 if workers == 1 else 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("killed", [2], indirect=True)
def test_other_workers_go_on_by_count(killed: Path, whole: list[Held]) -> None:
    found = resumed(killed, 3, "counted", "count")
    for worker in found:
        assert worker["seen"].tolist() == LEFT
    for name in ("history.loss", "history.mae"):  # also of the epoch that was begun
        np.testing.assert_allclose(found[-1][name], whole[0][name], rtol=0, atol=1e-5, err_msg=name)
    assert_as_trained(found, whole, atol=1e-5)


@pytest.mark.parametrize("workers", [long(1), 2])
def test_a_signal_to_one_worker_saves_and_ends_all(
    tmp_path: Path, whole: list[Held], workers: int
) -> None:
    ended = launch(PROGRAM, workers, [str(tmp_path), "stopped", "iterator", "stop"], horovod=False)
    assert ended.status == stopping.TRY_AGAIN, ended.output[-6000:]
    # The last of them is of the batch at which the signal came.
    steps = [f"step-{step:09d}" for step in (0, 2, 4, 6, 7)]
    for rank in range(workers):
        assert (tmp_path / f"saved.{rank}").read_text().split() == steps
    found = run(tmp_path, workers, "resumed")
    for worker in found:
        assert worker["seen"].tolist() == LEFT[1:]
    assert_as_trained(found, whole, atol=1e-6 if workers == 1 else 1e-5)
