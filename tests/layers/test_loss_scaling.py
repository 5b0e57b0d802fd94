"""Scaled losses: the steps of rows that overflow are skipped, as those of a dense weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_steps import CLIPS, IN_FUNCTION, check_equal, overflowing, train
from dense_twin import DIM, KEYS, START, Model, WeightOfRows, contents, table_layer


@pytest.mark.cover(2)
@IN_FUNCTION
@pytest.mark.parametrize("clip", [None, *CLIPS])
@pytest.mark.parametrize("accumulated", [False, True], ids=["alone", "accumulated"])
def test_steps_that_overflow_are_skipped(clip, accumulated, in_function):
    inner = {**CLIPS.get(clip, {}), **({"gradient_accumulation_steps": 3} if accumulated else {})}
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


@pytest.mark.cover(1)
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
