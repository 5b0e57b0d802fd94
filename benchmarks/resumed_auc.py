"""Does a run that was killed on two workers and gone on with three end as one that was not killed?

    python benchmarks/resumed_auc.py ml-100k

A model of users and items on MovieLens 100k (`ua.base` and `ua.test` of the folder), which
GroupLens distributes: is a rating 4 or more? Three runs, by `sok-embed run`: two workers without a
kill; two workers of which the last is killed by SIGKILL in the middle of the second epoch; three
workers that go on from there by the count of batches. The AUC on the test set of the first and the
last are compared.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import report

BATCH = 768  # of all workers together: two and three divide it
EPOCHS = 3
KILLED_AT = (1, 70)  # epoch and batch, counted from 0
SAVE_EVERY = 25


def train(data: Path, folder: Path, *, die: bool) -> None:
    """Trains as one of the workers; the first one prints the AUC."""
    import keras
    import numpy as np
    import tensorflow as tf

    import sok_embed as sok

    sok.init()
    rank, size = sok.rank(), sok.size()

    def ratings(name: str) -> tuple[Any, Any]:
        columns = np.loadtxt(data / name, dtype=np.int64)
        return columns[:, :2], (columns[:, 2:3] >= 4).astype(np.float32)

    ids, targets = ratings("ua.base")
    keras.utils.set_random_seed(7)
    pairs = keras.Input((2,), dtype="int64")
    users = sok.DynamicEmbedding(16, seed=1, name="users")(pairs[:, 0])
    items = sok.DynamicEmbedding(16, seed=2, name="items")(pairs[:, 1])
    joined = keras.layers.Concatenate()([users, items, users * items])
    hidden = keras.layers.Dense(32, activation="relu")(joined)
    model = keras.Model(pairs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    optimizer = sok.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    model.compile(optimizer, "binary_crossentropy")
    dataset = tf.data.Dataset.from_tensor_slices((ids, targets)).shuffle(len(ids), seed=5)
    dataset = dataset.shard(size, rank).batch(BATCH // size, drop_remainder=True)
    dataset = dataset.take(len(ids) // BATCH)

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if die and (self.epoch, batch) == KILLED_AT and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)

    sok.checkpoint.fit(
        model,
        dataset,
        directory=folder,
        epochs=EPOCHS,
        save_freq=SAVE_EVERY,
        position="count",
        callbacks=[Kill()],
        verbose=0,
    )
    ids, targets = ratings("ua.test")
    predicted = model.predict(ids, batch_size=2048, verbose=0)  # all workers predict all of it
    auc = keras.metrics.AUC(num_thresholds=5000)
    auc.update_state(targets, predicted)
    if rank == 0:
        print(f"auc={float(auc.result())!r}", flush=True)


def run(workers: int, data: str, folder: Path, die: str = "") -> float:
    """Starts workers. Returns the AUC; 0 if one was killed."""
    command = [sys.executable, "-m", "sok_embed", "run", "-np", str(workers), "--"]
    command += [sys.executable, __file__, data, "--folder", str(folder), *([die] if die else [])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if die:
        assert ended.returncode != 0, "nobody was killed"
        return 0.0
    assert ended.returncode == 0, ended.stderr[-4000:]
    return float(ended.stdout.split("auc=")[1].split()[0])


def main() -> None:
    """Runs all three, or is a worker of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="the folder of MovieLens 100k")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--die", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        train(Path(arguments.data), arguments.folder, die=arguments.die)
        return
    with tempfile.TemporaryDirectory() as folder:
        whole = run(2, arguments.data, Path(folder) / "whole")
        run(2, arguments.data, Path(folder) / "killed", "--die")
        resumed = run(3, arguments.data, Path(folder) / "killed")
    difference = abs(whole - resumed)
    report(
        {"benchmark": "resumed_auc", "whole": whole, "resumed": resumed},
        f"AUC {whole:.6f} without a kill, {resumed:.6f} killed and gone on with three workers: "
        f"{difference:.6f} apart",
    )


if __name__ == "__main__":
    main()
