"""Clipped and scaled gradients: rows and dense weights follow a model whose table is a weight."""

from collections.abc import Callable
from typing import Any

import keras
import keras_reference
import numpy as np
import pytest
import tensorflow as tf
from dense_twin import (
    DIM,
    KEYS,
    START,
    Model,
    WeightOfRows,
    adaptive_layer,
    contents,
    loss_of,
    table_layer,
)

import sok_embed
from sok_embed import tf_ops

BATCH, STEPS = (8, 2), 7
# Norms are float32, rounded in other orders; they scale what is of the size of 1.
TOLERANCE = 2e-6


Step = Callable[[Model, Any, Any, Any, Any], None]


def plain(model, optimizer, keys, targets, number):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(model, keys, targets))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


def calls(count):
    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            losses = [loss_of(model, (keys + i) % KEYS, targets) for i in range(count)]
            loss = optimizer.scale_loss(tf.add_n(losses) / count)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step


def every_second(model, optimizer, keys, targets, number):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(model, keys, targets))
    taken = tape.gradient(loss, model.trainable_variables)

    def apply() -> int:
        optimizer.apply(taken, model.trainable_variables)
        return 0

    tf.cond(number % 2 == 0, apply, lambda: 0)


def several_of_a_tape(model, optimizer, keys, targets, number):
    with tf.GradientTape(persistent=True) as tape:
        losses = [
            optimizer.scale_loss(loss_of(model, keys, goal))
            for goal in (targets, 2 - targets, targets / 2)
        ]
    taken = [tape.gradient(loss, model.trainable_variables) for loss in losses]
    optimizer.apply(taken.pop(1), model.trainable_variables)
    optimizer.apply([a - 0.5 * b for a, b in zip(*taken, strict=True)], model.trainable_variables)


def by_hand(clip):
    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(loss_of(model, keys, targets))
            loss += optimizer.scale_loss(loss_of(model, (keys * 3) % KEYS, targets))
        taken = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(clip(taken), model.trainable_variables)

    return step


def train(
    model: Model, optimizer: Any, step: Step, in_function: bool = True, steps: int = STEPS
) -> list[np.ndarray]:
    model.build()
    optimizer.build(model.trainable_variables)

    def run(keys: Any, targets: Any, number: Any) -> None:
        step(model, optimizer, keys, targets, number)

    run = tf.autograph.experimental.do_not_convert(run)
    if in_function:
        run = tf.function(run)
    random = np.random.default_rng(3)
    for number in range(steps):
        keys = random.integers(0, KEYS, BATCH)
        targets = random.normal(size=(*BATCH, DIM)).astype(np.float32)
        run(tf.constant(keys), tf.constant(targets), tf.constant(number))
    return contents(model)


def check_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)
    assert np.abs(expected[0] - START).max() > 1e-4


WAYS = {
    "plain": plain,
    "two_calls": calls(2),
    "more_calls_than_coordinates": calls(tf_ops.ANCHOR_COORDINATES + 6),
    "every_second": every_second,
    "several_of_a_tape": several_of_a_tape,
}
CLIPS = {
    "clipnorm": {"clipnorm": 0.9},
    "global_clipnorm": {"global_clipnorm": 1.1},
    "clipvalue": {"clipvalue": 0.2},
}
IN_FUNCTION = pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])
# Rules by which a row without a gradient rests in a dense weight too.
RULES = {"sgd": (keras.optimizers.SGD, 0.05), "adagrad": (keras.optimizers.Adagrad, 0.1)}
OTHERS = {
    "alone": {},
    "accumulated": {"gradient_accumulation_steps": 3},
    "scaled": {"loss_scale_factor": 64.0},
}


@IN_FUNCTION
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("way", WAYS)
def test_what_an_optimizer_clips(way, clip, other, in_function):
    if (way, in_function) == ("more_calls_than_coordinates", False) and other != "alone":
        pytest.skip("eager steps of 70 calls are slow, and the function takes the same path")
    rule, rate = RULES["sgd" if other == "scaled" else "adagrad"]
    options = {**CLIPS[clip], **OTHERS[other]}
    found, expected = (
        train(Model(layer), rule(rate, **options), WAYS[way], in_function)
        for layer in (table_layer(), WeightOfRows())
    )
    check_equal(found, expected)
    # It does clip.
    without = train(Model(WeightOfRows()), rule(rate, **OTHERS[other]), WAYS[way])
    assert np.abs(without[0] - expected[0]).max() > TOLERANCE


@IN_FUNCTION
@pytest.mark.parametrize(
    "clip",
    [
        lambda taken: tf.clip_by_global_norm(taken, 1.3)[0],
        lambda taken: [tf.clip_by_norm(g, 0.7) for g in taken],
        lambda taken: [g / tf.linalg.global_norm(taken) for g in taken],
    ],
    ids=["global_norm", "norm", "normed"],
)
def test_what_is_clipped_by_hand(clip, in_function):
    found, expected = (
        train(Model(layer), keras.optimizers.Adagrad(0.1), by_hand(clip), in_function)
        for layer in (table_layer(), WeightOfRows())
    )
    check_equal(found, expected)


class OneRow(WeightOfRows):
    """All keys have the same row."""

    def call(self, keys: Any, training: Any = None) -> Any:
        return super().call(tf.zeros_like(keys))


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("other", ["alone", "accumulated"])
@pytest.mark.parametrize("own", [True, False], ids=["own_rows", "static_row"])
def test_rows_of_an_adaptive_layer(own, clip, other):
    options = {**CLIPS[clip], **OTHERS[other]}
    layer, weight = adaptive_layer(1 if own else 255), WeightOfRows() if own else OneRow()
    found, expected = (
        train(Model(each), keras.optimizers.SGD(0.05, **options), calls(2), steps=10)
        for each in (layer, weight)
    )
    if not own:
        expected[0] = np.broadcast_to(expected[0][0], (KEYS, DIM))
    check_equal(found, expected)


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["function", "eager"])
@pytest.mark.parametrize("clip", CLIPS)
def test_fit_clips_as_with_a_weight(clip, run_eagerly):
    random = np.random.default_rng(5)
    keys = random.integers(0, KEYS, (60, 2))
    targets = random.normal(size=(60, 2, DIM)).astype(np.float32)
    found = []
    for layer in (table_layer(), WeightOfRows()):
        model = Model(layer)
        optimizer = keras.optimizers.Adagrad(0.5, **CLIPS[clip])
        model.compile(optimizer, "mse", run_eagerly=run_eagerly)
        model.fit(keys, targets, batch_size=8, epochs=2, shuffle=False, verbose=0)
        found.append(contents(model))
    check_equal(*found)


def replicated(layer: Any) -> keras.Model:
    """Keras builds models under a strategy by their inputs."""
    model = Model(layer)
    keys = keras.Input((2,), dtype="int64")
    made = keras.Model(keys, model.dense(layer(keys)))
    made.layer, made.dense = layer, model.dense
    return made


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_replicas_clip_as_with_a_weight(clip):
    """Keras clips what each replica has, and sums it then."""
    random = np.random.default_rng(6)
    keys = random.integers(0, KEYS, (32, 2))
    targets = random.normal(size=(32, 2, DIM)).astype(np.float32)
    found = []
    for make in (table_layer, WeightOfRows):
        with keras_reference.mirrored().scope():
            model = replicated(make())
            model.compile(keras.optimizers.SGD(0.5, **{clip: 0.02}), "mse")
        model.fit(keys, targets, batch_size=8, epochs=2, shuffle=False, verbose=0)
        found.append(contents(model))
    check_equal(*found)


def test_a_value_cannot_be_clipped_for_each_replica():
    with keras_reference.mirrored().scope():
        model = replicated(table_layer())
        model.compile(keras.optimizers.SGD(0.5, clipvalue=0.1), "mse")
    with pytest.raises(ValueError, match="single replica.*Received: clipvalue=0.1"):
        model.fit(np.zeros((4, 2), np.int64), np.zeros((4, 2, DIM)), verbose=0)


@IN_FUNCTION
@pytest.mark.parametrize("clip", CLIPS)
def test_the_layers_own_optimizer_clips_its_rows_alone(clip, in_function):
    own = keras.optimizers.SGD(0.05, **CLIPS[clip])
    layer = table_layer(optimizer=own)
    found = train(Model(layer), keras.optimizers.SGD(0.02), calls(2), in_function)

    def two_optimizers(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = (loss_of(model, keys, targets) + loss_of(model, (keys + 1) % KEYS, targets)) / 2
        rows, kernel = tape.gradient(loss, model.trainable_variables)
        optimizer.rows.apply([rows], [model.layer.rows])
        optimizer.kernel.apply([kernel], [model.dense.kernel])

    class Two:
        rows = keras.optimizers.SGD(0.05, **CLIPS[clip])
        kernel = keras.optimizers.SGD(0.02)

        def build(self, variables: Any) -> None:
            self.rows.build(variables[:1])
            self.kernel.build(variables[1:])

    check_equal(found, train(Model(WeightOfRows()), Two(), two_optimizers, in_function))


def test_a_norm_of_rows_whose_values_are_clipped_is_refused():
    own = keras.optimizers.SGD(0.05, clipnorm=1.0)
    layer = table_layer(optimizer=own)
    with pytest.raises(ValueError, match="expected the layer's own optimizer to clip values too"):
        train(Model(layer), keras.optimizers.SGD(0.02, clipvalue=0.1), plain)


@IN_FUNCTION
@pytest.mark.parametrize(
    "change",
    [
        lambda g: tf.clip_by_value(g, -0.01, 0.01),
        lambda g: g + 0.5,
        lambda g: tf.cast(tf.cast(g, tf.float16), tf.float32),
        tf.sign,
    ],
    ids=["clip_by_value", "noise", "float16", "sign"],
)
def test_gradients_whose_elements_were_changed_are_refused(change, in_function):
    model = Model(table_layer())

    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = loss_of(model, keys, targets)
        taken = tape.gradient(loss, model.trainable_variables)
        optimizer.apply([change(g) for g in taken], model.trainable_variables)

    with pytest.raises(tf.errors.FailedPreconditionError, match="clipvalue|no optimizer was given"):
        train(model, keras.optimizers.SGD(0.02), step, in_function)
    np.testing.assert_array_equal(contents(model)[0], np.full((KEYS, DIM), START, np.float32))


@IN_FUNCTION
def test_a_value_is_not_clipped_by_hand_and_by_the_optimizer(in_function):
    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = loss_of(model, keys, targets)
        taken = tape.gradient(loss, model.trainable_variables)
        taken = [tf.clip_by_value(g, -0.01, 0.01) for g in taken]
        optimizer.apply(taken, model.trainable_variables)

    with pytest.raises(tf.errors.FailedPreconditionError, match="clipvalue"):
        train(Model(table_layer()), keras.optimizers.SGD(0.02, clipvalue=0.1), step, in_function)


@IN_FUNCTION
def test_the_norm_of_all_gradients_is_that_of_the_dense_model(in_function):
    norms: dict[str, list[float]] = {"table": [], "weight": []}
    for name, layer in {"table": table_layer(), "weight": WeightOfRows()}.items():

        def step(model, optimizer, keys, targets, number, name=name):
            with tf.GradientTape() as tape:
                losses = [loss_of(model, (keys + i) % KEYS, targets) for i in range(3)]
            taken = tape.gradient(losses, model.trainable_variables)
            optimizer.apply(taken, model.trainable_variables)
            # Also of gradients that were applied.
            norm = tf.linalg.global_norm(taken)
            tf.py_function(lambda norm: norms[name].append(float(norm)), [norm], [])

        train(Model(layer), keras.optimizers.SGD(0.01), step, in_function)
    assert len(norms["weight"]) == STEPS
    np.testing.assert_allclose(norms["table"], norms["weight"], rtol=1e-5)


# ---- gradients that wait

MANY = 2 * tf_ops.ANCHOR_COORDINATES


@IN_FUNCTION
@pytest.mark.parametrize("clip", [{"global_clipnorm": 1.1}, {"clipnorm": 0.9}, {}])
def test_norms_are_right_after_many_gradients_that_nobody_applied(clip, in_function):
    def after_many(model, optimizer, keys, targets, number):
        skipped = MANY if number_of_step[0] == 2 else 0
        number_of_step[0] += 1
        for i in range(skipped + 1):
            with tf.GradientTape() as tape:
                loss = loss_of(model, (keys + i) % KEYS, targets)
                loss += loss_of(model, keys, targets / 2)
            taken = tape.gradient(loss, model.trainable_variables)
            if not clip:
                taken, _ = tf.clip_by_global_norm(taken, 1.3)
            elif in_function and i < skipped:
                # What nobody needs would not be taken.
                tf.py_function(lambda *_: None, taken, [])
        optimizer.apply(taken, model.trainable_variables)

    found = []
    for layer in (table_layer(), WeightOfRows()):
        number_of_step = [0]
        rule = keras.optimizers.Adagrad(0.1, **clip)
        # A function is traced once.
        steps = STEPS if not in_function else 1
        number_of_step[0] = 2 if in_function else 0
        found.append(train(Model(layer), rule, after_many, in_function, steps))
    check_equal(*found)


def test_a_sum_of_many_whose_norm_is_not_known_is_refused():
    model = Model(table_layer())
    model.build()
    optimizer = keras.optimizers.SGD(0.1, clipnorm=0.5)
    variables = model.trainable_variables
    optimizer.build(variables)
    random = np.random.default_rng(8)
    taken = []
    for _ in range(MANY):
        with tf.GradientTape() as tape:
            vectors = model.layer(tf.range(KEYS), training=True)
        upstream = tf.constant(random.normal(1.0, 1.0, (KEYS, DIM)), tf.float32)
        taken.append(tape.gradient(vectors, model.layer.trainable_variables, upstream)[0])
    before = model.layer.table.lookup(np.arange(KEYS))
    # These two did not wait among the last ones of each other.
    with pytest.raises(tf.errors.FailedPreconditionError, match="whose norm is known"):
        optimizer.apply([taken[3] + taken[-1]], model.layer.trainable_variables)
    np.testing.assert_array_equal(model.layer.table.lookup(np.arange(KEYS)), before)
    optimizer.apply([taken[-2] + taken[-1]], model.layer.trainable_variables)
    assert np.abs(model.layer.table.lookup(np.arange(KEYS)) - before).max() > 0.01


@IN_FUNCTION
@pytest.mark.parametrize("factor", [1e-17, 1e-10, 1e15])
def test_gradients_that_were_multiplied_by_very_much_or_little(factor, in_function):
    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = loss_of(model, keys, targets)
        taken = tape.gradient(loss, model.trainable_variables)
        optimizer.apply([factor * g for g in taken], model.trainable_variables)

    found, expected = (
        train(Model(layer), keras.optimizers.SGD(0.05 / factor), step, in_function)
        for layer in (table_layer(), WeightOfRows())
    )
    check_equal(found, expected)


# ---- loss scaling


def overflowing(at: list[int]) -> Step:
    def step(model, optimizer, keys, targets, number):
        targets = tf.where(tf.reduce_any(number == tf.constant(at)), np.inf, targets)
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(loss_of(model, keys, targets))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step


@IN_FUNCTION
@pytest.mark.parametrize("clip", [None, *CLIPS])
@pytest.mark.parametrize("other", ["alone", "accumulated"])
def test_steps_that_overflow_are_skipped(clip, other, in_function):
    inner = {**CLIPS.get(clip, {}), **OTHERS[other]}
    found, expected = (
        train(
            Model(layer),
            keras.optimizers.LossScaleOptimizer(
                keras.optimizers.Adagrad(0.1, **inner), initial_scale=256, dynamic_growth_steps=2
            ),
            overflowing([2, 5]),
            in_function,
            10,
        )
        for layer in (table_layer(), WeightOfRows())
    )
    assert np.isfinite(found[0]).all()
    check_equal(found, expected)


def test_only_the_rows_overflow():
    """The gradients of all dense weights are finite, and the step is skipped all the same."""
    layer = table_layer()
    layer.build((None,))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(layer.trainable_variables)
    before = layer.table.lookup([1, 2])
    for wrong in (np.inf, -np.inf, np.nan):
        with tf.GradientTape() as tape:
            vectors = layer(tf.constant([1, 2]), training=True)
        upstream = tf.constant([[1.0] * DIM, [1.0, wrong, 1.0, 1.0]])
        taken = tape.gradient(vectors, layer.trainable_variables, upstream)
        scale = float(optimizer.dynamic_scale)
        optimizer.apply(taken, layer.trainable_variables)
        assert float(optimizer.dynamic_scale) == scale / 2
    np.testing.assert_array_equal(layer.table.lookup([1, 2]), before)


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["function", "eager"])
def test_mixed_float16_trains_as_a_dense_weight_does(run_eagerly):
    random = np.random.default_rng(5)
    keys = random.integers(0, KEYS, (64, 2))
    # Some steps overflow at the first scales.
    targets = (100 * random.normal(size=(64, 2, DIM))).astype(np.float32)
    found = []
    policy = keras.mixed_precision.dtype_policy()
    try:
        keras.mixed_precision.set_dtype_policy("mixed_float16")
        for make in (table_layer, WeightOfRows):
            model = Model(make())
            model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=run_eagerly)
            assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
            model.fit(keys, targets, batch_size=8, epochs=3, shuffle=False, verbose=0)
            assert float(model.optimizer.dynamic_scale) < 2.0**15
            found.append(contents(model))
    finally:
        keras.mixed_precision.set_dtype_policy(policy)
    assert model(keys[:1]).dtype == tf.float16
    # Sums of equal keys are in float32 with the table, and in float16 without.
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=0, atol=2e-3)
    assert np.abs(found[1][0] - START).max() > 0.1


# ---- other ways to change a variable


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


def test_an_anchor_may_be_set_to_zeros():
    model = Model(table_layer())
    train(model, keras.optimizers.SGD(0.1), plain)
    with sok_embed.dense_only():
        model.set_weights(model.get_weights())
    model.layer.anchor.assign(np.zeros(model.layer.anchor.shape))


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


# ---- who reads a norm


class FollowsNorm(keras.optimizers.SGD):
    """Keeps the norm of what it was given."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.norm = self.add_variable((), name="norm")

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        self.norm.assign(tf.linalg.global_norm(grads))
        super().apply([g / (1.0 + self.norm) for g in grads], trainable_variables)


@IN_FUNCTION
@pytest.mark.parametrize("by", ["learning_rate", "own_variable", "numpy", "variable"])
def test_whoever_reads_a_norm_gets_that_of_the_rows_too(by, in_function):
    read: dict[str, list[float]] = {}
    found = []
    for name, layer in {"table": table_layer(), "weight": WeightOfRows()}.items():
        kept = tf.Variable(0.0)
        norms = read.setdefault(name, [])

        def step(model, optimizer, keys, targets, number, kept=kept, norms=norms):
            with tf.GradientTape() as tape:
                loss = loss_of(model, keys, targets)
            taken = tape.gradient(loss, model.trainable_variables)
            norm = tf.linalg.global_norm(taken)
            if by == "learning_rate":
                optimizer.learning_rate.assign(0.1 / norm)
            elif by == "variable":
                kept.assign_add(norm)
            elif by == "numpy":
                tf.numpy_function(lambda n: norms.append(float(n)) or n, [norm], tf.float32)
            optimizer.apply(taken, model.trainable_variables)

        optimizer = FollowsNorm(0.02) if by == "own_variable" else keras.optimizers.SGD(0.02)
        found.append(train(Model(layer), optimizer, step, in_function))
        norms.append(float(kept))
        norms.append(float(optimizer.norm) if by == "own_variable" else 0.0)
    check_equal(*found)
    np.testing.assert_allclose(read["table"], read["weight"], rtol=1e-5)


@IN_FUNCTION
def test_a_check_of_numbers_sees_those_of_rows(in_function):
    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            vectors = model.layer(keys, training=True)
        taken = tape.gradient(vectors, [model.layer.anchor.value], vectors * np.nan)
        tf.debugging.check_numerics(taken[0], "of the rows")
        optimizer.apply(taken, [model.layer.anchor])

    with pytest.raises(tf.errors.InvalidArgumentError, match="of the rows"):
        train(Model(table_layer()), keras.optimizers.SGD(0.02), step, in_function)
