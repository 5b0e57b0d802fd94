"""Where gradients go: into the table, once, and only those that somebody asked for."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko

from sok_embed import DynamicEmbedding

DIM = 2


@pytest.fixture
def layer():
    layer = DynamicEmbedding(DIM, "zeros")
    layer.build()
    return layer


def pending(layer):
    return layer.table.stats()["pending_gradients"]


def apply(layer, gradients):
    ko.SGD(1.0).apply(gradients, layer.trainable_variables)


def test_the_gradient_of_the_anchor_has_the_norm_of_the_rows_gradients(layer):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1, 2]), training=True) * 5.0)
    (gradient,) = tape.gradient(loss, layer.trainable_variables)
    assert gradient.shape == layer.anchor.shape
    np.testing.assert_allclose(np.linalg.norm(gradient), 5.0 * np.sqrt(2 * DIM), rtol=1e-6)


@pytest.mark.parametrize("wrap", [tf.function, lambda f: f], ids=["function", "eager"])
def test_a_gradient_waits_in_the_table_until_it_is_applied(layer, wrap):
    @wrap
    def gradients(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(keys, training=True))
        return tape.gradient(loss, layer.trainable_variables)

    taken = gradients(tf.constant([1, 1, 2], tf.int64))
    assert pending(layer) == 3
    np.testing.assert_array_equal(layer.table.lookup([1, 2]), np.zeros((2, DIM)))
    apply(layer, taken)
    assert pending(layer) == 0
    np.testing.assert_array_equal(layer.table.lookup([1, 2]), [[-2.0] * DIM, [-1.0] * DIM])


def test_in_a_tf_function_a_gradient_for_other_variables_leaves_no_deposit(layer):
    # This is as in a GAN: the generator's step differentiates through the discriminator's table.
    other = tf.Variable(3.0)

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(keys, training=True) + 1.0) * other
        return tape.gradient(loss, [other])

    (gradient,) = step(tf.constant([1, 2], tf.int64))
    assert float(gradient) == 2 * DIM
    assert pending(layer) == 0


def test_in_a_tf_function_two_optimizers_each_train_what_they_ask_for(layer):
    other = keras.Variable(3.0)
    for_rows, for_other = ko.SGD(1.0), ko.SGD(1.0)
    for_rows.build(layer.trainable_variables)
    for_other.build([other])

    @tf.function
    def step(keys):
        with tf.GradientTape(persistent=True) as tape:
            rows = tf.reduce_sum(layer(keys, training=True))
            loss_of_rows = rows * 2.0
            loss_of_other = (rows + 1.0) * other.value
        other_gradients = tape.gradient(loss_of_other, [other.value])
        row_gradients = tape.gradient(loss_of_rows, layer.trainable_variables)
        for_other.apply(other_gradients, [other])
        for_rows.apply(row_gradients, layer.trainable_variables)

    step(tf.constant([1], tf.int64))
    np.testing.assert_array_equal(layer.table.lookup([1]), [[-2.0] * DIM])
    assert float(other) == 2.0
    assert pending(layer) == 0


def test_an_embedding_that_is_used_twice_gets_the_sum_of_both_gradients(layer):
    @tf.function
    def gradients(keys):
        with tf.GradientTape() as tape:
            embedding = layer(keys, training=True)
            loss = tf.reduce_sum(embedding * 2.0) + tf.reduce_sum(embedding * 3.0)
        return tape.gradient(loss, layer.trainable_variables)

    apply(layer, gradients(tf.constant([1], tf.int64)))
    np.testing.assert_array_equal(layer.table.lookup([1]), [[-5.0] * DIM])


@pytest.mark.parametrize("wrap", [tf.function, lambda f: f], ids=["function", "eager"])
def test_two_lookups_of_equal_keys_both_count(layer, wrap):
    # TensorFlow merges equal operations; lookups must not be among them.
    @wrap
    def gradients(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(keys, training=True)) + tf.reduce_sum(
                layer(keys, training=True)
            )
        return tape.gradient(loss, layer.trainable_variables)

    apply(layer, gradients(tf.constant([1], tf.int64)))
    np.testing.assert_array_equal(layer.table.lookup([1]), [[-2.0] * DIM])


def test_a_gradient_that_is_not_applied_can_be_dropped(layer):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1, 2]), training=True))
    tape.gradient(loss, layer.trainable_variables)
    assert layer.table.drop_gradients() == 2
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([2, 3]), training=True))
    apply(layer, tape.gradient(loss, layer.trainable_variables))
    np.testing.assert_array_equal(
        layer.table.lookup([1, 2, 3]), [[0.0] * DIM, [-1.0] * DIM, [-1.0] * DIM]
    )


def test_a_part_of_an_embedding_that_no_loss_uses_gets_no_gradient(layer):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1, 2]), training=True)[0, 0])
    apply(layer, tape.gradient(loss, layer.trainable_variables))
    np.testing.assert_array_equal(layer.table.lookup([1, 2]), [[-1.0, 0.0], [0.0, 0.0]])


def test_a_layer_that_the_loss_does_not_use_is_not_committed(layer):
    other = keras.Variable(1.0)
    with tf.GradientTape() as tape:
        layer(np.array([1]), training=True)
        loss = other.value * 2.0
    variables = [*layer.trainable_variables, other]
    gradients = tape.gradient(loss, variables)
    assert gradients[0] is None
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        ko.SGD(1.0).apply(gradients, variables)
    assert layer.table.stats()["steps"] == 0
    assert float(other) == -1.0


def test_stop_gradient_leaves_the_rows_alone(layer):
    with tf.GradientTape() as tape:
        embedding = layer(np.array([1]), training=True)
        loss = tf.reduce_sum(tf.stop_gradient(embedding))
    assert tape.gradient(loss, layer.trainable_variables) == [None]
    assert pending(layer) == 0


def test_a_lookup_without_training_can_be_trained_all_the_same(layer):
    # `training=False` decides that a forward pass makes no rows; a gradient still needs them.
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1]), training=False))
    assert layer.table.size() == 0
    apply(layer, tape.gradient(loss, layer.trainable_variables))
    assert layer.table.size() == 1
    np.testing.assert_array_equal(layer.table.lookup([1]), [[-1.0] * DIM])


def test_a_lookup_in_a_branch_of_a_condition_is_trained(layer):
    @tf.function
    def gradients(keys, taken):
        with tf.GradientTape() as tape:
            if taken:
                embedding = layer(keys, training=True)
            else:
                embedding = tf.zeros((1, DIM))
            loss = tf.reduce_sum(embedding)
        return tape.gradient(loss, layer.trainable_variables)

    keys = tf.constant([1], tf.int64)
    gradients(keys, tf.constant(False))
    assert pending(layer) == 0
    apply(layer, gradients(keys, tf.constant(True)))
    np.testing.assert_array_equal(layer.table.lookup([1]), [[-1.0] * DIM])


def test_a_lookup_in_a_loop_is_trained_in_every_turn(layer):
    @tf.function
    def gradients(keys):
        with tf.GradientTape() as tape:
            loss = 0.0
            for key in keys:
                loss += tf.reduce_sum(layer(key[None], training=True))
        return tape.gradient(loss, layer.trainable_variables)

    apply(layer, gradients(tf.constant([1, 2, 1], tf.int64)))
    np.testing.assert_array_equal(layer.table.lookup([1, 2]), [[-2.0] * DIM, [-1.0] * DIM])


def test_rematerialized_lookups_are_trained_once(layer):
    @tf.function
    def gradients(keys):
        embed = tf.recompute_grad(lambda k: layer(k, training=True) * 3.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embed(keys))
        return tape.gradient(loss, layer.trainable_variables)

    apply(layer, gradients(tf.constant([1], tf.int64)))
    np.testing.assert_array_equal(layer.table.lookup([1]), [[-3.0] * DIM])


def test_what_an_optimizer_had_accumulated_goes_with_it_when_the_model_is_compiled_again() -> None:
    def rows(embedding: keras.layers.Layer) -> np.ndarray:
        model = keras.Sequential([keras.Input((1,), dtype="int64"), embedding])
        accumulating = keras.optimizers.SGD(1.0, gradient_accumulation_steps=4)
        model.compile(accumulating, "mae")
        seven, eight = np.array([[7]]), np.array([[8]])
        for _ in range(6):
            model.train_on_batch(seven, np.full([1, 1, 4], 9.0))
        model.compile(keras.optimizers.SGD(1.0), "mae")
        model.train_on_batch(eight, np.full([1, 1, 4], 9.0))
        keys = np.array([7, 8])
        if hasattr(embedding, "table"):
            return embedding.table.lookup(keys)
        return embedding.get_weights()[0][keys]

    ours = rows(DynamicEmbedding(4, embeddings_initializer="zeros"))
    keras_rows = rows(keras.layers.Embedding(9, 4, embeddings_initializer="zeros"))
    np.testing.assert_allclose(ours, keras_rows, atol=1e-6)  # rounding of a few float32 sums


def test_the_anchor_stays_zero_where_ftrl_divides_zero_by_zero() -> None:
    layer = DynamicEmbedding(4)
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer])
    model.compile(keras.optimizers.Ftrl(0.1, initial_accumulator_value=0.0), "mse")
    model.train_on_batch(np.array([[1]]), np.ones([1, 1, 4]))
    np.testing.assert_array_equal(layer.anchor, np.zeros(layer.anchor.shape))
    assert np.isfinite(layer.table.lookup([1])).all()
