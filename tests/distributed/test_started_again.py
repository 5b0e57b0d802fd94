"""Runs that lose a worker, or are asked to stop, by a real torchrun and by scripts of Slurm.

Each ends with the bits of one to which nothing has happened. Slurm is played: `played_slurm.py`.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import killed_training
import played_slurm
import pytest

TRAINING = killed_training.__file__
SLURM_SCRIPT = Path(__file__).parents[2] / "examples/cluster/slurm.sh"
QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

pytestmark = pytest.mark.long


def torchrun(folder: Path, happens: str) -> None:
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", TRAINING, str(folder)]
    environ = os.environ | QUIET | {"SOK_EMBED_SECRET": os.urandom(32).hex(), "HAPPENS": happens}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]


def test_torchrun_starts_all_workers_again_when_one_was_killed(tmp_path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    torchrun(whole, "nothing")
    torchrun(killed, "death")
    assert (killed / "has-died").exists()
    killed_training.check_equal(killed, whole)


@pytest.fixture
def submit(tmp_path) -> Callable[[Path, str], subprocess.Popen[str]]:
    """Returns what starts the batch script as Slurm does, with a folder for all that is left."""
    if shutil.which("openssl") is None:
        pytest.skip("the script needs openssl")
    programs = tmp_path / "bin"
    programs.mkdir()
    commands = {each: f"{played_slurm.__file__} {each}" for each in ("srun", "scontrol")}
    for name, arguments in (commands | {"python": ""}).items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (programs / name).chmod(0o755)

    def start(folder: Path, happens: str) -> subprocess.Popen[str]:
        folder.mkdir(exist_ok=True)
        (folder / "requeued").unlink(missing_ok=True)
        played = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PLAYED": str(folder),
            # The script adds 20000, for the port at which workers meet.
            "SLURM_JOB_ID": str(random.randrange(10000)),
            "SLURM_JOB_NODELIST": "127.0.0.1,127.0.0.1",
        }
        training = {"TRAIN": TRAINING, "CHECKPOINTS": str(folder), "HAPPENS": happens}
        environ = os.environ | QUIET | played | training
        return subprocess.Popen(["bash", str(SLURM_SCRIPT)], env=environ)

    return start


def test_a_job_of_slurm_goes_on_after_the_signal_before_its_end(tmp_path, submit) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert submit(whole, "nothing").wait(timeout=900) == 0
    assert not (whole / "requeued").exists()
    job = submit(stopped, "signal")
    deadline = time.monotonic() + 600
    while not all((stopped / f"waits-{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.05)
    for task in (stopped / "tasks").read_text().split():
        os.kill(int(task), signal.SIGUSR1)
    assert job.wait(timeout=900) == 0
    assert (stopped / "requeued").exists() and not (stopped / "losses.npy").exists()
    assert submit(stopped, "signal").wait(timeout=900) == 0
    assert not (stopped / "requeued").exists()
    killed_training.check_equal(stopped, whole)


def test_a_job_of_slurm_starts_all_workers_again_when_one_was_killed(tmp_path, submit) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert submit(whole, "nothing").wait(timeout=900) == 0
    assert submit(killed, "death").wait(timeout=900) == 0
    assert (killed / "has-died").exists() and not (killed / "requeued").exists()
    killed_training.check_equal(killed, whole)
