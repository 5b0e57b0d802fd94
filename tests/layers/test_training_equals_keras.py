"""A table trains like `keras.layers.Embedding`, for keys that every batch contains."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from keras_reference import (
    BATCH,
    DIM,
    LENGTH,
    OPTIMIZERS,
    STEPS,
    TWO,
    VOCABULARY,
    Batches,
    SummedGradientEmbedding,
    each,
    fit,
    fit_eagerly,
    train_both,
)
from tiers import long

import sok_embed

# `make test` has one of each class: other options of a class change what the core computes alone.
OPTIONS = re.compile(".+_(weight_decay|centered|centered_momentum|l1_l2|shrinkage)")


@pytest.mark.parametrize(
    "make_optimizer",
    [long(make) if OPTIONS.fullmatch(name) else make for name, make in OPTIMIZERS.items()],
    ids=OPTIMIZERS,
)
def test_fit_trains_rows_like_a_static_layer(make_optimizer):
    trained = train_both(make_optimizer)
    trained.assert_equal()
    assert trained.table.stats()["steps"] == STEPS


# The other rules square the gradients of equal keys one by one: see the next test.
@pytest.mark.cover(1)
@each(("sgd", "momentum", "nesterov", "lion"))
def test_a_table_trains_like_the_plain_keras_layer_where_a_rule_is_linear_in_slices(make_optimizer):
    trained = train_both(make_optimizer, reference=keras.layers.Embedding)
    trained.assert_equal()
    assert trained.table.stats()["steps"] == STEPS == 50


# This documents Keras, not this package. If it fails, Keras sums the gradients of equal indices
# now, and SummedGradientEmbedding can give way to keras.layers.Embedding.
@pytest.mark.cover(2)
@pytest.mark.parametrize("cls", [ko.Adagrad, ko.RMSprop, ko.Adam, ko.AdamW, ko.Ftrl])
def test_keras_squares_the_gradients_of_equal_indices_one_by_one(cls):
    values = []
    for dense in (False, True):
        variable = keras.Variable(np.zeros((2, 1), np.float32))
        optimizer = cls(0.1)
        for step in range(3):
            gradient = tf.IndexedSlices(
                tf.constant([[1.0], [2.0]]) * (1.0 + step), tf.constant([0, 0]), tf.constant([2, 1])
            )
            optimizer.apply([tf.convert_to_tensor(gradient) if dense else gradient], [variable])
        values.append(variable.numpy()[0, 0])
    assert abs(values[0] - values[1]) > 1e-3


@pytest.mark.cover(1)
@each(TWO)
def test_a_learning_rate_that_is_set_in_the_middle_of_training_is_followed(make_optimizer):
    def train(model, keys, targets):
        half = len(keys) // 2
        fit(model, keys[:half], targets[:half])
        model.optimizer.learning_rate = 0.001
        fit(model, keys[half:], targets[half:])

    train_both(make_optimizer, train=train).assert_equal()


def test_reduce_lr_on_plateau_reaches_the_rows():
    rates = []

    def train(model, keys, targets):
        # With min_delta=10 no epoch counts as better, so that the rate falls after each.
        plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.3, patience=1, min_delta=10.0)
        fit(model, keys, targets, epochs=5, callbacks=[plateau])
        rates.append(float(model.optimizer.learning_rate))

    train_both(lambda: ko.Adam(0.05), batches=Batches(steps=10), train=train).assert_equal()
    assert rates[0] == rates[1] < 0.05 * 0.3**2


def batches_of(keys, targets):
    for begin in range(0, len(keys), BATCH):
        yield keys[begin : begin + BATCH], targets[begin : begin + BATCH]


@pytest.mark.cover(1)
@each(TWO)
def test_train_on_batch_trains_like_fit(make_optimizer):
    def train(model, keys, targets):
        for x, y in batches_of(keys, targets):
            model.train_on_batch(x, y)

    train_both(make_optimizer, train=train).assert_equal()


def gradient_step(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


@pytest.mark.cover(1)
@each(TWO)
def test_an_eager_loop_with_a_tape_trains_rows(make_optimizer):
    def train(model, keys, targets):
        for x, y in batches_of(keys, targets):
            gradient_step(model, tf.constant(x), tf.constant(y))

    train_both(make_optimizer, train=train).assert_equal()


@each(TWO)
def test_a_loop_of_a_tf_function_trains_rows(make_optimizer):
    def train(model, keys, targets):
        model.optimizer.build(model.trainable_variables)
        step = tf.function(lambda x, y: gradient_step(model, x, y))
        for x, y in batches_of(keys, targets):
            step(tf.constant(x), tf.constant(y))

    train_both(make_optimizer, train=train).assert_equal()


def test_a_loop_inside_of_one_tf_function_trains_rows():
    def train(model, keys, targets):
        model.optimizer.build(model.trainable_variables)
        data = tf.data.Dataset.from_tensor_slices((keys, targets)).batch(BATCH)

        @tf.function
        def epoch():
            for x, y in data:
                gradient_step(model, x, y)

        epoch()

    train_both(OPTIMIZERS["adam"], train=train).assert_equal()


def test_several_steps_per_execution_train_rows():
    def train(model, keys, targets):
        model.compile(model.optimizer, "mse", steps_per_execution=5)
        fit(model, keys, targets)

    train_both(OPTIMIZERS["adam"], train=train).assert_equal()


def test_fit_that_runs_eagerly_trains_rows():
    batches = Batches(steps=10)
    train_both(OPTIMIZERS["adam"], batches=batches, train=fit_eagerly).assert_equal()


def test_a_loss_scale_factor_is_divided_out():
    # The factor is part of the loss that Keras differentiates, and must not reach the rows.
    train_both(lambda: ko.SGD(0.1, loss_scale_factor=8.0)).assert_equal()


@pytest.mark.cover(1)
@pytest.mark.parametrize("by", ["variable", "name"])
def test_rows_that_are_excluded_from_weight_decay_do_not_decay(by):
    def exclude(optimizer, weight):
        if by == "variable":
            optimizer.exclude_from_weight_decay(var_list=[weight])
        else:
            optimizer.exclude_from_weight_decay(var_names=["anchor", "embeddings"])

    how = {"batches": Batches(steps=20), "train": fit_eagerly}
    excluded = train_both(lambda: ko.AdamW(0.01, weight_decay=0.5), prepare=exclude, **how)
    excluded.assert_equal()
    decayed = train_both(lambda: ko.AdamW(0.01, weight_decay=0.5), **how)
    assert np.abs(excluded.ours - decayed.ours).max() > 1e-3


def test_mixed_bfloat16_trains_float32_rows():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        # The static layer puts out float32, which the next layer rounds, as our layer does.
        trained = train_both(OPTIMIZERS["sgd"], reference_dtype="float32")
    finally:
        keras.config.set_dtype_policy(before)
    # Rows are float32, but a difference in their last bit can change how an embedding rounds to
    # bfloat16, by 2^-8 of its value. Gradients, and so rows, differ by that much for a while.
    np.testing.assert_allclose(trained.ours, trained.keras, rtol=0, atol=2e-3)
    assert np.abs(trained.ours - trained.start).max() > 0.1
    assert trained.ours.dtype == np.float32


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    ("first", "second"),
    [("adam", "adagrad"), ("adagrad", "adam"), ("adam", "adam"), ("sgd", "momentum")],
)
def test_compiling_again_with_another_optimizer_starts_its_slots_anew(first, second):
    def train(model, keys, targets):
        half = len(keys) // 2
        fit_eagerly(model, keys[:half], targets[:half])
        model.compile(OPTIMIZERS[second](), "mse")
        fit_eagerly(model, keys[half:], targets[half:])

    train_both(OPTIMIZERS[first], batches=Batches(steps=10), train=train).assert_equal()


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "own",
    [
        lambda: ko.Adagrad(0.1),
        lambda: ko.Adam(0.01),
        lambda: ko.AdamW(0.01, weight_decay=0.1),
        lambda: ko.Adam(ko.schedules.ExponentialDecay(0.05, 5, 0.8)),
        lambda: ko.SGD(ko.schedules.PiecewiseConstantDecay([10, 20], [0.1, 0.05, 0.01])),
    ],
    ids=["adagrad", "adam", "adamw", "adam_schedule", "sgd_schedule"],
)
def test_an_optimizer_of_the_layers_own_wins_over_that_of_the_model(own):
    train_both(own, own_optimizer=own).assert_equal()


@pytest.mark.cover(1)
@pytest.mark.parametrize(("cls", "name"), [(ko.Adagrad, "adagrad"), (ko.Adam, "adam")])
def test_an_optimizer_of_the_layers_own_can_be_named(cls, name):
    train_both(cls, own_optimizer=lambda: name).assert_equal(atol=2e-6)


def test_an_optimizer_of_the_layers_own_can_be_a_config():
    config = keras.optimizers.serialize(ko.Adagrad(0.1))
    train_both(lambda: ko.Adagrad(0.1), own_optimizer=lambda: config).assert_equal()


def test_all2all_dense_embedding_trains_like_a_static_layer():
    batches = Batches(steps=20)
    ours = sok_embed.All2AllDenseEmbedding(VOCABULARY, DIM, 2, LENGTH // 2)
    theirs = SummedGradientEmbedding(VOCABULARY, DIM)
    for layer in (ours, theirs):
        model = keras.Sequential(
            [
                keras.Input((2, LENGTH // 2), dtype="int64"),
                layer,
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(ko.Adam(0.01), "mse")
        model.layers[-1].set_weights([batches.kernel, np.zeros(1, np.float32)])
        if layer is ours:
            layer.table.assign(np.arange(VOCABULARY), batches.start)
        else:
            layer.set_weights([batches.start])
        fit(model, batches.keys.reshape(-1, 2, LENGTH // 2), batches.targets)
    # The tolerance is that of Trained.assert_equal.
    np.testing.assert_allclose(
        ours.table.lookup(np.arange(VOCABULARY)), theirs.get_weights()[0], rtol=0, atol=1e-5
    )
