"""Every schedule against Keras, and the two that Keras dropped against tf.compat.v1.train."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import kv

STEPS = [0, 1, 3, 9, 10, 11, 25, 99, 100, 101, 1000, 123456]
RATE = 0.05
KERAS = keras.optimizers.schedules


def natural(step, staircase):
    return tf.compat.v1.train.natural_exp_decay(RATE, step, 10, 0.5, staircase)()


def linear_cosine(step, *more):
    return tf.compat.v1.train.linear_cosine_decay(RATE, step, 100, *more)()


CASES = {
    "exponential": (
        kv.Schedule("exponential_decay", decay_steps=10, decay_rate=0.5),
        KERAS.ExponentialDecay(RATE, 10, 0.5),
    ),
    "exponential, staircase": (
        kv.Schedule("exponential_decay", decay_steps=10, decay_rate=0.5, staircase=True),
        KERAS.ExponentialDecay(RATE, 10, 0.5, staircase=True),
    ),
    "inverse time": (
        kv.Schedule("inverse_time_decay", decay_steps=10, decay_rate=0.5),
        KERAS.InverseTimeDecay(RATE, 10, 0.5),
    ),
    "inverse time, staircase": (
        kv.Schedule("inverse_time_decay", decay_steps=10, decay_rate=0.5, staircase=True),
        KERAS.InverseTimeDecay(RATE, 10, 0.5, staircase=True),
    ),
    "polynomial": (
        kv.Schedule("polynomial_decay", decay_steps=100),
        KERAS.PolynomialDecay(RATE, 100),
    ),
    "polynomial, others": (
        kv.Schedule("polynomial_decay", decay_steps=100, end_learning_rate=0.01, power=2.5),
        KERAS.PolynomialDecay(RATE, 100, 0.01, 2.5),
    ),
    "polynomial, cycle": (
        kv.Schedule("polynomial_decay", decay_steps=10, power=2, cycle=True),
        KERAS.PolynomialDecay(RATE, 10, power=2, cycle=True),
    ),
    "cosine": (
        kv.Schedule("cosine_decay", decay_steps=100, alpha=0.1),
        KERAS.CosineDecay(RATE, 100, 0.1),
    ),
    "cosine, warm-up": (
        kv.Schedule("cosine_decay", decay_steps=100, warmup_target=0.5, warmup_steps=20),
        KERAS.CosineDecay(RATE, 100, warmup_target=0.5, warmup_steps=20),
    ),
    "natural exponential": (
        kv.Schedule("natural_exponential_decay", decay_steps=10, decay_rate=0.5),
        lambda step: natural(step, False),
    ),
    "natural exponential, staircase": (
        kv.Schedule("natural_exponential_decay", decay_steps=10, decay_rate=0.5, staircase=True),
        lambda step: natural(step, True),
    ),
    "linear cosine": (
        kv.Schedule("linear_cosine_decay", decay_steps=100),
        linear_cosine,
    ),
    "linear cosine, others": (
        kv.Schedule(
            "linear_cosine_decay", {"decay_steps": 100}, num_periods=2, alpha=0.2, beta=0.1
        ),
        lambda step: linear_cosine(step, 2, 0.2, 0.1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_has_the_rates_of_keras(case):
    schedule, expected = CASES[case]
    for step in STEPS:
        # Keras computes in float32, where the whole periods of a staircase are exact below 2**24.
        np.testing.assert_allclose(
            schedule(RATE, step), float(expected(step)), rtol=1e-5, atol=1e-8, err_msg=str(step)
        )


def test_a_schedule_shows_itself():
    schedule = kv.Schedule("cosine_decay", decay_steps=100)
    assert repr(schedule) == "Schedule('cosine_decay', decay_steps=100.0)"
    assert "schedule=Schedule('cosine_decay'" in repr(kv.Optimizer("sgd", schedule))
