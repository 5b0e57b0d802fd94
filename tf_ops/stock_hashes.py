"""The hashes of the core, computed with TensorFlow's own ops, bit for bit.

All of it is arithmetic modulo 2**64, on uint64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_LOW = 0xFFFFFFFF
# The function AdaptiveBucket in the core mixes this number into keys.
_BUCKET_SALT = 0x2545F4914F6CDD1D


def u64(numbers: int | Sequence[int]) -> tf.Tensor:
    """Returns a number, or a list of numbers, as uint64."""
    # In a graph TensorFlow would convert a list of such numbers to floats.
    return tf.constant(np.array(numbers, np.uint64))


def mix64(x: tf.Tensor) -> tf.Tensor:
    """Returns `Mix64` of the core, uint64 of the shape of `x`.

    Args:
        x: uint64.
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = tf.bitwise.bitwise_xor(x, _right(x, shift)) * u64(factor)
    return tf.bitwise.bitwise_xor(x, _right(x, 31))


def scaled(x: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `floor(x * size / 2**64)`, which is in `[0, size)`, as int64.

    Args:
        x: uint64.
        size: A number below 2**63.
    """
    high, low = _right(x, 32), tf.bitwise.bitwise_and(x, u64(_LOW))
    size_high, size_low = u64(size >> 32), u64(size & _LOW)
    middle = high * size_low + _right(low * size_low, 32)
    if size < 2**32:
        return tf.cast(_right(middle, 32), tf.int64)
    other = low * size_high + tf.bitwise.bitwise_and(middle, u64(_LOW))
    return tf.cast(
        high * size_high + _right(middle, 32) + _right(other, 32),
        tf.int64,
    )


def adaptive_buckets(keys: tf.Tensor, num_buckets: int) -> tf.Tensor:
    """Returns the static row that each key shares, as the op does.

    Args:
        keys: int64.
        num_buckets: The number of buckets.
    """
    salted = tf.bitwise.bitwise_xor(tf.cast(keys, tf.uint64), u64(_BUCKET_SALT))
    return scaled(mix64(salted), num_buckets)


def high_bits(x: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns the highest bits of numbers, int64.

    Args:
        x: uint64.
        bits: The number of bits, below 64.
    """
    # A shift by 64 is not defined.
    return tf.cast(_right(_right(x, 1), 63 - bits), tf.int64)


def _right(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, u64(bits))
