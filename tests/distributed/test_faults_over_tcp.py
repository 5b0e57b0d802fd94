"""Workers say what has happened to one of four that talk over TCP, and say it soon."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import forked
import pytest
from limits import HANG_S
from sharded.faulty_worker import FAULT_AT, STEPS, TIMEOUT_S, WORKERS
from tiers import long

SCRIPT = Path(__file__).parent / "sharded" / "faulty_worker.py"
OTHERS = (0, 2, 3)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(fault: str, folder: Path, levels: int) -> list[dict[str, Any] | None]:
    """What each worker wrote down; `None` for one that wrote nothing."""
    common = {
        "WORLD_SIZE": str(WORKERS),
        "LOCAL_WORLD_SIZE": str(WORKERS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    workers = [
        subprocess.Popen(
            forked.command(SCRIPT, fault, folder, levels),
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(WORKERS)
    ]
    try:
        for rank in OTHERS:
            workers[rank].wait(HANG_S)
    finally:
        for worker in workers:
            worker.kill()  # one may be paused
            worker.wait()
    files = [folder / f"{rank}.json" for rank in range(WORKERS)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


@pytest.mark.parametrize(
    ("fault", "levels"),
    [
        *(("killed with a child", 1), ("killed", 2)),
        *(long(fault, 1) for fault in ("killed", "raises", "ends", "paused")),
        *(long(fault, 2) for fault in ("raises", "ends", "paused")),
    ],
)
def test_the_others_name_a_worker_that_is_lost(fault: str, levels: int, tmp_path: Path) -> None:
    """Worker 3 is not connected to worker 1 with two levels."""
    told = run(fault, tmp_path, levels)
    assert told[1] is None
    for rank in OTHERS:
        worker = told[rank]
        assert worker is not None
        assert worker["steps"] == FAULT_AT
        assert "expected worker 1 " in worker["error"] and "sok_embed." in worker["error"]
        # The connection has ended, which a child of the worker does not keep open.
        assert ("the connection has ended" in worker["error"]) == (fault != "paused")
        assert ("sok_embed.data.join" in worker["error"]) == (fault != "paused")
        # A worker that is paused is missed after the timeout. With a second for the machine, this
        # is a bound against waiting for ever and no measurement.
        assert worker["seconds"] < TIMEOUT_S + 20
        assert worker["seconds_of_the_next"] < TIMEOUT_S


@pytest.mark.long
def test_a_worker_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    for worker in run("late", tmp_path, levels=1):
        assert worker is not None and worker["error"] is None
        assert worker["steps"] == STEPS
        # The mean of four workers' gradients of 1, of two layers that have rows of their own.
        assert worker["row"] == -STEPS
