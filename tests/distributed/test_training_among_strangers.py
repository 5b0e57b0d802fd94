"""Workers of `init` that meet while strangers of every kind call train as if nobody had."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import forked
import numpy as np
from limits import HANG_S
from sharded.meeting import SECRET, connected, free_port, greet, greeting, tell

SCRIPT = Path(__file__).parent / "sharded" / "stranger_worker.py"


def visit(port: int, held: ExitStack) -> None:
    """Has strangers of every kind come, of whom some stay. None knows the secret, or fits."""
    draw = np.random.default_rng(0)
    for number in range(100):
        with suppress(OSError):
            held.enter_context(connected(port)).sendall(greeting(1)[: number % 48])
    for said in (b"GET / HTTP/1.1\r\n\r\n", draw.bytes(300), greeting(1) + draw.bytes(300)):
        with connected(port) as rude, suppress(OSError):
            rude.sendall(said)
    for rank in range(4):
        for size, guess in ((3, None), (2, SECRET[::-1])):
            with connected(port) as impostor, suppress(OSError):
                tell(impostor, rank, size, b"127.0.0.1 1 " + b"0" * 32 + b" -", guess)
    with connected(port) as later, suppress(OSError):
        greet(later, greeting(1, version=3))
    # Says all that a worker does, at once and without waiting for an answer to prove with.
    with connected(port) as deaf, suppress(OSError):
        deaf.sendall(greeting(1) + SECRET * 10)


def test_workers_train_among_strangers_as_without(tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("alone", "secret", "none")}
    secrets = {"alone": "", "secret": SECRET.hex(), "none": ""}
    meetings = [f"{name}={port}={secrets[name]}" for name, port in ports.items()]
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # the script sets that of each meeting
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with ExitStack() as held:
        logs = [held.enter_context((tmp_path / f"{rank}.log").open("w+")) for rank in range(2)]
        workers = [
            held.enter_context(
                subprocess.Popen(
                    forked.command(SCRIPT, tmp_path, *meetings),
                    env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=logs[rank],
                    stderr=subprocess.STDOUT,
                )
            )
            for rank in range(2)
        ]
        held.callback(lambda: [worker.kill() for worker in workers])
        (tmp_path / "alone").touch()
        for name in ("secret", "none"):
            visit(ports[name], held)
            (tmp_path / name).touch()
        for worker, log in zip(workers, logs, strict=True):
            worker.wait(HANG_S)
            log.seek(0)
            text = log.read()
            assert worker.returncode == 0, text
            assert SECRET.hex() not in text
    for rank in range(2):
        trained = json.loads((tmp_path / f"{rank}.json").read_text())
        assert trained["alone"]["losses"][-1] < trained["alone"]["losses"][0]
        for name in ("secret", "none"):
            for what, expected in trained["alone"].items():
                # The same sums in the same order: equal to the last bit.
                np.testing.assert_array_equal(trained[name][what], expected, f"{name} {what}")
