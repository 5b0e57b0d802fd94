"""A table trains like `keras.layers.Embedding`, for keys that every batch contains."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from keras_reference import (
    BATCH,
    DIM,
    LENGTH,
    STEPS,
    VOCABULARY,
    Batches,
    SummedGradientEmbedding,
    fit,
    fit_eagerly,
    make_model,
    mirrored,
    train_both,
)

import sok_embed

OPTIMIZERS = {
    "sgd": lambda: ko.SGD(0.1),
    "momentum": lambda: ko.SGD(0.01, momentum=0.9),
    "nesterov": lambda: ko.SGD(0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda: ko.Adagrad(0.1),
    "rmsprop": lambda: ko.RMSprop(0.01),
    "rmsprop_centered": lambda: ko.RMSprop(0.01, centered=True),
    "rmsprop_momentum": lambda: ko.RMSprop(0.01, momentum=0.5),
    "rmsprop_centered_momentum": lambda: ko.RMSprop(0.01, centered=True, momentum=0.5),
    "adam": lambda: ko.Adam(0.01),
    "adam_weight_decay": lambda: ko.Adam(0.01, weight_decay=0.1),
    "amsgrad": lambda: ko.Adam(0.01, amsgrad=True),
    "adamw": lambda: ko.AdamW(0.01, weight_decay=0.1),
    "ftrl": lambda: ko.Ftrl(0.1, beta=0.1),
    "ftrl_l1_l2": lambda: ko.Ftrl(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02
    ),
    "ftrl_shrinkage": lambda: ko.Ftrl(0.1, l2_shrinkage_regularization_strength=0.02),
    "lion": lambda: ko.Lion(0.001),
    "lion_weight_decay": lambda: ko.Lion(0.001, weight_decay=0.1),
    "rowwise_adagrad": lambda: sok_embed.optimizers.RowwiseAdagrad(0.1),
}
# One without slots, one with slots and a step count.
TWO = ["sgd", "adam"]


def each(names=tuple(OPTIMIZERS)):
    return pytest.mark.parametrize("make_optimizer", [OPTIMIZERS[n] for n in names], ids=names)


@each()
def test_fit_trains_rows_like_a_static_layer(make_optimizer):
    trained = train_both(make_optimizer)
    trained.assert_equal()
    assert trained.table.stats()["steps"] == STEPS


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "lion"])
def test_the_plain_keras_layer_gives_the_same_where_a_rule_is_linear_in_slices(name):
    batches = Batches(steps=10)
    tables = []
    for cls in (keras.layers.Embedding, SummedGradientEmbedding):
        layer = cls(VOCABULARY, DIM)
        model = make_model(layer)
        model.compile(OPTIMIZERS[name](), "mse")
        layer.set_weights([batches.start])
        model.get_layer("dense").set_weights([batches.kernel, np.zeros(1, np.float32)])
        fit(model, batches.keys, batches.targets)
        tables.append(layer.get_weights()[0])
    # float32, sums in another order.
    np.testing.assert_allclose(*tables, rtol=0, atol=1e-5)


# Documents Keras, not this package. If it fails, Keras sums the gradients of equal indices now,
# and SummedGradientEmbedding can give way to keras.layers.Embedding.
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


@each(["sgd", "adagrad", "adam"])
def test_a_layer_called_twice_in_a_step_is_updated_once_with_the_sum(make_optimizer):
    trained = train_both(make_optimizer, calls=2)
    trained.assert_equal()
    assert trained.table.stats()["steps"] == STEPS


@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("cls", [ko.SGD, ko.Adam])
def test_accumulated_gradients_are_applied_in_the_last_of_the_steps(cls, steps):
    trained = train_both(lambda: cls(0.01, gradient_accumulation_steps=steps))
    trained.assert_equal()
    assert trained.table.stats()["steps"] == STEPS // steps


@each(["sgd", "adam", "adagrad"])
def test_a_learning_rate_schedule_is_followed(make_optimizer):
    schedule = ko.schedules.ExponentialDecay(0.05, 5, 0.8)

    def scheduled():
        config = make_optimizer().get_config()
        return type(make_optimizer()).from_config({**config, "learning_rate": schedule})

    train_both(scheduled).assert_equal()


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
        # min_delta=10: no epoch counts as better, so that the rate falls after each.
        plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.3, patience=1, min_delta=10.0)
        fit(model, keys, targets, epochs=5, callbacks=[plateau])
        rates.append(float(model.optimizer.learning_rate))

    train_both(lambda: ko.Adam(0.05), batches=Batches(steps=10), train=train).assert_equal()
    assert rates[0] == rates[1] < 0.05 * 0.3**2


def batches_of(keys, targets):
    for begin in range(0, len(keys), BATCH):
        yield keys[begin : begin + BATCH], targets[begin : begin + BATCH]


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


@each(["sgd", "adagrad", "adam"])
def test_replicas_of_a_mirrored_strategy_train_one_table(make_optimizer):
    trained = train_both(make_optimizer, make_strategy=mirrored)
    trained.assert_equal()
    assert trained.table.stats()["steps"] == STEPS


# Documents Keras: its accumulation merges replicas inside of a condition, which tf.distribute
# refuses, with any layer. If it fails, Batches under both can be compared like the rest.
def test_keras_does_not_accumulate_gradients_under_a_mirrored_strategy():
    with mirrored().scope():
        model = make_model(keras.layers.Embedding(VOCABULARY, DIM))
        model.compile(ko.SGD(0.1, gradient_accumulation_steps=2), "mse")
    batches = Batches(steps=2)
    with pytest.raises(RuntimeError, match="merge_call"):
        fit(model, batches.keys, batches.targets)


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


@pytest.mark.parametrize(("cls", "name"), [(ko.Adagrad, "adagrad"), (ko.Adam, "adam")])
def test_an_optimizer_of_the_layers_own_can_be_named(cls, name):
    train_both(cls, own_optimizer=lambda: name).assert_equal(atol=2e-6)


def test_an_optimizer_of_the_layers_own_can_be_a_config():
    config = keras.optimizers.serialize(ko.Adagrad(0.1))
    train_both(lambda: ko.Adagrad(0.1), own_optimizer=lambda: config).assert_equal()


def test_rows_rest_where_the_batch_does_not_contain_their_key_with_sgd():
    # Without slots, a row without gradient rests in Keras as well.
    train_both(OPTIMIZERS["sgd"], batches=Batches(absent=(0, 7, 49))).assert_equal()


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
    """Keys `[n]` with repeats and absences, and the gradient `[n, DIM]` that each gets."""
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
    # 50 steps in float32 of at most 0.1 each.
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
    # 50 steps in float32 of at most 0.01 each, and 1 - 0.999 in float32 has an error of 1e-5.
    np.testing.assert_allclose(
        layer.table.lookup(np.arange(VOCABULARY)), expected, rtol=1e-5, atol=1e-5
    )


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
    # As Trained.assert_equal.
    np.testing.assert_allclose(
        ours.table.lookup(np.arange(VOCABULARY)), theirs.get_weights()[0], rtol=0, atol=1e-5
    )
