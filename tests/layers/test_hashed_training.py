"""A hashed weight trains as the same mathematics composed of Keras and TensorFlow ops does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_reference import OPTIMIZERS, each, mirrored

from sok_embed import HashedEmbedding, HashedEmbeddingBag, tf_ops

IDS, DIM, SIZE, BATCH, LENGTH = 30, 6, 37, 8, 5
SPEC = {"sign": True, "block_size": 4, "seed": 3}
OF_KERAS = tuple(name for name in OPTIMIZERS if name != "rowwise_adagrad")
STEPS = 12


class ComposedBag(keras.layers.Layer):
    """Bags of rows that a dense gather takes out of the weight; its gradient is dense."""

    def __init__(self, mode: str = "sum", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.mode = mode

    def build(self, _: Any) -> None:
        self.weight = self.add_weight(name="weight", shape=(SIZE,), initializer="zeros")

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        slots, signs = tf_ops.hash_positions(
            tf.reshape(ids, [-1]), SIZE, embedding_dim=DIM, spec=tf_ops.HashSpec(**SPEC)
        )
        # Without the product the gradient is an IndexedSlices with a slot as often as it is used.
        rows = tf.gather(self.weight * 1.0, slots) * tf.cast(signs, self.compute_dtype)
        rows = tf.reshape(rows, [-1, ids.shape[1], DIM])
        reduce = {"sum": tf.reduce_sum, "mean": tf.reduce_mean, "max": tf.reduce_max}
        return reduce[self.mode](rows, axis=1)


def ours(mode: str = "sum", **arguments: Any) -> HashedEmbeddingBag:
    return HashedEmbeddingBag(IDS, DIM, size=SIZE, mode=mode, **SPEC, **arguments)


def batches() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    ids = random.integers(0, IDS, (STEPS * BATCH, LENGTH))
    return ids, random.normal(size=(len(ids), DIM)).astype(np.float32)


START = np.random.default_rng(2).uniform(-0.3, 0.3, SIZE).astype(np.float32)


def train(layer: Any, make_optimizer: Callable[[], Any]) -> np.ndarray:
    """Steps of a loop of one's own, eagerly: no graph to build for a few steps."""
    layer.build((None, LENGTH))
    layer.set_weights([START])
    optimizer = make_optimizer()
    ids, targets = batches()
    for first in range(0, len(ids), BATCH):
        batch = slice(first, first + BATCH)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(tf.constant(ids[batch])) - targets[batch]))
        optimizer.apply([tape.gradient(loss, layer.weight.value)], [layer.weight])
    return layer.get_weights()[0]


@pytest.mark.cover(2)
@each(OF_KERAS)
def test_each_optimizer_trains_it_as_what_is_composed_of_ops(make_optimizer):
    expected = train(ComposedBag(), make_optimizer)
    assert np.abs(expected - START).max() > 1e-3
    for sparse_gradient in (False, True):
        trained = train(ours(sparse_gradient=sparse_gradient), make_optimizer)
        # This is as in keras_reference: float32, the sums of a slot in another order.
        np.testing.assert_allclose(trained, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "max"])
@each(("adagrad",))
def test_each_mode_trains_as_what_is_composed_of_ops(make_optimizer, mode):
    expected = train(ComposedBag(mode), make_optimizer)
    for sparse_gradient in (False, True):
        trained = train(ours(mode, sparse_gradient=sparse_gradient), make_optimizer)
        np.testing.assert_allclose(trained, expected, rtol=0, atol=1e-5)


def fit(make_layer: Callable[[], Any], make_optimizer: Any, strategy: Any = None) -> np.ndarray:
    """Trains by Keras' fit, in a graph, on one replica or on those of the strategy."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layer = make_layer()
        model = keras.Sequential([keras.Input((LENGTH,), dtype="int64"), layer])
        model.compile(make_optimizer(), "mse")
    layer.set_weights([START])
    model.fit(*batches(), batch_size=BATCH, shuffle=False, verbose=0)
    return layer.get_weights()[0]


@pytest.mark.cover(1)
@each(("sgd", "adam"))
def test_fit_trains_it_as_what_is_composed_of_ops(make_optimizer):
    expected = fit(ComposedBag, make_optimizer)
    assert np.abs(expected - START).max() > 1e-2
    for sparse_gradient in (False, True):
        trained = fit(lambda s=sparse_gradient: ours(sparse_gradient=s), make_optimizer)
        np.testing.assert_allclose(trained, expected, rtol=0, atol=1e-5)


@pytest.mark.cover(1)
@each(("sgd", "adagrad", "adam"))
def test_replicas_of_a_mirrored_strategy_train_as_one(make_optimizer):
    expected = fit(ours, make_optimizer)
    trained = fit(ours, make_optimizer, mirrored())
    assert np.abs(expected - START).max() > 1e-2
    np.testing.assert_allclose(trained, expected, rtol=0, atol=1e-5)


def test_replicas_of_a_mirrored_strategy_join_the_slices_that_are_asked_for():
    # SGD is linear in the gradient: slots that two replicas have are subtracted twice.
    trained = fit(lambda: ours(sparse_gradient=True), OPTIMIZERS["sgd"], mirrored())
    np.testing.assert_allclose(trained, fit(ours, OPTIMIZERS["sgd"]), rtol=0, atol=1e-5)


@pytest.mark.long
def test_replicas_of_a_mirrored_strategy_choose_no_slices_by_themselves():
    # Adagrad would square those of each replica.
    def large() -> HashedEmbeddingBag:
        return HashedEmbeddingBag(IDS, DIM, size=3_000_000, weight="zeros")

    def fit_large(strategy: Any) -> np.ndarray:
        with strategy.scope() if strategy else contextlib.nullcontext():
            layer = large()
            model = keras.Sequential([keras.Input(batch_shape=(BATCH, LENGTH), dtype="int64")])
            model.add(layer)
            model.compile(keras.optimizers.Adagrad(0.1), "mse")
        ids, targets = (array[: 2 * BATCH] for array in batches())
        # Each replica gets a batch of a static size.
        data = tf.data.Dataset.from_tensor_slices((ids, targets))
        model.fit(data.batch(BATCH, drop_remainder=True), shuffle=False, verbose=0)
        return HashedEmbedding(IDS, DIM, weight=layer, seed=0)(np.arange(IDS)).numpy()

    expected = fit_large(None)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(fit_large(mirrored()), expected, rtol=0, atol=1e-5)


@pytest.mark.cover(1)
@pytest.mark.parametrize(("size", "sparse"), [(30_000_000, True), (SIZE, False)])
def test_fit_gives_slices_for_a_large_weight(size, sparse):
    are_slices = []

    class Looking(keras.optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            are_slices.append(isinstance(grads[0], tf.IndexedSlices))
            super().apply(grads, trainable_variables)

    model = keras.Sequential(
        [keras.Input((LENGTH,), dtype="int64"), HashedEmbeddingBag(IDS, DIM, size=size)]
    )
    model.compile(Looking(0.1), "mse")
    ids, targets = batches()
    # A shorter last batch is traced once more.
    model.fit(ids[:-3], targets[:-3], batch_size=BATCH, epochs=2, verbose=0)
    assert set(are_slices) == {sparse}


def test_an_embedding_trains_as_its_rows_in_bags_of_one():
    trained = []
    ids, targets = batches()
    targets = np.repeat(targets[:, None], LENGTH, 1)
    for make in (HashedEmbedding, HashedEmbeddingBag):
        layer = make(IDS, DIM, size=SIZE, weight=START, **SPEC)
        optimizer = keras.optimizers.Adam(0.01)
        layer.build()
        for first in range(0, 32, BATCH):
            some, wanted = ids[first : first + BATCH], targets[first : first + BATCH]
            with tf.GradientTape() as tape:
                if make is HashedEmbedding:
                    outputs = layer(some)
                else:
                    outputs = tf.reshape(layer(some.reshape(-1, 1)), [BATCH, LENGTH, DIM])
                loss = tf.reduce_mean(tf.square(outputs - wanted))
            optimizer.apply([tape.gradient(loss, layer.weight.value)], [layer.weight])
        trained.append(layer.get_weights()[0])
    np.testing.assert_array_equal(*trained)
    assert np.abs(trained[0] - START).max() > 1e-2
