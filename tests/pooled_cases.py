"""Bags of keys in every form, and what NumPy and Keras make of them, for layers with a combiner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_reference import SummedGradientEmbedding

DIM = 3
LENGTH = 4
COMBINERS = ("sum", "mean", "sqrtn", "max")
FORMS = ("dense", "ragged", "sparse")
# Any 64-bit integers; the tests count on key 0 among them.
KEYS = np.array([-(2**63), -7, 0, 1, 2, 3, 5, 2**40, 2**62])


def start_of(seed: int = 2) -> np.ndarray:
    """What the row of each key starts from."""
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (len(KEYS), DIM)).astype(np.float32)


@dataclass
class Bags:
    """For each bag numbers of keys, filled up to LENGTH, how many of them are there, and weights.

    Dense bags have all of their keys.
    """

    numbers: np.ndarray  # [bags, LENGTH]
    lengths: np.ndarray  # [bags]
    weights: np.ndarray  # [bags, LENGTH], float32

    def keys(self, form: str) -> Any:
        return self._tensor(tf.constant(KEYS[self.numbers]), form)

    def weights_as(self, form: str) -> Any:
        return self._tensor(tf.constant(self.weights), form)

    def _tensor(self, values: tf.Tensor, form: str) -> Any:
        if form == "dense":
            return values
        ragged = tf.RaggedTensor.from_tensor(values, self.lengths)
        if form == "ragged":
            return ragged
        sparse = ragged.to_sparse()
        return tf.SparseTensor(sparse.indices, sparse.values, self.numbers.shape)


def random_bags(form: str, count: int = 8, seed: int = 1) -> Bags:
    """Bags that have every key; one is empty, unless they are dense."""
    random = np.random.default_rng(seed)
    lengths = np.full(count, LENGTH)
    if form != "dense":
        lengths = random.integers(2, LENGTH + 1, count)
        lengths[random.integers(count)] = 0
    there = np.arange(LENGTH) < lengths[:, None]
    numbers = np.zeros((count, LENGTH), np.int64)
    numbers[there] = random.permutation(np.resize(np.arange(len(KEYS)), lengths.sum()))
    weights = random.uniform(0.5, 2, (count, LENGTH)).astype(np.float32)
    return Bags(numbers, lengths, weights)


def pooled(
    rows: np.ndarray, bags: Bags, combiner: str, weighted: bool, without_zeros: bool = False
) -> np.ndarray:
    """The vector of each bag, in float64."""
    vectors = []
    for numbers, length, weights in zip(bags.numbers, bags.lengths, bags.weights, strict=True):
        stays = np.arange(LENGTH) < length
        if without_zeros:
            stays &= KEYS[numbers] != 0
        x = rows[numbers[stays]].astype(np.float64)
        w = weights[stays, None].astype(np.float64) if weighted else np.ones((len(x), 1))
        if len(x) == 0:
            vectors.append(np.zeros(DIM))
        elif combiner == "max":
            vectors.append(x.max(0))
        else:
            divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
            vectors.append((x * w).sum(0) / divisor)
    return np.stack(vectors)


class StaticPooling(keras.Model):
    """A linear model of pooled vectors in float64: Keras' embedding, dense gradients."""

    def __init__(self, combiner: str, start: np.ndarray) -> None:
        super().__init__(dtype="float64")
        self.combiner = combiner
        self.embedding = SummedGradientEmbedding(*start.shape, dtype="float64")
        self.embedding.build()
        self.embedding.set_weights([start])
        self.dense = keras.layers.Dense(1, kernel_initializer="ones", dtype="float64")

    def call(self, inputs: Any, training: Any = None) -> Any:
        numbers, there, weights = inputs
        x = self.embedding(numbers)
        there = tf.cast(there, tf.float64)[:, :, None]
        if self.combiner == "max":
            lowest = tf.where(there > 0, x, tf.constant(-1e9, tf.float64))
            full = tf.reduce_any(there > 0, 1)
            return self.dense(tf.where(full, tf.reduce_max(lowest, 1), tf.zeros_like(x[:, 0])))
        w = tf.cast(weights, tf.float64)[:, :, None] * there
        divisor = {
            "sum": tf.ones_like(w[:, 0]),
            "mean": tf.reduce_sum(w, 1),
            # An empty bag has a divisor of 0, at which a root has no derivative.
            "sqrtn": tf.sqrt(tf.maximum(tf.reduce_sum(w**2, 1), 1e-30)),
        }[self.combiner]
        return self.dense(tf.math.divide_no_nan(tf.reduce_sum(x * w, 1), divisor))

    def rows(self) -> np.ndarray:
        return self.embedding.get_weights()[0]
