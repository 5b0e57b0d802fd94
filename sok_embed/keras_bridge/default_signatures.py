"""Checks float ids of the signatures that Keras makes up as it exports subclassed models.

Keras records the shapes with which a subclassed model was called, but not the dtypes. From the
shapes it makes `serving_default` for every model in a SavedModel, even if the user gives
signatures, and the endpoint of `model.export(path)` without `input_signature`. These signatures
take the compute dtype of the model, even for ids. Refusing their placeholders would refuse every
export, so they are cast, and ids that are served through them are checked, since floats round ids.
"""

from __future__ import annotations

import tensorflow as tf

# Maps float types to the bound below which they hold each integer, so that none rounds to another.
EXACT_BELOW = {tf.bfloat16: 2**8, tf.float16: 2**11, tf.float32: 2**24, tf.float64: 2**53}


def check_exact(floats: tf.Tensor) -> tf.Tensor:
    """Checks that floats are whole and small enough to be ids; others fail when they are served.

    Raises:
        tf.errors.InvalidArgumentError: When the graph runs, with what to do.
    """
    limit = EXACT_BELOW[floats.dtype]
    # Both comparisons are false for a NaN.
    exact = tf.logical_and(tf.abs(floats) < limit, tf.equal(floats, tf.round(floats)))
    expected = (
        f"Expected ids of which {floats.dtype.name} has each, whole numbers within ±{limit}. "
        "Received:"
    )
    advice = (
        "Keras made the signature from shapes; export the model with a signature of integers: "
        "model.export(path, input_signature=[tf.TensorSpec(shape, tf.int64)])."
    )
    data = [expected, floats, advice]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(exact), data)]):
        return tf.identity(floats)


def refuse_when_served(message: str) -> None:
    """Adds an op to the graph that fails with the message when it runs."""
    tf.debugging.Assert(tf.constant(False), [message])
