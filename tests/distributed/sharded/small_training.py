"""Trains a small model by any number of workers, each with its part of every batch.

python small_training.py LEVELS HOSTS FOLDER    # started by sok-embed run, or alone
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.hosts import init_on_host

KEYS, BATCH, STEPS = 200, 96, 100
SEED = 3

Arrays = dict[str, np.ndarray]


def trained(optimizer: keras.optimizers.Optimizer, seed: int, steps: int) -> Arrays:
    """Returns the weights, and the vectors of all keys, after so many steps."""
    rank, size = sok_embed.rank(), sok_embed.size()
    keras.utils.set_random_seed(7)
    table = sok_embed.DynamicEmbedding(4, name="table")
    dense = [keras.layers.Flatten(), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,), dtype="int64"), table, *dense])
    model.compile(sok_embed.DistributedOptimizer(optimizer), "mse")
    random = np.random.default_rng(seed)
    keys = random.integers(0, KEYS, [steps * BATCH, 3])
    labels = np.sin(keys).sum(1, keepdims=True).astype(np.float32)
    callbacks = [sok_embed.callbacks.BroadcastVariables(0)]
    own = slice(rank, None, size)  # BATCH is a multiple of the number of workers
    model.fit(keys[own], labels[own], BATCH // size, shuffle=False, verbose=0, callbacks=callbacks)
    told = {f"weight.{i}": each for i, each in enumerate(model.get_weights())}
    told["vectors"] = table(tf.range(KEYS, dtype=tf.int64)).numpy()
    return told


def main() -> None:
    levels, hosts, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    rank, size = (int(os.environ.get(name, i)) for i, name in enumerate(("RANK", "WORLD_SIZE")))
    init_on_host(rank * hosts // size, levels=levels)
    np.savez(folder / f"{rank}.npz", **trained(keras.optimizers.SGD(0.1), SEED, STEPS))


if __name__ == "__main__":
    main()
