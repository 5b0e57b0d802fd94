"""Changes of an anchor without a Keras optimizer, and optimizers that take rates of their own."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_steps import IN_FUNCTION, TOLERANCE, check_equal, plain, train
from dense_twin import Model, WeightOfRows, loss_of, table_layer
from keras_reference import mirrored

import sok_embed


@IN_FUNCTION
@pytest.mark.parametrize("native", [False, True], ids=["keras", "native"])
def test_a_change_of_the_anchor_by_hand_is_refused(native, in_function):
    def by_hand(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = loss_of(model, keys, targets)
        variables = model.trainable_variables
        for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True):
            (variable.value if native else variable).assign_sub(0.1 * gradient)

    model = Model(table_layer())
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="Give the gradients to"):
        train(model, keras.optimizers.SGD(0.1), by_hand, in_function)
    np.testing.assert_array_equal(np.asarray(model.layer.anchor), 0.0)


ELEMENT_BY_ELEMENT = {
    "noise": lambda gradient: gradient + tf.random.normal(tf.shape(gradient), stddev=1e-3, seed=1),
    "centralization": lambda gradient: gradient - tf.reduce_mean(gradient),
    "sign": tf.sign,
    "clip": lambda gradient: tf.clip_by_value(gradient, -1e-3, 1e-3),
}


@IN_FUNCTION
@pytest.mark.parametrize("change", ELEMENT_BY_ELEMENT)
def test_a_change_of_elements_is_called_that(change, in_function):
    def changed(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = loss_of(model, keys, targets)
        taken = tape.gradient(loss, model.trainable_variables)
        optimizer.apply([ELEMENT_BY_ELEMENT[change](g) for g in taken], model.trainable_variables)

    model = Model(table_layer())
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="changed one by one.*layer's `anch"
    ):
        train(model, keras.optimizers.SGD(0.1), changed, in_function)
    np.testing.assert_array_equal(model.layer.table.lookup(np.arange(20)), np.float32(0.1))


def test_an_anchor_may_be_set_to_zeros():
    model = Model(table_layer())
    train(model, keras.optimizers.SGD(0.1), plain)
    with sok_embed.dense_only():
        model.set_weights(model.get_weights())
    model.layer.anchor.assign(np.zeros(model.layer.anchor.shape))


@pytest.mark.cover(2)
@IN_FUNCTION
@pytest.mark.parametrize("name", ["GradientDescentOptimizer", "AdagradOptimizer"])
def test_optimizers_of_v1_train_native_variables(name, in_function):
    make = getattr(tf.compat.v1.train, name)
    optimizer_of = {}

    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = loss_of(model, keys, targets)
        variables = [each.value for each in model.trainable_variables]
        gradients = tape.gradient(loss, variables)
        optimizer_of.setdefault(model, make(0.05)).apply_gradients(
            zip(gradients, variables, strict=True)
        )

    found, expected = (
        train(Model(layer), keras.optimizers.SGD(), step, in_function)
        for layer in (table_layer(), WeightOfRows())
    )
    check_equal(found, expected)


@pytest.mark.cover("values")
@IN_FUNCTION
@pytest.mark.parametrize("name", ["GradientDescentOptimizer", "AdagradOptimizer"])
def test_optimizers_of_v1_train_the_rows_that_replicas_share(name, in_function):
    def step(model, optimizer, keys, targets, number):
        def of_replica():
            with tf.GradientTape() as tape:
                loss = loss_of(model, keys, targets)
            variables = [each.value for each in model.trainable_variables]
            gradients = tape.gradient(loss, variables)
            optimizer_of[model].apply_gradients(zip(gradients, variables, strict=True))

        optimizer_of.setdefault(model, getattr(tf.compat.v1.train, name)(0.05))
        mirrored().run(of_replica)

    optimizer_of = {}
    with mirrored().scope():
        found, expected = (
            train(Model(layer()), keras.optimizers.SGD(), step, in_function)
            for layer in (table_layer, WeightOfRows)
        )
    check_equal(found, expected)


class HalfTheRate(keras.optimizers.SGD):
    """Keras asks it for the rate of each step by ways of its own."""

    def _backend_update_step(self, grads: Any, variables: Any, learning_rate: Any) -> None:
        super()._backend_update_step(grads, variables, 0.5 * learning_rate)


@IN_FUNCTION
def test_rows_follow_the_rate_that_the_formula_is_given(in_function):
    found, expected = (
        train(Model(layer), HalfTheRate(0.1), plain, in_function)
        for layer in (table_layer(), WeightOfRows())
    )
    check_equal(found, expected)
    np.testing.assert_allclose(
        found[0], train(Model(table_layer()), keras.optimizers.SGD(0.05), plain)[0], atol=TOLERANCE
    )
