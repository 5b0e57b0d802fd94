"""Lookups within `tf.vectorized_map`, over workers whose maps have different numbers of turns."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.models import share
from sharded.registry import Here, scenario

SAMPLES, STEPS, BAGS = 12, 3, 2
ON = {"device": os.environ.get("SOK_TEST_ROWS_ON", "cpu")}


def _layers() -> dict[str, Any]:
    users = sok_embed.TableConfig("users", 40, 4, seed=1, **ON)
    items = sok_embed.TableConfig("items", None, 3, seed=2, **ON)
    features = {
        "user": sok_embed.FeatureConfig("user", users, combiner="max"),
        "log": sok_embed.FeatureConfig("log", users, combiner="sqrtn"),
        "item": sok_embed.FeatureConfig("item", items, combiner="mean"),
    }
    return {
        "plain": sok_embed.DynamicEmbedding(4, seed=3, name="plain", **ON),
        "bags": sok_embed.DynamicEmbedding(4, seed=4, combiner="mean", name="bags", **ON),
        "adaptive": sok_embed.AdaptiveEmbedding(4, 10**6, promote_after=1, seed=5, name="adaptive"),
        "fields": sok_embed.DistributedEmbedding(features, name="fields"),
    }


def _vectors(layers: dict[str, Any], keys: Any, weights: Any) -> Any:
    """Returns `[BAGS, n]`, of the keys and weights of one turn, `[BAGS, L]`."""
    fields = layers["fields"](
        {"user": keys, "log": tf.RaggedTensor.from_tensor(keys), "item": keys - 9},
        {"item": weights},
        training=True,
    )
    plain, adaptive = (layers[name](keys, training=True) for name in ("plain", "adaptive"))
    pooled = layers["bags"](keys, weights=weights, training=True)
    sums = [tf.reduce_sum(vectors * weights[..., None], 1) for vectors in (plain, adaptive)]
    return tf.concat([*sums, pooled, *fields.values()], -1)


@scenario
def mapped(here: Here) -> dict[str, Any]:
    layers = _layers()
    random = np.random.default_rng(11)
    keys = random.integers(0, 40, (STEPS, SAMPLES, BAGS, 3))
    weights = random.uniform(0.5, 2, keys.shape).astype(np.float32)
    _vectors(layers, tf.constant(keys[0, 0]), tf.constant(weights[0, 0]))
    variables = [variable for layer in layers.values() for variable in layer.trainable_variables]
    optimizer = sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build(variables)

    @tf.function
    def step(keys: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            vectors = tf.vectorized_map(lambda turn: _vectors(layers, *turn), (keys, weights))
            loss = tf.reduce_mean(tf.reduce_sum(vectors**2, [1, 2]))
        of_weights, *gradients = tape.gradient(loss, [weights, *variables])
        optimizer.apply(gradients, variables)
        return vectors, of_weights

    saved: dict[str, Any] = {}
    for number in range(STEPS):
        given = [tf.constant(share(each[number], here)) for each in (keys, weights)]
        vectors, of_weights = step(*given)
        saved[f"vectors.{number}"] = vectors
        saved[f"gradients.{number}"] = of_weights / here.size
    return saved


@scenario
def mapped_on_disk(here: Here) -> dict[str, Any]:
    """Looks keys up in a function of its own, whose ops are in the order of their tables."""

    @tf.function
    def inside(keys: Any) -> Any:
        return tf.concat([tf.reduce_sum(plain(keys), 1), pooled(keys)], -1)

    with tempfile.TemporaryDirectory() as folder, sok_embed.Storage(folder) as storage:
        of_storage = {"storage": storage, "seed": 3}
        plain = sok_embed.DynamicEmbedding(4, name="stored", **of_storage)
        pooled = sok_embed.DynamicEmbedding(
            4, combiner="mean", name="stored_bags", group=1, **of_storage
        )
        keys = tf.constant(np.random.default_rng(here.rank).integers(0, 40, (SAMPLES, BAGS, 3)))
        expected = tf.stack([inside(each) for each in keys])
        found = tf.function(lambda turns: tf.vectorized_map(inside, turns))(keys)
        return {"found": found, "expected": expected}
