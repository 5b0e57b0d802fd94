"""One embedding column in a TF1 graph with its session, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from sok_embed import feature_column as fc

v1 = tf.compat.v1

# Rows follow the rules of these optimizers of tf.compat.v1.train.
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.02),
    "ftrl": lambda: v1.train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02
    ),
}


def sparse_value(rows: Any, dtype: Any = np.int64) -> Any:
    """Lists as a `SparseTensorValue` [batch, longest]."""
    places = [[i, j] for i, row in enumerate(rows) for j in range(len(row))]
    values = [value for row in rows for value in row]
    return v1.SparseTensorValue(
        np.array(places, np.int64).reshape(-1, 2),
        np.array(values, object if dtype is str else dtype),
        [len(rows), max([1, *map(len, rows)])],
    )


def start(buckets: int, dim: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (buckets, dim)).astype(np.float32)


class GraphModel:
    """A graph of one column, its session, and a loss that moves every row.

    Args:
        static: What static rows start from.
        optimizer: Of `OPTIMIZERS`, or a callable.
        plain: Whether the column is TensorFlow's own, over hash buckets.
        dtype: Of ids.
        weighted: Whether ids have weights.
        sequence: Whether it is a sequence column.
        trainable: Of the input layer.
        column: More arguments of the adaptive column.
        **embedding: More arguments of the embedding column.
    """

    def __init__(
        self,
        static: np.ndarray,
        optimizer: Any = "sgd",
        *,
        plain: bool = False,
        dtype: tf.DType = tf.int64,
        weighted: bool = False,
        sequence: bool = False,
        trainable: bool = True,
        column: dict[str, Any] | None = None,
        **embedding: Any,
    ) -> None:
        buckets, dim = static.shape
        self.plain, self.weighted = plain, weighted
        embedding.setdefault("initializer", v1.constant_initializer(static))
        self.graph = tf.Graph()
        with self.graph.as_default():
            if plain and sequence:
                make = tf.feature_column.sequence_categorical_column_with_hash_bucket
            elif plain:
                make = tf.feature_column.categorical_column_with_hash_bucket
            elif sequence:
                make = fc.sequence_categorical_column_with_adaptive_embedding
            else:
                make = fc.categorical_column_with_adaptive_embedding
            categorical = make("c", buckets, dtype=dtype, **(column or {}))
            if weighted and sequence:
                inner = categorical.categorical_column
                inner = tf.feature_column.weighted_categorical_column(inner, "w")
                categorical = type(categorical)(inner)
            elif weighted:
                categorical = tf.feature_column.weighted_categorical_column(categorical, "w")
            library = tf.feature_column if plain else fc
            dense = library.embedding_column(categorical, dim, **embedding)
            self.ids = v1.sparse_placeholder(dtype, [None, None])
            self.weights = v1.sparse_placeholder(tf.float32, [None, None])
            self.mask = v1.placeholder(tf.int32, [None])
            features = {"c": self.ids, "w": self.weights}
            masks = None if plain else {"c": self.mask}
            layer = fc.sequence_input_layer if sequence else fc.input_layer
            self.output = layer(features, [dense], trainable=trainable, adaptive_mask_tensors=masks)
            if sequence:
                self.output, self.lengths = self.output
            size = tf.cast(tf.size(self.output), tf.float32)
            target = tf.reshape(tf.sin(tf.range(size)), tf.shape(self.output))
            self.loss = tf.reduce_sum(tf.square(self.output - target))
            self.step = tf.no_op()
            if trainable:
                make_optimizer = OPTIMIZERS.get(optimizer, optimizer)
                self.optimizer = make_optimizer()
                self.step = self.optimizer.minimize(self.loss)
            self.static = next(v for v in v1.global_variables() if "embedding_weights" in v.name)
            self.saver = v1.train.Saver()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def feed(self, rows: Any, mask: Any = None, weights: Any = None) -> dict[Any, Any]:
        dtype = str if self.ids.dtype == tf.string else self.ids.dtype.as_numpy_dtype
        ids = sparse_value(rows, dtype)
        fed = {self.ids: ids}
        if self.weighted:
            flat = np.asarray(weights, np.float32)
            fed[self.weights] = v1.SparseTensorValue(ids.indices, flat, ids.dense_shape)
        if not self.plain:
            mask = np.zeros(len(ids.values), np.int32) if mask is None else mask
            fed[self.mask] = np.broadcast_to(mask, len(ids.values))
        return fed

    def train(self, rows: Any, mask: Any = None, weights: Any = None) -> np.ndarray:
        """Makes a step. Returns the embeddings before it."""
        output, _ = self.session.run((self.output, self.step), self.feed(rows, mask, weights))
        return output

    def embed(self, rows: Any, mask: Any = None, weights: Any = None) -> np.ndarray:
        return self.session.run(self.output, self.feed(rows, mask, weights))

    def save(self, path: Any) -> str:
        with self.graph.as_default():
            return self.saver.save(self.session, str(path))

    def restore(self, path: str) -> None:
        with self.graph.as_default():
            self.saver.restore(self.session, path)

    def static_rows(self) -> np.ndarray:
        return self.session.run(self.static)

    def own_rows(self) -> dict[int, np.ndarray]:
        return dict(zip(*fc.own_rows(self.static.op.name, self.session), strict=True))


def bucket_of(value: Any, buckets: int) -> int:
    """As TensorFlow hashes it."""
    return int(tf.strings.to_hash_bucket_fast(str(value), buckets))
