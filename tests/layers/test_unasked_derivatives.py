"""Second derivatives by dense weights alone, of a loss taken in a function or a branch.

The gradient of a function deposits the gradients of rows, whichever gradients are asked for. The
reference is the same loss of vectors that are constants.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import feature_column as fc

IDS = np.array([[1, 2, 2], [3, 1, 0]])
DIM = 2


class OfColumns(keras.layers.Layer):
    """Calls a `DenseFeatures` of one weighted column, of adaptive rows or of own rows.

    TensorFlow has no second derivative of a lookup without weights.
    """

    def __init__(self, adaptive):
        super().__init__()
        if adaptive:
            column = fc.categorical_column_with_adaptive_embedding("a", 5, tf.int64)
        else:
            column = fc.categorical_column_with_embedding("a", tf.int64)
        column = tf.feature_column.weighted_categorical_column(column, "w")
        self.features = fc.DenseFeatures([fc.embedding_column(column, DIM, "sum")])
        self._masks = {"a": tf.constant([[1, 0, 1], [0, 1, 0]])} if adaptive else None

    def call(self, ids, training=None):
        features = {"a": ids, "w": tf.ones(ids.shape)}
        return self.features(features, self._masks, training=training)


def _collection(combiner):
    table = sok.TableConfig("t", None, DIM, combiner=combiner, seed=1)
    return sok.DistributedEmbedding(sok.FeatureConfig("f", table))


LAYERS = {
    "dynamic": lambda: sok.DynamicEmbedding(DIM, seed=1),
    "pooled": lambda: sok.DynamicEmbedding(DIM, seed=1, combiner="mean"),
    "adaptive": lambda: sok.AdaptiveEmbedding(DIM, 5, seed=1),
    "adaptive_pooled": lambda: sok.AdaptiveEmbedding(DIM, 5, seed=1, combiner="sum"),
    "collection": lambda: _collection("sum"),
    "collection_of_keys": lambda: _collection(None),
    "all2all": lambda: sok.All2AllDenseEmbedding(9, DIM, 1, 3, seed=1),
    "hashed_bag": lambda: sok.HashedEmbeddingBag(10, DIM, 1.0),
    "hashed": lambda: sok.HashedEmbedding(10, DIM, 1.0),
    "adaptive_column": lambda: OfColumns(True),
    "column_of_own_rows": lambda: OfColumns(False),
}
HOW = {
    "function": tf.function,
    "nested functions": lambda loss: tf.function(lambda ids: tf.function(loss)(ids)),
    "branch": lambda loss: (
        lambda ids: tf.cond(tf.reduce_sum(ids) > 0, lambda: loss(ids), lambda: 0.0)
    ),
}


def _vectors(layer, ids):
    if isinstance(layer, sok.All2AllDenseEmbedding):
        return layer(ids[:, tf.newaxis], training=True)
    if isinstance(layer, sok.HashedEmbedding | sok.HashedEmbeddingBag):
        return layer(ids)
    return layer(ids, training=True)


def _penalty_gradient(loss_of, weights):
    """Returns the gradient of the squares of the gradient of a loss by dense weights."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = loss_of()
        penalty = sum(tf.reduce_sum(each**2) for each in inner.gradient(loss, weights))
    return outer.gradient(penalty, weights)


@pytest.mark.cover("values")
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])
def test_they_are_those_of_constant_vectors(kind, how, in_function):
    layer, dense = LAYERS[kind](), keras.layers.Dense(1, kernel_initializer="ones")
    ids = tf.constant(IDS)
    vectors = tf.constant(np.array(_vectors(layer, ids)))
    dense(vectors)
    loss_of = HOW[how](lambda ids: tf.reduce_sum(dense(_vectors(layer, ids)) ** 3))

    def step(ids):
        return _penalty_gradient(lambda: loss_of(ids), dense.trainable_variables)

    step = tf.autograph.experimental.do_not_convert(step)
    found = (tf.function(step) if in_function else step)(ids)
    expected = _penalty_gradient(
        lambda: tf.reduce_sum(dense(vectors) ** 3), dense.trainable_variables
    )
    for got, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", ["dynamic", "pooled", "adaptive", "collection", "all2all"])
@pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])
def test_one_by_the_anchors_gradient_within_a_function_is_refused_when_it_runs(kind, in_function):
    layer = LAYERS[kind]()
    ids = tf.constant(IDS)
    _vectors(layer, ids)

    @tf.function
    def gradients(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(_vectors(layer, ids) ** 3)
        return tape.gradient(loss, layer.trainable_variables)

    def step(ids):
        with tf.GradientTape() as outer:
            penalty = tf.reduce_sum(gradients(ids)[0] ** 2)
        return outer.gradient(penalty, layer.trainable_variables)

    step = tf.function(step) if in_function else step
    with pytest.raises(tf.errors.InvalidArgumentError, match="Watch the vectors with the inner"):
        step(ids)


def test_static_rows_have_second_derivatives():
    """The reference is TensorFlow's column of the same buckets, in the same layer."""

    def gradient_of(column, masks):
        column = tf.feature_column.weighted_categorical_column(column, "w")
        start = tf.compat.v1.constant_initializer(np.arange(10.0).reshape(5, 2))
        layer = fc.DenseFeatures([fc.embedding_column(column, DIM, "mean", start)])
        features = {"a": tf.constant(IDS), "w": tf.constant([[1.0, 2, 3], [4, 5, 6]])}
        rows = next(each for each in layer.trainable_variables if each.shape == (5, 2))
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(layer(features, masks, training=True) ** 3)
            first = tf.convert_to_tensor(inner.gradient(loss, rows.value))
            penalty = tf.reduce_sum(first**2)
        return tf.convert_to_tensor(outer.gradient(penalty, rows.value))

    hashed = tf.feature_column.categorical_column_with_hash_bucket("a", 5, tf.int64)
    adaptive = fc.categorical_column_with_adaptive_embedding("a", 5, tf.int64)
    found = gradient_of(adaptive, {"a": np.zeros(IDS.shape, np.int32)})
    expected = gradient_of(hashed, None)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.abs(expected).max() > 1


@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "own rows"])
@pytest.mark.parametrize("taken", [True, False])
def test_columns_have_gradients_in_a_branch_of_a_function(adaptive, taken):
    layer = OfColumns(adaptive)
    layer(tf.constant(IDS))

    @tf.function
    def step(taken):
        with tf.GradientTape() as tape:
            loss = tf.cond(
                taken, lambda: tf.reduce_sum(layer(tf.constant(IDS), training=True)), lambda: 0.0
            )
        static = layer.features.static_rows("a_weighted_by_w_embedding")
        zero = tf.UnconnectedGradients.ZERO
        return tf.convert_to_tensor(tape.gradient(loss, static, unconnected_gradients=zero))

    # The three positions of mask 0 train static rows of an adaptive column.
    expected = 3.0 * DIM if taken and adaptive else 0.0
    assert float(tf.reduce_sum(step(tf.constant(taken)))) == expected
