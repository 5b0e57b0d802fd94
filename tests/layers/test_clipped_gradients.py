"""Clipped gradients: rows and dense weights follow a model whose table is a weight."""

from typing import Any

import keras
import keras_reference
import numpy as np
import pytest
import tensorflow as tf
from dense_steps import CLIPS, IN_FUNCTION, STEPS, TOLERANCE, check_equal, plain, train
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
from tiers import long

from sok_embed import tf_ops


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


WAYS = {
    "plain": plain,
    "two_calls": calls(2),
    "more_calls_than_coordinates": calls(tf_ops.ANCHOR_COORDINATES + 6),
    "every_second": every_second,
    "several_of_a_tape": several_of_a_tape,
}
# By these rules a row without a gradient rests in a dense weight too.
RULES = {"sgd": (keras.optimizers.SGD, 0.05), "adagrad": (keras.optimizers.Adagrad, 0.1)}
OTHERS = {
    "alone": {},
    "accumulated": {"gradient_accumulation_steps": 3},
    "scaled": {"loss_scale_factor": 64.0},
}


@pytest.mark.cover("values")
@IN_FUNCTION
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("way", [long(way) if way.startswith("more") else way for way in WAYS])
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


@pytest.mark.cover(1)
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


@pytest.mark.cover(1)
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


@pytest.mark.cover(1)
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


@pytest.mark.long
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


@pytest.mark.cover(1)
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
            # This holds also for gradients that were applied.
            norm = tf.linalg.global_norm(taken)
            tf.py_function(lambda norm: norms[name].append(float(norm)), [norm], [])

        train(Model(layer), keras.optimizers.SGD(0.01), step, in_function)
    assert len(norms["weight"]) == STEPS
    np.testing.assert_allclose(norms["table"], norms["weight"], rtol=1e-5)
