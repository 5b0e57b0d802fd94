"""Exchanges, reduces and trains with one level and with two, and writes down what came of each.

python two_level_worker.py SEED FOLDER    # four workers, started by sok-embed run
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf

from sharded.hosts import init_on_host
from sharded.small_training import trained
from sok_embed.communicators import Communicator

WORKERS, ROUNDS = 4, 12
DTYPES = ("int64", "float32", "float64", "int8")
MOST_ROWS, WIDTH = 3000, 3
STEPS = 10

Arrays = dict[str, np.ndarray]


def sent_by(seed: int, number: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of a worker in an exchange, and how many go to each worker."""
    random = np.random.default_rng([seed, number, rank])
    # Some workers send nothing, and some sizes are those of a few rows.
    most = random.choice([0, 5, MOST_ROWS])
    splits = random.integers(0, most + 1, WORKERS) * random.integers(0, 2, WORKERS)
    rows = random.integers(-100, 100, [splits.sum(), *[WIDTH] * (number % 3)])
    return rows.astype(DTYPES[number % len(DTYPES)]), splits.astype(np.int32)


def exchanged(communicator: Communicator, seed: int) -> Arrays:
    """Exchanges rows of random numbers, sizes and types."""
    told: Arrays = {}
    rank = communicator.rank
    for number in range(ROUNDS):
        rows, splits = sent_by(seed, number, rank)

        def all_to_all(rows: tf.Tensor, splits: tf.Tensor) -> Any:
            return communicator.all_to_all(rows, splits, f"rows.{number % 4}")  # noqa: B023

        call = tf.function(all_to_all) if number % 2 else all_to_all
        received, counts = call(tf.constant(rows), tf.constant(splits))
        told[f"{number}.rows"], told[f"{number}.counts"] = received.numpy(), counts.numpy()
        gathered, _ = communicator.all_gather(tf.constant(rows), f"gathered.{number % 4}")
        told[f"{number}.gathered"] = gathered.numpy()
    return told


def reduced(communicator: Communicator, seed: int) -> Arrays:
    """Sums, gives out, and takes gradients of exchanges."""
    rank = communicator.rank
    own = tf.constant(np.random.default_rng([seed, rank]).normal(size=[101]), tf.float32)
    splits = tf.constant([20, 0, 31, 50], tf.int32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(own)
        received, _ = communicator.all_to_all(own, splits, "watched")
        gathered, _ = communicator.all_gather(own, "all")
        losses = [tf.reduce_sum(each * (rank + 1.0)) for each in (received, gathered)]
    told = {
        "sum": communicator.all_reduce(own, "sum"),
        "broadcast": communicator.broadcast(own, 2, "broadcast"),
        "gradient": tape.gradient(losses[0], own),
        "gathered.gradient": tape.gradient(losses[1], own),
    }
    communicator.barrier()
    return {name: each.numpy() for name, each in told.items()}


def main() -> None:
    seed, folder = int(sys.argv[1]), Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    for levels in (2, 1):
        # Ranks of one host do not follow each other, as under some launchers.
        communicator = init_on_host(rank % 2, levels=levels)
        told: Arrays = {}
        for work in (exchanged, reduced):
            told |= work(communicator, seed)
        told |= trained(keras.optimizers.Adam(0.1), seed, STEPS)
        told["exchanges"] = np.array(communicator.connections.stats()["exchanges"])
        sockets = [each for each in Path("/proc/self/fd").iterdir() if _is_socket(each)]
        told["sockets"] = np.array(len(sockets))
        np.savez(folder / f"{levels}.{rank}.npz", **told)


def _is_socket(path: Path) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:
        return False


if __name__ == "__main__":
    main()
