"""A `DynamicEmbedding` with a combiner trains as Keras' embedding and a layer of one feature do."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from pooled_cases import (
    COMBINERS,
    DIM,
    FORMS,
    KEYS,
    LENGTH,
    StaticPooling,
    pooled,
    random_bags,
    start_of,
)

from sok_embed import DistributedEmbedding, DynamicEmbedding, FeatureConfig, TableConfig

STEPS = 50
# After 50 steps in float32, against float64.
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def optimizer_of(name: str) -> keras.optimizers.Optimizer:
    return {
        "sgd": lambda: keras.optimizers.SGD(0.1),
        "adagrad": lambda: keras.optimizers.Adagrad(0.1),
        # Every key is in each batch: a static Adam would move the others too.
        "adam": lambda: keras.optimizers.Adam(0.01, epsilon=1e-3),
    }[name]()


class Pooling(keras.Model):
    """A linear model of the vectors of one layer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.dense(self.layer(*inputs, training=training))


def train(model: keras.Model, batches: list[Any], name: str) -> None:
    optimizer = optimizer_of(name)

    @tf.function(reduce_retracing=True)
    def step(inputs: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            errors = model(inputs, training=True) - tf.cast(targets, model.compute_dtype)
            loss = tf.reduce_mean(tf.square(errors))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for number in range(STEPS):
        step(*batches[number % len(batches)])


def batches_of(form: str, weighted: bool) -> tuple[list[Any], list[Any]]:
    """The same batches for a layer and for `StaticPooling`."""
    ours, theirs = [], []
    for seed in range(5):
        bags = random_bags(form, seed=seed)
        targets = np.random.default_rng(seed).normal(size=(len(bags.numbers), 1))
        weights = (bags.weights_as(form),) if weighted else ()
        ours.append(((bags.keys(form), *weights), tf.constant(targets, tf.float32)))
        there = np.arange(LENGTH) < bags.lengths[:, None]
        used = bags.weights if weighted else np.ones_like(bags.weights)
        theirs.append(((bags.numbers, there, used), targets))
    return ours, theirs


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize(
    ("combiner", "weighted", "form"),
    [
        ("sum", False, "dense"),
        ("mean", True, "ragged"),
        ("sqrtn", True, "sparse"),
        ("sqrtn", False, "ragged"),
        ("max", False, "ragged"),
    ],
)
def test_training_equals_that_of_keras_and_of_a_layer_of_one_feature(
    combiner: str, weighted: bool, form: str, name: str
) -> None:
    ours, theirs = batches_of(form, weighted)
    static = StaticPooling(combiner, start_of())
    train(static, theirs, name)
    layer = DynamicEmbedding(DIM, combiner=combiner, weights=(KEYS, start_of()))
    train(Pooling(layer), ours, name)
    np.testing.assert_allclose(layer.table.lookup(KEYS), static.rows(), **TOLERANCE)
    assert np.abs(static.rows() - start_of()).max() > 0.05

    collection = DistributedEmbedding(
        FeatureConfig("f", TableConfig("t", None, DIM, combiner=combiner))
    )
    collection.tables["t"].assign(KEYS, start_of())
    train(Pooling(collection), ours, name)
    # The same kernels in the same order, but for the way of the rows.
    np.testing.assert_allclose(
        layer.table.lookup(KEYS), collection.tables["t"].lookup(KEYS), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weights_get_the_gradients_of_numpy(combiner: str) -> None:
    bags = random_bags("dense")
    layer = DynamicEmbedding(DIM, combiner=combiner, weights=(KEYS, start_of()))
    upstream = np.random.default_rng(0).normal(size=(len(bags.numbers), DIM))
    weights = tf.constant(bags.weights)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        vectors = layer(bags.keys("dense"), weights)
        loss = tf.reduce_sum(vectors * tf.constant(upstream, tf.float32))
    found = tape.gradient(loss, weights).numpy()
    # Central differences in float64; their own error is about 1e-9.
    expected, change = np.zeros(bags.weights.shape), 1e-5
    plain = bags.weights.astype(np.float64)
    for place in np.ndindex(*plain.shape):
        losses = []
        for sign in (1, -1):
            moved = plain.copy()
            moved[place] += sign * change
            bags.weights = moved
            losses.append((pooled(start_of(), bags, combiner, True) * upstream).sum())
        expected[place] = (losses[0] - losses[1]) / (2 * change)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.cover(2)
@pytest.mark.parametrize("form", FORMS)
def test_a_functional_model_fits_and_loads_from_its_file(form: str, tmp_path: Any) -> None:
    how = {} if form == "dense" else {form: True}
    inputs = keras.Input((LENGTH if form != "ragged" else None,), dtype="int64", **how)
    vectors = DynamicEmbedding(DIM, combiner="mean", name="words")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(vectors))
    model.compile("adam", "mse")
    bags = random_bags(form)
    keys, targets = bags.keys(form), np.ones((len(bags.numbers), 1))
    data = tf.data.Dataset.from_tensors((keys, targets))
    before = model(keys).numpy()
    model.fit(data, epochs=3, verbose=0)
    trained = model(keys).numpy()
    assert np.abs(trained - before).max() > 1e-4
    assert model.get_layer("words").table.size() == len(KEYS)
    path = tmp_path / "model.keras"
    model.save(path)
    np.testing.assert_array_equal(keras.saving.load_model(path)(keys), trained)


@pytest.mark.cover(2)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_an_exported_model_pools_as_the_layer_does(combiner: str, tmp_path: Any) -> None:
    layer = DynamicEmbedding(DIM, combiner=combiner, weights=(KEYS, start_of()))
    bags = random_bags("dense")
    expected = layer(bags.keys("dense"))
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int64"), layer])
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_array_equal(served.serve(bags.keys("dense")), expected)


def test_gradients_of_a_frozen_layer_reach_weights_alone() -> None:
    layer = DynamicEmbedding(DIM, combiner="sum", weights=(KEYS, start_of()), trainable=False)
    bags = random_bags("dense")
    weights = tf.constant(bags.weights)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(layer(bags.keys("dense"), weights, training=True))
    assert np.abs(tape.gradient(loss, weights)).max() > 0.1
    np.testing.assert_array_equal(layer.table.lookup(KEYS), start_of())
