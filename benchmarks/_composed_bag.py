"""The mathematics of `sok_embed.HashedEmbeddingBag`, composed of TensorFlow's own ops.

Mode sum, hash "mixed", seed 0, no sign: the rival that somebody writes who has no op for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

# 2**64 divided by the golden ratio, and the multipliers of SplitMix64's finalizer: Steele, Lea and
# Flood, "Fast splittable pseudorandom number generators", 2014.
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = 2**64 - 1

Bag = Callable[[Any, tf.Tensor], tf.Tensor]


def composed_bag(
    size: int, dim: int, block_size: int, gradient: Literal["gather", "bincount"]
) -> Bag:
    """Returns a function of a weight `[size]` and ids int64 `[bags, n]`, to sums `[bags, dim]`.

    Args:
        size: Slots of the weight, below 2**31: what then fits in int32 is faster.
        dim: The length of a vector.
        block_size: Neighbouring dims that share a hash; a divisor of `dim`.
        gradient: `"gather"` leaves it to TensorFlow, which makes one slice for each element read.
            `"bincount"` sums them in `DenseBincount`, of TensorFlow's ops the fastest at that.
    """

    def by_gather(weight: Any, ids: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.gather(weight, slots(ids, size, dim, block_size)), 1)

    @tf.custom_gradient
    def by_bincount(weight: tf.Tensor, ids: tf.Tensor) -> Any:
        places = slots(ids, size, dim, block_size)

        def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
            spread = tf.broadcast_to(upstream[:, None, :], tf.shape(places))
            summed = tf.raw_ops.DenseBincount(
                input=tf.reshape(places, [-1]),
                size=tf.constant(size, tf.int32),
                weights=tf.reshape(spread, [-1]),
            )
            return summed, None

        return tf.reduce_sum(tf.gather(weight, places), 1), backward

    if gradient == "gather":
        return by_gather
    return lambda weight, ids: by_bincount(tf.convert_to_tensor(weight), ids)


def slots(ids: tf.Tensor, size: int, dim: int, block_size: int) -> tf.Tensor:
    """Returns the slot of each element, int32 `[bags, n, dim]`."""
    blocks = dim // block_size
    salts = _uint64([(block + 1) * _GOLDEN & _MASK for block in range(blocks)])
    keys = _mix64(tf.bitcast(ids, tf.uint64) ^ _mix64(_uint64(_GOLDEN)))
    base = tf.cast(_scaled(_mix64(keys[..., None] + salts), size), tf.int32)
    if block_size == 1:
        return base
    places = base[..., None] + tf.range(block_size)
    places = tf.where(places >= size, places - size, places)
    return tf.reshape(places, [ids.shape[0], ids.shape[1], dim])


def _mix64(x: tf.Tensor) -> tf.Tensor:
    x = (x ^ tf.bitwise.right_shift(x, _uint64(30))) * _uint64(_FACTORS[0])
    x = (x ^ tf.bitwise.right_shift(x, _uint64(27))) * _uint64(_FACTORS[1])
    return x ^ tf.bitwise.right_shift(x, _uint64(31))


def _scaled(x: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `floor(x * size / 2**64)` for a size below 2**32, by halves."""
    low = tf.bitwise.bitwise_and(x, _uint64(2**32 - 1)) * _uint64(size)
    high = tf.bitwise.right_shift(x, _uint64(32)) * _uint64(size)
    return tf.bitwise.right_shift(high + tf.bitwise.right_shift(low, _uint64(32)), _uint64(32))


def _uint64(value: Any) -> tf.Tensor:
    return tf.constant(np.array(value, np.uint64))
