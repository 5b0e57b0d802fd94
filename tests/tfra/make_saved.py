"""Writes `saved/`, what TFRA 0.8.1 saves of a small table, and what it trains from there on.

    TF_USE_LEGACY_KERAS=1 python tests/tfra/make_saved.py tests/tfra/saved

in an environment with `tensorflow==2.16.2`, `tf_keras==2.16.0` and
`tensorflow-recommenders-addons==0.8.1`. The table has keys of two shards, slots of Adam after 5
steps, and the counts of a policy.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding as de

KEYS = np.array([1, 5, 2**40, -7, 12], np.int64)


def main(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = tf.keras.initializers.RandomNormal(0.0, 0.5, seed=3)
    layer = de.keras.layers.Embedding(
        3,
        initializer=start,
        name="items",
        devices=["/CPU:0", "/CPU:0"],
        restrict_policy=de.FrequencyRestrictPolicy,
    )
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(0.1))

    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((layer(tf.constant(keys)) - 1.0) ** 2)
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    for number in range(5):
        step(KEYS[: 3 + number % 3])
    tf.train.Checkpoint(layer=layer, optimizer=optimizer).write(str(folder / "ckpt"))
    slots = layer.optimizer_vars
    slots = list(slots.as_list() if hasattr(slots, "as_list") else slots)
    for table in (layer.params, *slots, layer.params.restrict_policy.status):
        table.save_to_file_system(dirpath=str(folder / "files"))

    held = {"keys": KEYS, "embeddings": layer.params.lookup(tf.constant(KEYS)).numpy()}
    for name, slot in zip("mv", slots, strict=True):
        held[name] = slot.lookup(tf.constant(KEYS)).numpy()
    held["counts"] = layer.params.restrict_policy.status.lookup(tf.constant(KEYS)).numpy()
    for _ in range(3):
        step(KEYS)
    held["trained"] = layer.params.lookup(tf.constant(KEYS)).numpy()
    np.savez(folder / "expected.npz", **held)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
