"""Starts workers, and collects their results."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.batches import InputError

_NO_SOK_EMBED = (
    "Expected the package sok_embed. Received: no such module for {}. Install it with `pip install "
    ".` from the root of the project, or compare with `--embedding static` on one worker, which "
    "does without."
)

_STEPS_OF_A_SAVE = 50


@dataclass(frozen=True)
class Workers:
    """This process among the workers of the run."""

    rank: int = 0
    size: int = 1
    on_ray: bool = False

    def gather(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Returns the rows of all workers, in the order of the ranks; all workers must call it."""
        if self.size == 1:
            return rows
        import tensorflow as tf

        from sok_embed import communicators

        to_all = tf.tile(rows, [self.size] + [1] * (rows.ndim - 1))
        splits = tf.fill([self.size], len(rows))
        gathered, _ = communicators.current().all_to_all(to_all, splits, "ctr.gather")
        return np.asarray(gathered)

    def total(self, figure: float) -> float:
        """Returns the sum of a figure over all workers; all workers must call it."""
        return float(self.gather(np.array([figure], np.float64)).sum())

    def optimizer(self, optimizer: Any) -> Any:
        """Returns the optimizer, which averages dense gradients when there are several workers."""
        if self.size == 1:
            return optimizer
        import sok_embed

        return sok_embed.DistributedOptimizer(optimizer)

    def fit(self, model: Any, batches: Any, epochs: int, callbacks: list[Any]) -> None:
        """Trains a model; on Ray with checkpoints, from which workers go on that Ray restarts."""
        if self.size > 1:
            import sok_embed

            # By it all workers start with the same weights.
            callbacks = [sok_embed.callbacks.BroadcastVariables(root_rank=0), *callbacks]
        if self.on_ray:
            import sok_embed.ray

            arguments = {"epochs": epochs, "save_freq": _STEPS_OF_A_SAVE, "verbose": 0}
            sok_embed.ray.fit(model, batches, callbacks=callbacks, **arguments)
            return
        # The source has shuffled where order does not matter.
        model.fit(batches, epochs=epochs, callbacks=callbacks, verbose=0, shuffle=False)

    def save(self, model: Any, path: Path) -> None:
        """Writes a model, with the rows of all workers, to a `.keras` file; all must call it."""
        if importlib.util.find_spec("sok_embed") is None:
            model.save(path)
            return
        import sok_embed

        sok_embed.save_model(model, path)


def are_started() -> bool:
    """Returns whether a launcher has started this process as one of several workers."""
    if importlib.util.find_spec("sok_embed") is None:
        return False
    from sok_embed.communicators.launchers import find_workers

    return find_workers() is not None


def join(workers: int | None, needs_sok_embed: bool, engine: str = "run") -> Workers:
    """Takes this process's place among the workers; call it before anything of TensorFlow runs."""
    on_ray = engine == "ray"
    if not needs_sok_embed and not are_started() and not on_ray:
        return Workers()
    if importlib.util.find_spec("sok_embed") is None:
        raise InputError(_NO_SOK_EMBED.format(sys.executable))
    import sok_embed

    sok_embed.init()
    here = Workers(sok_embed.rank(), sok_embed.size(), on_ray)
    if workers not in (None, here.size):
        raise InputError(
            f"Expected {workers} workers, as --workers says. Received: {here.size} of the launcher "
            "that has started them. Leave --workers out under a launcher."
        )
    return here


def launch(script: Path, arguments: Sequence[str], workers: int) -> int:
    """Runs the script on `workers` processes of this machine; returns the exit status."""
    if importlib.util.find_spec("sok_embed") is None:
        raise InputError(_NO_SOK_EMBED.format(sys.executable))
    command = [sys.executable, "-m", "sok_embed", "run", "-np", str(workers), "--"]
    command += [sys.executable, str(script), *arguments]
    return subprocess.run(command, check=False).returncode
