"""Rows whose keys a batch does not contain rest; the formulas of those that it contains."""

import keras
import numpy as np
import pytest
from keras import optimizers as ko
from keras_reference import (
    DIM,
    OPTIMIZERS,
    STEPS,
    VOCABULARY,
    Batches,
    SummedGradientEmbedding,
    each,
    fit_eagerly,
    train_both,
)

import sok_embed


def test_rows_rest_where_the_batch_does_not_contain_their_key_with_sgd():
    # Without slots, a row without a gradient rests in Keras as well.
    train_both(OPTIMIZERS["sgd"], batches=Batches(absent=(0, 7, 49))).assert_equal()


@pytest.mark.cover(1)
@each()
def test_a_row_whose_key_is_absent_does_not_move(make_optimizer):
    batches = Batches(steps=5, absent=(0, 7, 49))
    trained = train_both(make_optimizer, batches=batches, train=fit_eagerly)
    np.testing.assert_array_equal(trained.ours[[0, 7, 49]], batches.start[[0, 7, 49]])


def test_keras_moves_absent_rows_with_adam_and_a_table_does_not():
    def train(model, keys, targets):
        fit_eagerly(model, keys, targets)
        # From here on key 3 gets no gradient; Keras still moves it by its momentum.
        seen.append(row_of(model, 3))
        fit_eagerly(model, np.where(keys == 3, 4, keys), targets)
        seen.append(row_of(model, 3))

    def row_of(model, key):
        layer = model.layers[1]
        static = isinstance(layer, SummedGradientEmbedding)
        return layer.get_weights()[0][key] if static else layer.table.lookup([key])[0]

    seen = []
    train_both(OPTIMIZERS["adam"], batches=Batches(steps=5), train=train)
    ours_before, ours_after, keras_before, keras_after = seen
    np.testing.assert_array_equal(ours_before, ours_after)
    assert np.abs(keras_before - keras_after).max() > 1e-3


def coefficient_batches(random, steps, keys_per_step):
    """Yields keys `[n]` with repeats and absences, and the gradient `[n, DIM]` of each."""
    for _ in range(steps):
        keys = random.integers(0, VOCABULARY, keys_per_step)
        yield keys, random.normal(size=(keys_per_step, DIM)).astype(np.float32)


def train_on_coefficients(layer, optimizer, batches):
    """Gradients of a known value: the loss is the sum of embedding times coefficient."""
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    size = len(batches[0][0])  # Keras takes the mean over the batch
    model.compile(optimizer, lambda y, embedding: size * keras.ops.sum(y * embedding, -1))
    for keys, coefficients in batches:
        model.train_on_batch(keys, coefficients)


def test_rowwise_adagrad_follows_its_formula_in_float64():
    random = np.random.default_rng(5)
    batches = list(coefficient_batches(random, STEPS, 40))
    layer = sok_embed.DynamicEmbedding(DIM)
    expected = layer.table.lookup(np.arange(VOCABULARY)).astype(np.float64)
    sums = np.full(VOCABULARY, 0.2)
    for keys, coefficients in batches:
        for key in np.unique(keys):
            gradient = coefficients[keys == key].astype(np.float64).sum(0)
            sums[key] += np.mean(gradient**2)
            expected[key] -= 0.1 * gradient / (np.sqrt(sums[key]) + 1e-3)
    optimizer = sok_embed.optimizers.RowwiseAdagrad(0.1, 0.2, 1e-3)
    train_on_coefficients(layer, optimizer, batches)
    # This allows for 50 steps in float32 of at most 0.1 each.
    np.testing.assert_allclose(
        layer.table.lookup(np.arange(VOCABULARY)), expected, rtol=1e-5, atol=1e-5
    )


def test_adam_with_absent_keys_is_lazy_adam_in_float64():
    random = np.random.default_rng(6)
    batches = list(coefficient_batches(random, STEPS, 20))
    layer = sok_embed.DynamicEmbedding(DIM)
    expected = layer.table.lookup(np.arange(VOCABULARY)).astype(np.float64)
    m, v = np.zeros((2, VOCABULARY, DIM))
    for t, (keys, coefficients) in enumerate(batches, start=1):
        for key in np.unique(keys):
            gradient = coefficients[keys == key].astype(np.float64).sum(0)
            m[key] += (gradient - m[key]) * (1 - 0.9)
            v[key] += (gradient**2 - v[key]) * (1 - 0.999)
            alpha = 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            expected[key] -= alpha * m[key] / (np.sqrt(v[key]) + 1e-7)
    train_on_coefficients(layer, ko.Adam(0.01), batches)
    # This allows for 50 steps in float32 of at most 0.01 each; 1 - 0.999 in float32 has an error of
    # 1e-5.
    np.testing.assert_allclose(
        layer.table.lookup(np.arange(VOCABULARY)), expected, rtol=1e-5, atol=1e-5
    )
