"""A training of several workers by `checkpoint.fit` that loses a worker, or is asked to stop.

python killed_training.py FOLDER

With HAPPENS=death worker 1 kills itself within the second epoch, once for each FOLDER. With
HAPPENS=signal the workers wait in the second epoch, each with a file `waits-RANK` in FOLDER, until
SIGUSR1 has saved their place. Worker 0 leaves the losses, and each worker its rows, in FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok

STEPS = 6  # of an epoch
_DEATH = STEPS + 3


def examples() -> tf.data.Dataset:
    """Returns this worker's batches of 96 examples, shuffled and then dealt."""
    random = np.random.default_rng(0)
    keys, targets = random.integers(0, 50, (96, 2)), random.normal(size=(96, 1))
    whole = tf.data.Dataset.from_tensor_slices((keys, targets.astype(np.float32)))
    return whole.shuffle(96, seed=3).shard(sok.size(), sok.rank()).batch(16 // sok.size())


def train(
    folder: Path,
    dies: bool = False,
    data: tf.data.Dataset | None = None,
    stop_when: Callable[[], bool] | None = None,
) -> list[float]:
    """Trains three epochs, or what is left of them. Returns the losses of all."""
    keras.utils.set_random_seed(7)
    rows = sok.DynamicEmbedding(4, seed=1, name="rows")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), rows, keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile(sok.DistributedOptimizer("adam"), "mse")
    has_died, waits = folder / "has-died", folder / f"waits-{sok.rank()}"

    def after_a_batch(batch: int, logs: Any) -> None:
        step = int(model.optimizer.iterations)
        if dies and sok.rank() == 1 and step == _DEATH and not has_died.exists():
            has_died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if stop_when is not None and step == _DEATH and not waits.exists():
            waits.touch()
            while not stop_when():
                time.sleep(0.05)

    history = sok.checkpoint.fit(
        model,
        examples() if data is None else data,
        directory=folder / "checkpoints",
        epochs=3,
        save_freq=2,
        position="count",
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=after_a_batch)],
        stop_when=stop_when,
        verbose=0,
    )
    keys, vectors = rows.table.export()
    order = np.argsort(keys)
    np.savez(folder / f"rows-{sok.rank()}", keys=keys[order], vectors=vectors[order])
    if sok.rank() == 0:
        np.save(folder / "losses", history.history["loss"])
    return [float(loss) for loss in history.history["loss"]]


def check_equal(folder: Path, expected: Path) -> None:
    """Compares what two workers have left, bit for bit."""
    np.testing.assert_array_equal(np.load(folder / "losses.npy"), np.load(expected / "losses.npy"))
    for rank in range(2):
        found, whole = (np.load(each / f"rows-{rank}.npz") for each in (folder, expected))
        for name in ("keys", "vectors"):
            np.testing.assert_array_equal(found[name], whole[name], err_msg=name)
        assert len(whole["keys"]) > 0


if __name__ == "__main__":
    sok.init()
    happens = os.environ.get("HAPPENS")
    stop = sok.checkpoint.stop_on(signal.SIGTERM, signal.SIGUSR1) if happens == "signal" else None
    train(Path(sys.argv[1]), happens == "death", stop_when=stop)
