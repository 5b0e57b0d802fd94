"""A model that workers train together, who save a checkpoint, and what they predict.

python trained_by_two.py FOLDER
"""

from __future__ import annotations

import os
import sys

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok

DIM = 4
KEYS = np.random.default_rng(0).integers(-30, 30, (32, 3))


def make_model() -> keras.Model:
    """Returns the model, the same in each process."""
    keras.utils.set_random_seed(1)
    tables = [
        sok.TableConfig("many", None, DIM, initializer="ones", combiner="mean"),
        sok.TableConfig("few", 30, DIM, combiner="sum"),
    ]
    ids = keras.Input((3,), dtype="int64", name="ids")
    positive = keras.ops.abs(ids) % 30
    many, few = sok.DistributedEmbedding(
        [sok.FeatureConfig("many", tables[0]), sok.FeatureConfig("few", tables[1])], name="fields"
    )([ids, positive])
    own = sok.DynamicEmbedding(DIM, "zeros", combiner="sqrtn", name="own")(ids)
    adaptive = sok.AdaptiveEmbedding(DIM, 7, combiner="sum", name="adaptive")(ids)
    joined = keras.layers.Concatenate()([many, few, own, adaptive])
    model = keras.Model(ids, [joined, keras.layers.Dense(1, name="score")(joined)])
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(sok.DistributedOptimizer(optimizer), ["mse", "mse"])
    return model


def main(folder: str) -> None:
    """Trains, saves a checkpoint, and has worker 0 write what the model answers."""
    sok.init()
    model = make_model()
    part = slice(sok.rank() * 16, sok.rank() * 16 + 16)
    targets = (np.ones((16, 4 * DIM), np.float32), np.ones((16, 1), np.float32))
    data = tf.data.Dataset.from_tensors((KEYS[part], targets)).repeat(3)
    model.fit(data, epochs=1, steps_per_epoch=3, verbose=0,
              callbacks=[sok.callbacks.BroadcastVariables(0)])  # fmt: skip
    sok.checkpoint.Checkpoint(model).save(os.path.join(folder, "saved"))
    asked = np.concatenate([KEYS, [[100, 101, 102]]])
    vectors, scores = model.predict(asked, batch_size=len(asked), verbose=0)
    if sok.rank() == 0:
        np.savez(os.path.join(folder, "predicted.npz"), asked=asked, vectors=vectors, scores=scores)


if __name__ == "__main__":
    main(sys.argv[1])
