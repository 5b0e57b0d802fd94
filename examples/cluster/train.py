"""Trains a small click model on the workers of any launcher, and goes on where it was stopped.

    sok-embed run -np 2 python examples/cluster/train.py runs/clicks

DIRECTORY gets the checkpoints: a folder that all workers share, or a URL such as s3://bucket/clicks.
Where a worker is lost the others end with an error, and where one gets SIGTERM or SIGUSR1 all save
and end with status 75. The same command, also on another number of workers, goes on at the batch
after the last checkpoint.
"""

from __future__ import annotations

import argparse
import signal

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok


def examples(number: int, ids: int) -> tf.data.Dataset:
    """Returns pairs of a user and an item, and whether it was clicked: the same in each process."""
    random = np.random.default_rng(0)
    pairs = random.zipf(1.2, (number, 2)) % ids
    taste = random.normal(size=(2, ids))
    clicks = taste[0, pairs[:, 0]] + taste[1, pairs[:, 1]] > 0
    return tf.data.Dataset.from_tensor_slices((pairs, clicks[:, None].astype(np.float32)))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("directory", metavar="DIRECTORY", help="of the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=1000, help="of all workers together")
    parser.add_argument("--save-freq", type=int, default=200, help="the steps between saves")
    options = parser.parse_args()

    stop = sok.checkpoint.stop_on(signal.SIGTERM, signal.SIGUSR1)
    sok.init(timeout=1800)  # workers wait so long for those whose machines are not there yet
    keras.utils.set_random_seed(1)  # so that another run has the same losses
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int64"),
            sok.DynamicEmbedding(16, seed=1),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(sok.DistributedOptimizer("adam"), "binary_crossentropy", metrics=["accuracy"])
    shuffled = examples(options.examples, ids=200_000).shuffle(100_000, seed=1)
    own = shuffled.shard(sok.size(), sok.rank())  # after the shuffle: any number of workers goes on
    history = sok.checkpoint.fit(
        model,
        own.batch(options.batch_size // sok.size()),
        directory=options.directory,
        epochs=options.epochs,
        save_freq=options.save_freq,
        position="count",
        stop_when=stop,
        verbose=2 if sok.rank() == 0 else 0,
    )
    print(f"worker {sok.rank()} of {sok.size()}: loss {history.history['loss'][-1]:.6f}")


if __name__ == "__main__":
    main()
