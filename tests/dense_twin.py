"""A model over rows of a table, and its twin: a dense weight with a dense gradient."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sok_embed import AdaptiveEmbedding, DynamicEmbedding

KEYS, DIM = 20, 4
START = 0.1


class WeightOfRows(keras.layers.Layer):
    """All rows in one weight."""

    def build(self, input_shape: Any = None) -> None:
        start = keras.initializers.Constant(START)
        self.rows = self.add_weight(shape=(KEYS, DIM), initializer=start)
        self.built = True

    def call(self, keys: Any, training: Any = None) -> Any:
        wanted = tf.one_hot(keys, KEYS, dtype=self.compute_dtype)
        return wanted @ tf.cast(self.rows, self.compute_dtype)

    def compute_output_spec(self, keys: Any, training: Any = None) -> Any:
        return keras.KerasTensor((*keys.shape, DIM), self.compute_dtype)


def table_layer(**arguments: Any) -> DynamicEmbedding:
    """Makes rows that start as those of a `WeightOfRows`."""
    return DynamicEmbedding(DIM, keras.initializers.Constant(START), **arguments)


def adaptive_layer(promote_after: int) -> AdaptiveEmbedding:
    """Does the same with one static row, and own rows of the keys that were seen so often."""
    start = keras.initializers.Constant(START)
    return AdaptiveEmbedding(DIM, 1, promote_after=promote_after, embeddings_initializer=start)


class Model(keras.Model):
    """Rows, and a dense weight beside theirs."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.dense = keras.layers.Dense(
            DIM, kernel_initializer=keras.initializers.Constant(0.3), use_bias=False
        )

    def build(self, input_shape: Any = None) -> None:
        self.layer.build((None, 2))
        self.dense.build((None, DIM))
        self.built = True

    def call(self, keys: Any, training: Any = None) -> Any:
        return self.dense(self.layer(keys, training=training))


def contents(model: Any) -> list[np.ndarray]:
    """Returns the rows of all keys, and the dense weight."""
    layer = model.layer
    is_weight = isinstance(layer, WeightOfRows)
    rows = np.asarray(layer.rows) if is_weight else layer.table.lookup(np.arange(KEYS))
    return [np.asarray(rows), np.asarray(model.dense.kernel)]


def loss_of(model: Any, keys: Any, targets: Any) -> Any:
    """Makes a scalar in float32."""
    return tf.reduce_sum((tf.cast(model(keys, training=True), tf.float32) - targets) ** 2)
