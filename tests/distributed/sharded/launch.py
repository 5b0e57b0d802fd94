"""Runs a script on several processes of this machine, and never leaves one behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import forked
import pytest

# When one worker does not come to a collective operation, Horovod ends the others after this time.
STALL_LIMIT_S = 300
# This is for workers that hang. Those that run may share the machine with much else.
LIMIT_S = 3600


def require_horovod() -> None:
    """Skips the test in an environment that was made with HOROVOD=0; `make test` has Horovod."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        status: The exit status, or the negative number of the signal that ended the run.
        timed_out: Whether it ran past its limit and was killed.
        output: What all ranks printed, stdout and stderr, each line with its rank.
    """

    status: int
    timed_out: bool
    output: str


def launch(
    script: Path,
    workers: int,
    arguments: Sequence[str] = (),
    limit_s: float = LIMIT_S,
    horovod: bool = True,
    fresh: bool = False,
    started: Callable[[], bool] = lambda: True,
) -> Ended:
    """Runs a script on several processes, or on one.

    Args:
        script: In Python.
        workers: How many processes.
        arguments: Of the script.
        limit_s: Seconds after which all are killed.
        horovod: Whether Horovod starts several workers, or `sok-embed run`.
        fresh: Whether each worker is a process of its own that imports TensorFlow, and not a fork.
        started: Whether the seconds are counted already.
    """
    command = [sys.executable, str(script), *arguments]
    if not fresh:
        command = forked.command(script, *arguments)
    if workers > 1 and not horovod:
        command = [sys.executable, "-m", "sok_embed", "run", "-np", str(workers), "--", *command]
    elif workers > 1:
        command = [*forked.horovodrun(), "--gloo", "-np", str(workers), *command]
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HOROVOD_TIMELINE": "DYNAMIC",  # a scenario may begin one
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(STALL_LIMIT_S // 2),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(STALL_LIMIT_S),
    }
    # The output goes to a file and not to a pipe: a worker that outlives horovodrun would keep a
    # pipe open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            while not started() and process.poll() is None:
                time.sleep(0.05)
            process.wait(limit_s)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
            _kill(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Ended(process.returncode, timed_out, text)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # horovodrun puts each worker into a session of its own, out of reach of a signal to its group.
    for worker in _descendants(process.pid):
        _signal(worker)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _descendants(pid: int) -> list[int]:
    # Linux tells the parent of each process; the children are found by asking all of them.
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The file reads "pid (name) state parent ...", and a name may hold blanks and brackets.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # the process has ended meanwhile
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
