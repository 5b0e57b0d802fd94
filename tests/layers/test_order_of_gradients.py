"""Gradients of a key that was looked up more than once: all of them count, in one order."""

import keras
import keras_reference
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from tiers import few_or_many

from sok_embed import AdaptiveEmbedding, DynamicEmbedding

DIM = 4
KEYS = 50


def dynamic():
    return DynamicEmbedding(DIM, "zeros")


def adaptive():
    # Keys have rows of their own from the first sight on.
    return AdaptiveEmbedding(DIM, 1000, promote_after=1, embeddings_initializer="zeros")


layers = pytest.mark.parametrize("make", [dynamic, adaptive])


@layers
def test_equal_gradients_of_one_lookup_all_count(make):
    # TensorFlow makes one of two equal ops that have no state.
    layer = make()
    layer(np.array([7]), training=True)
    optimizer = ko.SGD(1.0)
    optimizer.build(layer.trainable_variables)

    @tf.function
    def step(keys):
        with tf.GradientTape(persistent=True) as tape:
            rows = layer(keys, training=True)
            first, second = tf.reduce_sum(rows), tf.reduce_sum(rows)
        weights = layer.trainable_variables
        gradients = [tape.gradient(loss, weights) for loss in (first, second)]
        optimizer.apply([a + b for a, b in zip(*gradients, strict=True)], weights)

    step(tf.constant([7], tf.int64))
    np.testing.assert_array_equal(layer.table.lookup([7]), [[-2.0] * DIM])


def rough_gradients(calls):
    """Float32 [calls, KEYS, DIM] whose sums have other bits in another order."""
    random = np.random.default_rng(1)
    return (
        random.normal(size=(calls, KEYS, DIM)) * 10.0 ** random.integers(0, 6, (calls, 1, 1))
    ).astype(np.float32)


def assert_summed_in_order(make, loss_of, wrap):
    """Takes steps of loss_of(layer, keys, gradients), and looks at the bits of the rows."""
    gradients = rough_gradients(6)
    expected = np.zeros((KEYS, DIM), np.float32)
    for gradient in gradients:
        expected += gradient
    keys = tf.range(KEYS, dtype=tf.int64)
    for _ in range(5):
        layer = make()
        layer(np.array([0]), training=True)
        optimizer = ko.SGD(1.0)
        optimizer.build(layer.trainable_variables)

        @wrap
        def step(layer=layer, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = loss_of(layer, keys, gradients)
            weights = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)

        step()
        np.testing.assert_array_equal(layer.table.lookup(np.arange(KEYS)), -expected)


@pytest.mark.cover("values")
@pytest.mark.parametrize("wrap", [tf.function, lambda f: f], ids=["function", "eager"])
@layers
def test_gradients_of_several_calls_are_summed_in_the_order_of_the_calls(make, wrap):
    def loss_of(layer, keys, gradients):
        return sum(tf.reduce_sum(layer(keys, training=True) * gradient) for gradient in gradients)

    assert_summed_in_order(make, loss_of, wrap)


def test_gradients_of_a_loop_are_summed_in_the_order_of_its_turns():
    def loss_of(layer, keys, gradients):
        def loss_of_turn(gradient):
            return tf.reduce_sum(layer(keys, training=True) * gradient)

        return tf.reduce_sum(tf.map_fn(loss_of_turn, tf.constant(gradients)))

    assert_summed_in_order(dynamic, loss_of, tf.function)


@pytest.mark.long
@pytest.mark.parametrize("times", few_or_many(1, 4))
def test_replicas_can_be_repeated_bit_by_bit(times):
    random = np.random.default_rng(6)
    keys = random.integers(0, KEYS, (128, 3))
    targets = random.normal(size=(128, 1)).astype(np.float32)

    def trained_rows():
        keras.utils.set_random_seed(3)
        with keras_reference.mirrored().scope():
            inputs = keras.Input((3,), dtype="int64")
            embedding = DynamicEmbedding(DIM, "uniform", seed=1)
            rows = [keras.layers.Flatten()(embedding(ids)) for ids in (inputs, inputs + 1)]
            hidden = keras.layers.Dense(8, "tanh")(keras.layers.Concatenate()(rows))
            model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
            model.compile("adagrad", "mse")
        model.fit(keys, targets, batch_size=32, epochs=2, shuffle=False, verbose=0)
        return embedding.table.lookup(np.arange(KEYS + 1))

    first = trained_rows()
    for _ in range(times):
        np.testing.assert_array_equal(trained_rows(), first)


def test_fit_can_be_repeated_bit_by_bit():
    # A layer is called twice on keys in common: its two deposits come as threads have it.
    random = np.random.default_rng(5)
    left, right = random.integers(0, 40, (2, 128, 3))
    targets = random.normal(size=(128, 1)).astype(np.float32)

    def trained_rows():
        keras.utils.set_random_seed(3)
        inputs = [keras.Input((3,), dtype="int64") for _ in range(2)]
        embedding = DynamicEmbedding(DIM, "uniform", seed=1)
        rows = [keras.layers.Flatten()(embedding(ids)) for ids in inputs]
        hidden = keras.layers.Dense(8, "tanh")(keras.layers.Concatenate()(rows))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("adagrad", "mse")
        dataset = tf.data.Dataset.from_tensor_slices(((left, right), targets)).batch(32)
        model.fit(dataset, epochs=2, shuffle=False, verbose=0)
        return embedding.table.lookup(np.arange(40))

    first = trained_rows()
    for _ in range(4):
        np.testing.assert_array_equal(trained_rows(), first)
