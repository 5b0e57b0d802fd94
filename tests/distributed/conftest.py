"""Starts the workers once for each number of them; the tests look at what they left behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sharded.launch import launch, require_horovod
from sharded.meeting import SECRET, free_port
from sharded.results import Results

WORKER = Path(__file__).parent / "sharded" / "worker.py"


@pytest.fixture(scope="session")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    """The results of all scenarios with a number of workers."""

    @cache
    def run(workers: int) -> Results:
        horovod = workers == 2  # three talk over TCP alone
        if horovod:
            require_horovod()
        folder = tmp_path_factory.mktemp(f"workers_{workers}")
        ended = launch(WORKER, workers, [str(folder)], limit_s=600, horovod=horovod)
        return Results(folder, workers, ended)

    return run


@pytest.fixture
def one(results_of: Callable[[int], Results]) -> Results:
    """The reference: a process alone, without Horovod."""
    return results_of(1)


@pytest.fixture(params=[2, 3], ids=["2_workers_of_horovod", "3_workers_over_tcp"])
def many(request: pytest.FixtureRequest, results_of: Callable[[int], Results]) -> Results:
    return results_of(request.param)


@pytest.fixture
def two(results_of: Callable[[int], Results]) -> Results:
    return results_of(2)


@pytest.fixture
def horovod() -> None:
    """Skips a test that starts workers by itself if there is no Horovod."""
    require_horovod()


@pytest.fixture
def port() -> int:
    """A port at which nobody listens."""
    return free_port()


@pytest.fixture(params=[None, SECRET], ids=["no secret", "secret"])
def secret(request: pytest.FixtureRequest) -> bytes | None:
    """A secret of the job, or none."""
    return request.param  # type: ignore[no-any-return]
