"""Starting workers, and the few calls that bring their results together."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.batches import InputError


@dataclass(frozen=True)
class Workers:
    """This process among the workers of the run."""

    rank: int = 0
    size: int = 1

    def gather(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Returns the rows of all workers, in the order of the ranks; all workers must call it."""
        if self.size == 1:
            return rows
        import horovod.tensorflow as hvd

        return np.asarray(hvd.allgather(rows))

    def total(self, figure: float) -> float:
        """Returns the sum of a figure over all workers; all workers must call it."""
        return float(self.gather(np.array([figure], np.float64)).sum())

    def optimizer(self, optimizer: Any) -> Any:
        """Returns the optimizer, which averages dense gradients when there are several workers."""
        if self.size == 1:
            return optimizer
        import sok_embed

        return sok_embed.DistributedOptimizer(optimizer)

    def callbacks(self) -> list[Any]:
        """Returns what `fit` needs for all workers to start alike."""
        if self.size == 1:
            return []
        import sok_embed

        return [sok_embed.callbacks.BroadcastVariables(root_rank=0)]


def started_by_horovod() -> bool:
    """Returns whether this process is one of the workers that `launch` started."""
    return "HOROVOD_RANK" in os.environ


def join(workers: int, needs_sok_embed: bool) -> Workers:
    """Takes this process's place among the workers; call it before anything of TensorFlow runs."""
    if not needs_sok_embed and workers == 1:
        return Workers()
    if importlib.util.find_spec("sok_embed") is None:
        raise InputError(
            "Expected the package sok_embed. Received: no such module for "
            f"{sys.executable}. Install it with `pip install .` from the root of the project, "
            "or compare with `--embedding static --workers 1`, which does without."
        )
    import sok_embed

    sok_embed.init()
    here = Workers(sok_embed.rank(), sok_embed.size())
    if here.size != workers:
        raise InputError(
            f"Expected {workers} workers, as --workers says. Received: {here.size} from Horovod. "
            "Start the script with --workers alone and let it start Horovod."
        )
    return here


def launch(script: Path, arguments: Sequence[str], workers: int) -> int:
    """Runs the script on `workers` local processes under Horovod; returns the exit status."""
    beside = Path(sys.executable).with_name("horovodrun")
    horovodrun = str(beside) if beside.is_file() else shutil.which("horovodrun")
    if horovodrun is None or importlib.util.find_spec("horovod") is None:
        raise InputError(
            f"--workers {workers}: expected Horovod, which carries keys and rows between workers. "
            f"Received: none for {sys.executable}. Build it with `make setup`, or run "
            "`python scripts/build_horovod.py` in this environment, or leave --workers out."
        )
    command = [horovodrun, "-np", str(workers), "--gloo"]
    command += [sys.executable, str(script), *arguments]
    return subprocess.run(command, check=False).returncode
