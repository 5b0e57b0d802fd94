"""Rows get what the optimizer is given, as a dense layer does, whatever becomes of gradients."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_steps import IN_FUNCTION, STEPS, train
from dense_twin import DIM, KEYS

from sok_embed import AdaptiveEmbedding, DynamicEmbedding

# Both sum in float32, in different orders.
TOLERANCE = 1e-6


def dense_layer() -> keras.layers.Embedding:
    return keras.layers.Embedding(KEYS, DIM, embeddings_initializer="zeros")


def rows_of(layer: Any) -> np.ndarray:
    if isinstance(layer, keras.layers.Embedding):
        return np.asarray(layer.embeddings)
    return layer.table.lookup(np.arange(KEYS))


def loss_of(layer: Any, keys: Any, targets: Any) -> Any:
    return tf.reduce_sum((layer(keys, training=True) - targets) ** 2)


def gradients(tape: tf.GradientTape, loss: Any, layer: Any) -> list[Any]:
    """Sums gradients of a dense layer by key, as Keras would apply them to a dense weight."""
    return [tf.convert_to_tensor(g) for g in tape.gradient(loss, layer.trainable_variables)]


def apply_if(wanted: Any, layer: Any, optimizer: Any, taken: list[Any]) -> None:
    def apply() -> int:
        optimizer.apply(taken, layer.trainable_variables)
        return 0

    tf.cond(wanted, apply, lambda: 0)


def apply_every_second(layer, optimizer, keys, targets, number):
    with tf.GradientTape() as tape:
        loss = loss_of(layer, keys, targets)
    taken = gradients(tape, loss, layer)

    apply_if(number % 2 == 0, layer, optimizer, taken)


def leave_out_what_is_no_number(layer, optimizer, keys, targets, number):
    targets = tf.where(number == 2, np.nan, targets)
    with tf.GradientTape() as tape:
        loss = loss_of(layer, keys, targets)
    taken = gradients(tape, loss, layer)

    apply_if(tf.math.is_finite(loss), layer, optimizer, taken)


def scaled_by(factor):
    def step(layer, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = loss_of(layer, keys, targets)
        taken = [factor * g for g in gradients(tape, loss, layer)]
        optimizer.apply(taken, layer.trainable_variables)

    return step


def two_gradients_of_a_tape(layer, optimizer, keys, targets, number):
    with tf.GradientTape(persistent=True) as tape:
        vectors = layer(keys, training=True)
        first = tf.reduce_sum((vectors - targets) ** 2)
        second = tf.reduce_sum((vectors + 2 * targets) ** 2)
    taken = [gradients(tape, loss, layer) for loss in (first, second)]
    for each in taken:
        optimizer.apply(each, layer.trainable_variables)


def two_tapes_last_first(layer, optimizer, keys, targets, number):
    with tf.GradientTape() as one, tf.GradientTape() as other:
        vectors = layer(keys, training=True)
        first = tf.reduce_sum((vectors - targets) ** 2)
        second = tf.reduce_sum((vectors + 2 * targets) ** 2)
    taken = [gradients(one, first, layer), gradients(other, second, layer)]
    for each in reversed(taken):
        optimizer.apply(each, layer.trainable_variables)


def sum_of_equal_gradients(layer, optimizer, keys, targets, number):
    with tf.GradientTape(persistent=True) as tape:
        vectors = layer(keys, training=True)
        first, second = tf.reduce_sum(vectors), tf.reduce_sum(vectors)
    taken = [gradients(tape, loss, layer) for loss in (first, second)]
    optimizer.apply([a + 0.25 * b for a, b in zip(*taken, strict=True)], layer.trainable_variables)


def calls(count):
    def step(layer, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            losses = [loss_of(layer, (keys + i) % KEYS, targets) for i in range(count)]
            loss = tf.add_n(losses) / count
        optimizer.apply(gradients(tape, loss, layer), layer.trainable_variables)

    return step


def loop(layer, optimizer, keys, targets, number):
    with tf.GradientTape() as tape:
        loss = tf.constant(0.0)
        for _ in range(3):
            loss += loss_of(layer, keys, targets)
        keys = tf.reshape(keys, [-1])
        vectors = tf.map_fn(lambda key: layer(key[None], training=True)[0], keys, tf.float32)
        loss += tf.reduce_sum(vectors)
    optimizer.apply(gradients(tape, loss, layer), layer.trainable_variables)


def scaled_loss(layer, optimizer, keys, targets, number):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(layer, keys, targets))
    optimizer.apply(gradients(tape, loss, layer), layer.trainable_variables)


def scaled_loss_every_second(layer, optimizer, keys, targets, number):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(layer, keys, targets))
    taken = gradients(tape, loss, layer)

    apply_if(number % 2 == 0, layer, optimizer, taken)


WAYS = {
    "every_second": apply_every_second,
    "guarded_against_nan": leave_out_what_is_no_number,
    "halved": scaled_by(0.5),
    "negated": scaled_by(-0.01),
    "by_a_third": scaled_by(1 / 3),
    "two_of_a_tape": two_gradients_of_a_tape,
    "two_tapes": two_tapes_last_first,
    "equal_ones": sum_of_equal_gradients,
    "two_calls": calls(2),
    "more_calls_than_places": calls(70),
    "loop": loop,
}


# By these rules a row without a gradient rests in the dense layer too.
RULES = {
    "sgd": lambda: keras.optimizers.SGD(0.02),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}


@pytest.mark.cover("values")
@IN_FUNCTION
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", WAYS)
def test_rows_take_the_steps_of_a_dense_layer(way, rule, in_function):
    found = [
        train(layer, RULES[rule](), WAYS[way], in_function, STEPS, rows_of)
        for layer in (dense_layer(), DynamicEmbedding(DIM, "zeros"))
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=TOLERANCE)
    assert np.abs(found[0]).max() > 1e-3
    assert np.isfinite(found[0]).all()


@pytest.mark.cover("values")
@IN_FUNCTION
@pytest.mark.parametrize("way", [scaled_loss, scaled_loss_every_second])
@pytest.mark.parametrize(
    "options", [{"loss_scale_factor": 1024.0}, {"gradient_accumulation_steps": 3}], ids=str
)
def test_scaled_and_accumulated_steps_are_those_of_a_dense_layer(options, way, in_function):
    found = [
        train(layer, keras.optimizers.SGD(0.02, **options), way, in_function, 12, rows_of)
        for layer in (dense_layer(), DynamicEmbedding(DIM, "zeros"))
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=TOLERANCE)
    assert np.abs(found[0]).max() > 1e-3


@IN_FUNCTION
def test_two_optimizers_each_take_their_own(in_function):
    def step(layer, optimizers, keys, targets, number):
        with tf.GradientTape(persistent=True) as tape:
            vectors = layer(keys, training=True)
            first = tf.reduce_sum((vectors - targets) ** 2)
            second = tf.reduce_sum((vectors + 2 * targets) ** 2)
        taken = [gradients(tape, loss, layer) for loss in (first, second)]
        for optimizer, each in zip(optimizers, taken, strict=True):
            optimizer.apply(each, layer.trainable_variables)

    class Two(list):
        def build(self, variables):
            for optimizer in self:
                optimizer.build(variables)

    found = []
    for layer in (dense_layer(), DynamicEmbedding(DIM, "zeros")):
        two = Two([keras.optimizers.SGD(0.02), keras.optimizers.SGD(0.005)])
        found.append(train(layer, two, step, in_function, STEPS, rows_of))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=TOLERANCE)


@pytest.mark.cover("values")
@IN_FUNCTION
@pytest.mark.parametrize("way", ["every_second", "halved", "two_of_a_tape", "two_calls"])
def test_static_rows_of_an_adaptive_embedding_take_them_too(way, in_function):
    found = []
    for layer in (
        DynamicEmbedding(DIM, "zeros"),
        AdaptiveEmbedding(DIM, 1, promote_after=1, embeddings_initializer="zeros"),
    ):
        found.append(
            train(layer, keras.optimizers.SGD(0.02), WAYS[way], in_function, STEPS, rows_of)
        )
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=TOLERANCE)


def take(layer: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1, 2]), training=True))
    return tape.gradient(loss, layer.trainable_variables)


@pytest.fixture
def layer():
    layer = DynamicEmbedding(DIM, "zeros")
    layer.build((None,))
    return layer


def test_gradients_that_were_applied_are_refused(layer):
    optimizer = keras.optimizers.SGD(1.0)
    taken = take(layer)
    optimizer.apply(taken, layer.trainable_variables)
    before = rows_of(layer)
    with pytest.raises(tf.errors.FailedPreconditionError, match="no optimizer was given before"):
        optimizer.apply(taken, layer.trainable_variables)
    np.testing.assert_array_equal(rows_of(layer), before)


def test_gradients_that_nobody_applies_cost_memory_for_some_steps(layer):
    optimizer = keras.optimizers.SGD(1.0)
    late = take(layer)
    for _ in range(15):
        optimizer.apply(take(layer), layer.trainable_variables)
        assert layer.table.stats()["pending_gradients"] == 2
    optimizer.apply(take(layer), layer.trainable_variables)
    assert layer.table.stats()["pending_gradients"] == 0
    with pytest.raises(tf.errors.FailedPreconditionError, match="at most 16 steps ago"):
        optimizer.apply(late, layer.trainable_variables)


def test_gradients_of_a_place_that_is_used_again_are_told_apart(layer):
    optimizer = keras.optimizers.SGD(1.0)
    taken = [take(layer) for _ in range(72)]  # 8 of these share a place with an earlier one
    for i, each in enumerate(taken[64:]):
        optimizer.apply(each, layer.trainable_variables)
        np.testing.assert_array_equal(rows_of(layer)[1], [-(i + 1.0)] * DIM)


def test_a_factor_of_nan_reaches_the_rows(layer):
    keras.optimizers.SGD(1.0).apply([np.nan * g for g in take(layer)], layer.trainable_variables)
    found = rows_of(layer)
    assert np.isnan(found[[1, 2]]).all()
    assert not np.isnan(found[3:]).any()
