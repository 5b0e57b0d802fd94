"""One worker that trains and writes a `tf.train.Checkpoint`, or reads the one of a rank."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import sok_embed

RANDOM = np.random.default_rng(3)
KEYS = RANDOM.integers(0, 60, (64, 2))
TARGETS = RANDOM.normal(size=(64, 1))


def main(folder: Path, task: str, shift: int) -> None:
    """Writes `ck-<rank>`, or reads `ck-<(rank + shift) % writers>` and notes what came of it."""
    sok_embed.init()
    rank, size = sok_embed.rank(), sok_embed.size()
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int64"),
            sok_embed.DynamicEmbedding(4, seed=1, name="emb"),
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    checkpoint = tf.train.Checkpoint(model=model)
    if task == "write":
        model.fit(KEYS[rank::size], TARGETS[rank::size], batch_size=8, verbose=0)
        checkpoint.write(folder / f"ck-{rank}")
        np.save(folder / f"rows-{rank}", np.sort(model.get_layer("emb").table.export()[0]))
        return
    writers = len(list(folder.glob("ck-*.index")))
    try:
        checkpoint.read(str(folder / f"ck-{(rank + shift) % writers}"))
        keys = np.sort(model.get_layer("emb").table.export()[0])
        text = "same" if np.array_equal(keys, np.load(folder / f"rows-{rank}.npy")) else "others"
    except ValueError as error:
        text = str(error)
    (folder / f"{task}-{rank}.txt").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
