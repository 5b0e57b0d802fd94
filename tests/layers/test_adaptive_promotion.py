"""A key gets its row in the step in which its count reaches `promote_after`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_reference import (
    DIM,
    KEYS,
    AdaptiveReference,
    Sgd,
    make,
    random_batch,
    train_step,
)
from keras import optimizers as ko

RATE = 0.1


def assert_same(one, two):
    theirs = two.by_name()
    for name, ours in one.by_name().items():
        np.testing.assert_array_equal(ours, theirs[name], err_msg=name)


@pytest.mark.cover(2)
@pytest.mark.parametrize("promote_after", [1, 2, 3, 7])
def test_rows_are_those_of_the_reference_after_every_step(promote_after):
    seed = promote_after
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    layer, optimizer = make(promote_after=promote_after), ko.SGD(RATE)
    layer.build()
    model = AdaptiveReference(layer, Sgd(RATE), promote_after)
    for _ in range(12):
        keys, gradients = random_batch(random)
        ours = train_step(layer, optimizer, keys, gradients)
        theirs = model.lookup(keys, training=True)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        model.deposit(keys, gradients)
        model.commit()
        model.assert_equal(layer)
    assert 0 < len(model.rows) <= len(model.counts)


def test_calls_of_one_step_are_counted_together():
    layer, optimizer = make(promote_after=3), ko.SGD(RATE)
    layer.build()
    model = AdaptiveReference(layer, Sgd(RATE), 3)
    random = np.random.default_rng(5)
    for _ in range(6):
        (left, left_gradients), (right, right_gradients) = (random_batch(random) for _ in range(2))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(left, training=True) * left_gradients)
            # Keys that are promoted here have a gradient in the first call, too: of their row.
            loss += tf.reduce_sum(layer(right, training=True) * right_gradients)
        optimizer.apply([tape.gradient(loss, layer.anchor.value)], [layer.anchor])
        model.lookup(left, training=True)
        model.lookup(right, training=True)
        model.deposit(left, left_gradients)
        model.deposit(right, right_gradients)
        model.commit()
        model.assert_equal(layer)


def test_the_first_own_row_is_its_static_row_bit_for_bit():
    layer, optimizer = make(promote_after=2), ko.Adagrad(0.3)
    random = np.random.default_rng(1)
    for _ in range(3):
        # Other keys train the static rows.
        keys = np.arange(1000, 1020)
        train_step(
            layer, optimizer, keys + random.integers(0, 10**9), random.normal(size=(20, DIM))
        )
    static = layer.table.lookup_static([5])
    assert layer.table.size() == 0
    train_step(layer, ko.SGD(0.0), np.array([5]), np.zeros((1, DIM)))
    assert layer.table.size() == 0
    own = layer(np.array([5, 5]), training=True)
    assert layer.table.export()[0].tolist() == [5]
    np.testing.assert_array_equal(own, np.repeat(static, 2, 0))
    np.testing.assert_array_equal(layer.table.lookup([5]), static)


def test_the_gradient_of_the_step_goes_to_the_row_only():
    layer = make(promote_after=2)
    start = layer.table.lookup([5])
    train_step(layer, ko.SGD(1.0), np.array([5, 5]), np.ones((2, DIM), np.float32))
    np.testing.assert_array_equal(layer.table.lookup_static([5]), start)
    np.testing.assert_array_equal(layer.table.lookup([5]), start - 2)


def test_the_gradient_of_a_rare_key_goes_to_its_static_row():
    layer = make(promote_after=3)
    start = layer.table.lookup([5])
    train_step(layer, ko.SGD(1.0), np.array([5, 5]), np.ones((2, DIM), np.float32))
    assert layer.table.size() == 0
    np.testing.assert_array_equal(layer.table.lookup_static([5]), start - 2)
    np.testing.assert_array_equal(layer.table.lookup([5]), start - 2)


class Sizes(keras.callbacks.Callback):
    """Which keys have a row after each batch."""

    def __init__(self, layer):
        super().__init__()
        self._layer = layer
        self.keys = []

    def on_train_batch_end(self, batch, logs=None):
        self.keys.append(sorted(self._layer.table.export()[0].tolist()))


def model_of(layer):
    return keras.Sequential(
        [keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    )


@pytest.mark.cover(1)
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
def test_fit_promotes_in_the_step_in_which_the_count_is_reached(eager):
    layer = make(promote_after=3)
    model = model_of(layer)
    model.compile("adam", "mse", run_eagerly=eager)
    keys = np.array([[1, 2, 3], [1, 2, 4], [1, 5, 5], [2, 5, 4], [4, 3, 9], [3, 3, 3]])
    sizes = Sizes(layer)
    model.fit(keys, np.ones((6, 1)), batch_size=1, shuffle=False, verbose=0, callbacks=[sizes])
    assert sizes.keys == [[], [], [1], [1, 2, 5], [1, 2, 4, 5], [1, 2, 3, 4, 5]]


def test_evaluation_counts_nothing_and_makes_no_rows():
    layer = make(promote_after=2)
    model = model_of(layer)
    model.compile("adam", "mse", run_eagerly=True)
    random = np.random.default_rng(3)
    keys, targets = random.choice(KEYS, (8, 3)), np.ones((8, 1))
    model.fit(keys, targets, verbose=0)
    before, figures = layer.table.snapshot(), layer.stats()
    for _ in range(3):
        model.evaluate(keys + 1, targets, verbose=0)
        model.predict(keys + 2, verbose=0)
        layer(keys + 3)
        layer(keys + 3, training=False)
        layer.table.lookup(keys + 4)
    assert_same(layer.table.snapshot(), before)
    lookups = {"looked_up", "found"}  # how often tables were asked
    after = layer.stats()
    assert {name: after[name] for name in after.keys() - lookups} == {
        name: figures[name] for name in figures.keys() - lookups
    }
    assert 0 < figures["rows"] < len(KEYS)


def test_validation_within_fit_changes_nothing():
    random = np.random.default_rng(3)
    keys, others, targets = (
        random.choice(KEYS, (8, 3)),
        random.choice(KEYS, (8, 3)),
        np.ones((8, 1)),
    )
    snapshots = []
    for validation in (None, (others, targets)):
        keras.utils.set_random_seed(0)
        layer = make(promote_after=2)
        model = model_of(layer)
        model.compile("adam", "mse", run_eagerly=True)
        model.fit(keys, targets, epochs=2, shuffle=False, verbose=0, validation_data=validation)
        snapshots.append(layer.table.snapshot().by_name())
    for name, ours in snapshots[0].items():
        theirs = snapshots[1][name]
        if name.endswith("update_times"):
            continue  # the two need not be trained in the same second
        if np.ndim(ours):
            ours, theirs = np.sort(ours, 0), np.sort(theirs, 0)
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_a_frozen_layer_counts_nothing():
    layer = make(promote_after=2)
    layer.build()
    layer.trainable = False
    before = layer.table.snapshot()
    for _ in range(3):
        layer(np.array([1, 1, 1]), training=True)
        layer(np.array([1, 1, 1]), training=True, mask=1)
    assert_same(layer.table.snapshot(), before)
