"""Each kind of layer trains by `compile` and `fit` alone as dense layers of Keras do.

`tests/conftest.py` leaves the traces of this file as users have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_reference import SummedGradientEmbedding

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed import tf_ops

KEYS, DIM, LENGTH, SIZE = 20, 4, 3, 37
SPEC = {"sign": True, "block_size": 2, "seed": 3}
RANDOM = np.random.default_rng(1)
# Every batch of 16 has all keys, since rows that are not looked up stay, and Adam moves others.
IDS = np.stack([np.resize(RANDOM.permutation(KEYS), (16, LENGTH)) for _ in range(3)])
IDS = IDS.reshape(-1, LENGTH)
TARGETS = RANDOM.normal(size=(len(IDS), 1)).astype(np.float32)


class ComposedBag(keras.layers.Layer):
    """Sums rows that a dense gather takes out of a hashed weight."""

    def build(self, _: Any) -> None:
        self.weight = self.add_weight(name="weight", shape=(SIZE,), initializer="ones")

    def call(self, ids: Any) -> Any:
        places, signs = tf_ops.hash_positions(
            tf.reshape(ids, [-1]), SIZE, embedding_dim=DIM, spec=tf_ops.HashSpec(**SPEC)
        )
        rows = tf.gather(self.weight * 1.0, places) * tf.cast(signs, self.compute_dtype)
        return tf.reduce_sum(tf.reshape(rows, [-1, LENGTH, DIM]), axis=1)

    def compute_output_shape(self, shape: Any) -> Any:
        return (shape[0], DIM)


def _static(ids: Any) -> Any:
    return keras.ops.sum(SummedGradientEmbedding(KEYS, DIM, "ones")(ids), axis=1)


def _collection(ids: Any) -> Any:
    table = sok.TableConfig("t", None, DIM, initializer="ones", combiner="sum")
    return sok.DistributedEmbedding({"f": sok.FeatureConfig("f", table)})({"f": ids})["f"]


def _all2all(ids: Any) -> Any:
    layer = sok.All2AllDenseEmbedding(KEYS, DIM, 1, LENGTH, embedding_initializer="ones")
    vectors = layer(keras.layers.Reshape((1, LENGTH))(ids))
    return keras.ops.sum(keras.layers.Reshape((LENGTH, DIM))(vectors), axis=1)


def _adaptive(ids: Any) -> Any:
    """Every key has a row of its own from its first occurrence on."""
    return sok.AdaptiveEmbedding(
        DIM, 7, promote_after=1, combiner="sum", embeddings_initializer="ones"
    )(ids)


def _columns(ids: Any) -> Any:
    column = fc.categorical_column_with_embedding("ids", tf.int64)
    embedded = fc.embedding_column(column, DIM, "sum", initializer=tf.ones_initializer())
    return fc.DenseFeatures([embedded])({"ids": ids})


LAYERS = {
    "DynamicEmbedding": lambda ids: sok.DynamicEmbedding(DIM, "ones", combiner="sum")(ids),
    "DistributedEmbedding": _collection,
    "All2AllDenseEmbedding": _all2all,
    "AdaptiveEmbedding": _adaptive,
    "DenseFeatures": _columns,
    "HashedEmbeddingBag": lambda ids: sok.HashedEmbeddingBag(
        KEYS, DIM, size=SIZE, mode="sum", weight="ones", **SPEC
    )(ids),
}


def _train(embed: Callable[[Any], Any]) -> tuple[list[float], np.ndarray, np.ndarray]:
    """Returns the losses, and what the model predicts before and after."""
    keras.utils.set_random_seed(5)
    ids = keras.Input((LENGTH,), dtype="int64", name="ids")
    model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(embed(ids)))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    before = model.predict(IDS, verbose=0)
    history = model.fit(IDS, TARGETS, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return history.history["loss"], before, model.predict(IDS, verbose=0)


@pytest.fixture(scope="module")
def static() -> Any:
    return _train(_static)


@pytest.mark.parametrize("kind", LAYERS)
def test_fit_trains_it_as_a_dense_layer(kind: str, static: Any) -> None:
    expected = _train(lambda ids: ComposedBag()(ids)) if kind == "HashedEmbeddingBag" else static
    found = _train(LAYERS[kind])
    # Gradients of a key are summed in another order.
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert np.abs(found[2] - found[1]).max() > 0.1
    assert found[0][-1] < found[0][0]
