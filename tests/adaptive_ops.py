"""What tests of the ops on an adaptive table share."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sok_embed import tf_ops

DIM, BUCKETS = 4, 6
RATE = {"learning_rate": 1.0}


def new_table(**attributes: Any) -> tf.Tensor:
    given = {"static_buckets": BUCKETS, "sketch_capacity": 20_000, **attributes}
    return tf_ops.anonymous_adaptive_table("ada", DIM, **given)


def look(table: tf.Tensor, keys: Any, training: bool = True, **options: Any) -> tf.Tensor:
    if options.get("mask") is not None:
        options["mask"] = tf.cast(options["mask"], tf.int32)
    if options.get("counts") is not None:
        options["counts"] = tf.cast(options["counts"], tf.int64)
    keys = tf.cast(keys, tf.int64)
    return tf_ops.adaptive_lookup(table, keys, DIM, training, **options).embeddings


def sgd(table: tf.Tensor, gradient: Any, scale: Any = 1.0, **options: Any) -> tf.Tensor:
    steps = [tf_ops.RuleStep("sgd", RATE, **options)]
    return tf_ops.commit(table, gradient, steps, tf_ops.Redemption(scale=scale))


def own_keys(table: tf.Tensor) -> list[int]:
    own, _ = tf_ops.adaptive_tables(table)
    return sorted(tf_ops.export(own, DIM, with_slots=False).keys.numpy().tolist())


def stats(table: tf.Tensor) -> dict[str, float]:
    names, values = tf_ops.adaptive_stats(table)
    return {name.decode(): value for name, value in zip(names.numpy(), values.numpy(), strict=True)}


def train(table: tf.Tensor, keys: Any, rule: str = "sgd", **options: Any) -> tf.Tensor:
    """One step with gradients of 1, 2, ...; returns what the lookup read."""
    anchor = tf.Variable(0.0)
    with tf.GradientTape() as tape:
        found = look(table, keys, anchor=anchor, **options)
        scale = tf.reshape(tf.cast(tf.range(tf.size(found)) + 1, tf.float32), tf.shape(found))
        loss = tf.reduce_sum(found * tf.cast(scale, found.dtype))
    gradient = tape.gradient(loss, anchor)
    tf_ops.commit(table, gradient, [tf_ops.RuleStep(rule, RATE)])
    return found
