"""Layers within `tf.vectorized_map`, and in a loop over the turns of the map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import optimizers as ko

import sok_embed
from sok_embed import (
    AdaptiveEmbedding,
    DistributedEmbedding,
    DynamicEmbedding,
    FeatureConfig,
    TableConfig,
)

DIM = 4
TURNS = 3
KEYS = np.array([[[1, 2], [2, 5]], [[3, 1], [0, 7]], [[2, 2], [4, 1]]])
WEIGHTS = np.random.default_rng(7).uniform(0.5, 2, KEYS.shape).astype(np.float32)


def ragged(values: Any) -> tf.RaggedTensor:
    """Bags of one value, none, and three."""
    return tf.RaggedTensor.from_row_splits(tf.reshape(values, [-1]), [0, 1, 1, 4], validate=False)


def sparse(values: Any) -> tf.SparseTensor:
    return tf.SparseTensor([[0, 0], [2, 0], [2, 1], [2, 2]], tf.reshape(values, [-1]), [3, 3])


def pooling(combiner: str | None) -> Callable[[str], DynamicEmbedding]:
    """Returns a function that makes a layer on a device."""
    return lambda device: DynamicEmbedding(DIM, combiner=combiner, seed=1, device=device)


def collection(device: str, output: str = "structure") -> DistributedEmbedding:
    users = TableConfig("users", 100, 4, seed=1, device=device)
    items = TableConfig("items", None, 3, seed=2, device=device, optimizer=ko.Adagrad(0.3))
    frozen = TableConfig("frozen", None, 2, seed=3, device=device, trainable=False)
    features = {
        "user": FeatureConfig("user", users, combiner="sqrtn"),
        "log": FeatureConfig("log", users, combiner="mean"),
        "item": FeatureConfig("item", items, combiner="max"),
        "frozen": FeatureConfig("frozen", frozen, combiner="sum"),
    }
    return DistributedEmbedding(features, output=output)


def adaptive(promote_after: int, device: str, **arguments: Any) -> AdaptiveEmbedding:
    arguments = {"promote_after": promote_after, "seed": 1, "device": device, **arguments}
    return AdaptiveEmbedding(DIM, 5, **arguments)


def of_features(layer: Any, keys: Any, weights: Any) -> Any:
    inputs = {"user": keys, "log": ragged(keys), "item": sparse(keys), "frozen": ragged(keys + 1)}
    # Bags of dense keys are as many as those of the others.
    inputs["user"] = tf.concat([keys, keys[:1]], 0)
    of_keys = {"user": tf.concat([weights, weights[:1]], 0), "log": ragged(weights)}
    outputs = layer(inputs, of_keys, training=True)
    return outputs if tf.is_tensor(outputs) else tf.concat(list(outputs.values()), -1)


SLOTS = {
    "max_vocabulary_size_per_gpu": 40,
    "embedding_vec_size": DIM,
    "slot_num": 2,
    "nnz_per_slot": 1,
    "seed": 1,
}
# A layer, and its call with the keys and weights of one turn.
CASES: dict[str, tuple[Any, Any]] = {
    "plain": (pooling(None), lambda layer, k, w: layer(k, training=True)),
    "own_rows": (lambda device: adaptive(1, device), lambda layer, k, w: layer(k, training=True)),
    "static_rows": (
        lambda device: adaptive(255, device),
        lambda layer, k, w: layer(k, training=True),
    ),
    "all2all": (
        lambda device: sok_embed.All2AllDenseEmbedding(**SLOTS, device=device),
        lambda layer, k, w: layer(k[:, :, None], training=True),
    ),
    "hashed": (
        lambda _: sok_embed.HashedEmbedding(50, DIM, 0.25),
        lambda layer, k, w: layer(k),
    ),
    "hashed_bag": (
        lambda _: sok_embed.HashedEmbeddingBag(50, DIM, 0.25, mode="sum"),
        lambda layer, k, w: layer(k, per_sample_weights=w),
    ),
    **{
        combiner: (
            pooling(combiner),
            lambda layer, k, w: layer(k, training=True),
        )
        for combiner in ("sum", "mean", "sqrtn", "max")
    },
    "own_rows_mean": (
        lambda device: adaptive(1, device, combiner="mean"),
        lambda layer, k, w: layer(k, training=True),
    ),
    "ragged": (
        pooling("mean"),
        lambda layer, k, w: layer(ragged(k), ragged(w), training=True),
    ),
    "sparse": (
        pooling("sum"),
        lambda layer, k, w: layer(sparse(k), sparse(w), training=True),
    ),
    "shared_keys": (
        pooling("sqrtn"),
        lambda layer, k, w: layer(tf.constant([[1, 2], [3, 1]]), w, training=True),
    ),
    "shared_keys_and_weights": (
        pooling("sum"),
        lambda layer, k, w: layer(tf.constant([[1, 2], [3, 1]]), training=True) * tf.reduce_sum(w),
    ),
    "shared_weights": (
        pooling("sum"),
        lambda layer, k, w: layer(k, tf.constant(WEIGHTS[0]), training=True),
    ),
    "collection": (collection, of_features),
    "concatenated_collection": (lambda device: collection(device, output="concat"), of_features),
}


def loop(function: Any, elements: Any) -> tf.Tensor:
    return tf.stack([function(turn) for turn in zip(*map(tf.unstack, elements), strict=True)])


def train(
    case: str, mapped: Any, in_function: bool, device: str = "cpu"
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the vectors and the weights' gradients of each step, and all rows at the end."""
    make, call = CASES[case]
    keras.utils.set_random_seed(5)
    layer = make(device)
    keys, weights = tf.constant(KEYS), tf.Variable(WEIGHTS)
    call(layer, keys[0], weights[0])  # builds it
    optimizer = ko.Adagrad(0.1)
    variables = layer.trainable_variables
    optimizer.build(variables)

    @tf.autograph.experimental.do_not_convert
    def step() -> Any:
        with tf.GradientTape() as tape:
            vectors = mapped(
                lambda turn: call(layer, turn[0], turn[1]), (keys, tf.convert_to_tensor(weights))
            )
            loss = tf.reduce_sum(tf.cast(tf.range(1, TURNS + 1), tf.float32) * _squares(vectors))
        gradients = tape.gradient(loss, [weights, *variables])
        optimizer.apply(gradients[1:], variables)
        of_weights = gradients[0]
        return vectors, tf.zeros_like(weights) if of_weights is None else of_weights

    run = tf.function(step) if in_function else step
    found = [np.asarray(each) for _ in range(3) for each in run()]
    return found, rows_of(layer)


def _squares(vectors: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.reshape(vectors, [TURNS, -1]) ** 2, 1)


def rows_of(layer: Any) -> list[np.ndarray]:
    if isinstance(layer, DistributedEmbedding):
        return [table.lookup(np.arange(9)) for table in layer.tables.values()]
    table = getattr(layer, "table", None)
    if table is None:
        return [np.asarray(weight) for weight in layer.weights]
    return [table.lookup(np.arange(9)), np.array(table.size())]


def check_as_loop(case: str, in_function: bool, device: str = "cpu") -> None:
    """Trains a layer in a map and one in a loop, and compares vectors, gradients and rows."""
    (found, rows), (expected, rows_expected) = (
        train(case, mapped, in_function, device) for mapped in (tf.vectorized_map, loop)
    )
    np.testing.assert_array_equal(found[0], expected[0])
    # Gradients of equal keys are summed in another order.
    for each, other in zip(found + rows, expected + rows_expected, strict=True):
        np.testing.assert_allclose(each, other, rtol=0, atol=2e-6)
