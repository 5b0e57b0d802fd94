"""One config in two layers of a model makes two tables of one name: that is not silent."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig

KEYS = np.array([1, 2, 3])


def config(**arguments):
    return TableConfig("items", None, 4, **arguments)


def layer_of(table, feature="item", name=None):
    return DistributedEmbedding({feature: FeatureConfig(feature, table)}, name=name)


def two_towers(items):
    item = keras.Input((), dtype="int64", name="item")
    seen = keras.Input((3,), dtype="int64", name="seen")
    left = layer_of(items, name="left")({"item": item})["item"]
    right = layer_of(items, "seen", name="right")({"seen": seen})["seen"]
    return keras.Model([item, seen], keras.layers.Dot(axes=1)([left, right]))


SHARED = "TableConfig 'items' in one layer of a model. Received: layers 'left' and 'right'"
DATA = [KEYS, np.stack([KEYS] * 3)]


def test_two_layers_of_one_config_in_a_model_are_refused_by_fit():
    model = two_towers(config())
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match=f"{SHARED}.*one DistributedEmbedding"):
        model.fit(DATA, np.ones(3), verbose=0)


@pytest.mark.parametrize("optimizer", [None, "sgd"], ids=["followed", "own"])
def test_they_are_refused_in_a_loop_of_ones_own(optimizer):
    model = two_towers(config(optimizer=optimizer))
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(DATA, training=True))
    with pytest.raises(ValueError, match=SHARED):
        keras.optimizers.SGD().apply(tape.gradient(loss, variables), variables)


def step(layer, optimizer):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer({"item": KEYS}, training=True)["item"])
    optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)


def test_layers_of_one_config_with_optimizers_of_their_own_are_told_of():
    items = config()
    left, right = layer_of(items, name="left"), layer_of(items, name="right")
    optimizer = keras.optimizers.SGD()
    step(left, optimizer)
    with pytest.warns(UserWarning, match="'items' is in layers 'left' and 'right'"):
        step(right, keras.optimizers.SGD())
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        step(left, optimizer)


def test_models_that_are_trained_one_after_the_other_may_have_one_config():
    """So does a cross-validation, and a cell of a notebook that runs again."""
    items = config()
    for _ in range(3):
        layer = layer_of(items)
        assert layer.tables["items"].size() == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            step(layer, keras.optimizers.SGD())
        del layer


def test_a_layer_goes_on_with_another_optimizer():
    layer = layer_of(config())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        step(layer, keras.optimizers.SGD())
        step(layer, keras.optimizers.SGD())


def test_equal_configs_of_two_layers_are_two_tables():
    left, right = layer_of(config()), layer_of(config())
    optimizer = keras.optimizers.SGD()
    with tf.GradientTape() as tape:
        loss = sum(
            tf.reduce_sum(each({"item": KEYS}, training=True)["item"]) for each in (left, right)
        )
    variables = left.trainable_variables + right.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    assert left.tables["items"].size() == right.tables["items"].size() == 3
