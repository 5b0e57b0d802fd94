"""Where rows live and what they start from."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.registry import Here, scenario

EDGES = [0, 1, -1, 2, -2, 5, -7, 2**62 + 1, -(2**62), 2**63 - 1, -(2**63)]


@scenario
def initial_rows(here: Here) -> dict[str, Any]:
    """Each worker asks for all keys; the first time without making rows."""
    keys = np.concatenate([EDGES, np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 200)])
    layer = sok_embed.DynamicEmbedding(6, "normal", name="dynamic")
    evaluated = layer(keys, training=False)
    size_after_evaluation = layer.table.size()
    trained = layer(keys, training=True)
    again = layer(keys[::-1], training=True)
    saved = dict(zip(("dynamic.keys", "dynamic.rows"), layer.table.export(), strict=True))
    return {
        **saved,
        "keys": keys,
        "size_after_evaluation": size_after_evaluation,
        "evaluated": evaluated,
        "trained": trained,
        "again": again[::-1],
    }


@scenario
def every_input_form(here: Here) -> dict[str, Any]:
    """Looks up an empty batch, int32 and uint64 keys, a scalar, and keys of the dense layer."""
    layer = sok_embed.DynamicEmbedding(2, name="dynamic")
    dynamic = sok_embed.All2AllDenseEmbedding(
        10, 2, 1, 1, dynamic_input=True, key_dtype=tf.uint64, name="hashed"
    )
    nothing = np.zeros([0, 4], np.int64)
    return {
        "empty": layer(nothing if here.rank == 0 else nothing[:, :2]),
        "int32": layer(tf.constant([[3, -4]], tf.int32)),
        "int64": layer(tf.constant([[3, -4]], tf.int64)),
        "scalar": layer(tf.constant(3, tf.int64)),
        "uint64": dynamic(tf.constant([2**64 - 1, 7], tf.uint64)),
        "sizes": [layer.table.size(), dynamic.table.size()],
    }


@scenario
def combined_bags(here: Here) -> dict[str, Any]:
    """Each worker pools the same weighted bags of trained vectors, then one takes a step alone."""
    rng = np.random.default_rng(4)
    keys = np.concatenate([EDGES, rng.integers(-(2**63), 2**63 - 1, 20)])
    vectors = rng.normal(size=(len(keys), 3)).astype(np.float32)
    layer = sok_embed.DynamicEmbedding(3, combiner="mean", weights=(keys, vectors), name="bags")
    bags = tf.ragged.constant([keys[:4].tolist(), [], keys[3:9].tolist()], dtype=tf.int64)
    weights = bags.with_values(tf.constant(rng.uniform(0.5, 2, 10), tf.float32))
    pooled = layer(bags, weights)
    optimizer = sok_embed.DistributedOptimizer(keras.optimizers.SGD(1.0))
    own, of_own = (bags, weights) if here.rank == here.size - 1 else (bags[:0], weights[:0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(own, of_own, training=True)) * here.size
    optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    saved = dict(zip(("bags.keys", "bags.rows"), layer.table.export(), strict=True))
    return {**saved, "pooled": pooled, "start.keys": keys, "start.rows": vectors}
