"""Trains the same thing several times, each time after workers have met anew.

python stranger_worker.py FOLDER NAME=PORT=SECRET ...    # with RANK, WORLD_SIZE and the like

Worker 1 comes to the meeting of a name once the folder has a file of that name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import sok_embed

STEPS = 4


def train(name: str) -> dict[str, list[float]]:
    """Returns the losses of all steps, the dense weights and some rows."""
    keras.utils.set_random_seed(0)
    rank = sok_embed.rank()
    layer = sok_embed.DynamicEmbedding(4, name=name, seed=1)
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=2))
    optimizer = sok_embed.DistributedOptimizer(keras.optimizers.Adagrad(0.1))
    losses = []
    for step in range(STEPS):
        ids = tf.constant(np.arange(32) * (step + 1) + rank)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((dense(layer(ids, training=True)) - 1.0) ** 2)
        weights = [*layer.trainable_variables, *dense.trainable_variables]
        optimizer.apply(tape.gradient(loss, weights), weights)
        losses.append(float(loss))
    rows = layer(tf.constant(np.arange(64)))
    return {
        "losses": losses,
        "kernel": keras.ops.convert_to_numpy(dense.kernel).ravel().tolist(),
        "rows": rows.numpy().ravel().tolist(),
    }


def main() -> None:
    """Trains after each meeting, and writes down what came of it."""
    folder = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    trained = {}
    for meeting in sys.argv[2:]:
        name, os.environ["MASTER_PORT"], os.environ["SOK_EMBED_SECRET"] = meeting.split("=")
        while rank == 1 and not (folder / name).exists():
            time.sleep(0.02)
        sok_embed.init("tcp")
        trained[name] = train("same")
    (folder / f"{rank}.json").write_text(json.dumps(trained))


if __name__ == "__main__":
    main()
