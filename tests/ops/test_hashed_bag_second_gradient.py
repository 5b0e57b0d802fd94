"""Gradients of gradients of bags, and the dtype of what they are functions of."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops

SIZE, IDS = 30, [[1, 2, 1], [4, 5, 9]]
SHAPE = {"num_embeddings": 10, "embedding_dim": 4}
RANDOM = np.random.default_rng(0)
WEIGHT, FACTORS = RANDOM.normal(size=SIZE), RANDOM.normal(size=(2, 3))


def composed(weight, factors, mode):
    """Reduces the same bags by ops whose gradients have gradients."""
    slots, _ = tf_ops.hash_positions(np.ravel(IDS), SIZE, embedding_dim=4)
    rows = tf.reshape(tf.gather(tf.convert_to_tensor(weight), slots), [2, 3, 4])
    if factors is not None:
        rows *= factors[:, :, None]
    return tf.reduce_sum(rows, 1) if mode == "sum" else tf.reduce_mean(rows, 1)


def penalty_gradients(bags, scaled):
    """Returns gradients of the squared norm of a gradient, as a gradient penalty has it."""
    weight = tf.Variable(WEIGHT)
    sources = [weight, tf.Variable(FACTORS)] if scaled else [weight]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(bags(*sources) ** 3)
        gradient = tf.convert_to_tensor(inner.gradient(loss, weight))
        penalty = tf.reduce_sum(gradient**2)
    return [tf.convert_to_tensor(g).numpy() for g in outer.gradient(penalty, sources)]


@pytest.mark.parametrize("gradient", ["dense", "sparse"])
@pytest.mark.parametrize(("mode", "scaled"), [("sum", False), ("sum", True), ("mean", False)])
def test_second_derivatives_equal_those_of_a_gather(mode, scaled, gradient):
    def ours(weight, factors=None):
        return tf_ops.hashed_bag(weight, IDS, None, factors, mode=mode, gradient=gradient, **SHAPE)

    expected = penalty_gradients(lambda w, f=None: composed(w, f, mode), scaled)
    for got, wanted in zip(penalty_gradients(ours, scaled), expected, strict=True):
        # In float64 only the order of sums differs.
        np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-11)


def test_a_second_derivative_of_max_says_what_there_is():
    with pytest.raises(ValueError, match="sum or mean for a second derivative"):
        penalty_gradients(lambda w: tf_ops.hashed_bag(w, IDS, mode="max", **SHAPE), False)


@pytest.mark.parametrize(
    "factors", [np.float64, np.float32, np.float16, tf.bfloat16.as_numpy_dtype]
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_factors_do_not_decide_the_dtype_of_the_output(dtype, factors):
    outputs = tf_ops.hashed_bag(
        tf.cast(WEIGHT, tf.float32), IDS, None, np.ones((2, 3), factors), dtype=dtype, **SHAPE
    )
    assert outputs.dtype == dtype


def test_weights_of_every_kind_give_the_same():
    array = WEIGHT.astype(np.float32)
    expected = tf_ops.hashed_bag(array, IDS, **SHAPE)
    for weight in (tf.constant(array), tf.Variable(array), keras.Variable(array)):
        np.testing.assert_array_equal(tf_ops.hashed_bag(weight, IDS, **SHAPE), expected)
