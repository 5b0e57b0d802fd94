"""Norms of rows, whatever other gradients wait and by whatever they were multiplied."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_steps import IN_FUNCTION, STEPS, check_equal, train
from dense_twin import DIM, KEYS, Model, WeightOfRows, loss_of, table_layer
from tiers import long

from sok_embed import tf_ops

MANY = 2 * tf_ops.ANCHOR_COORDINATES


@pytest.mark.parametrize("in_function", [False, long(True)], ids=["eager", "function"])
@pytest.mark.parametrize("clip", [{"global_clipnorm": 1.1}, long({"clipnorm": 0.9}), long({})])
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
                # Gradients that nobody needs would not be taken.
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
