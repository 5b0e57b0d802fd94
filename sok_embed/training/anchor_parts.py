"""Anchors of tables whose gradients a strategy of `tf.distribute` sums over workers.

The gradient of an anchor names the deposits of this process, and a sum of the gradients of several
workers would name none. So the anchor of such a table has a part for each worker, one after the
other. A worker's deposits are named in its own part, and the sum over workers has all parts side by
side.
"""

from __future__ import annotations

import tensorflow as tf

from sok_embed import tf_ops

# Sums of the same float32 numbers in different orders differ relatively by less than this.
_TOLERANCE = 1e-5


def parts_of(anchor: tf.Tensor | tf.Variable) -> int:
    """Returns how many workers have a part of an anchor, or of its gradient."""
    elements = tf.TensorShape(anchor.shape).num_elements()
    return 1 if elements is None else max(1, elements // tf_ops.ANCHOR_SIZE)


def own_part(anchor: tf.Tensor, parts: int, worker: int) -> tf.Tensor:
    """Returns the part of a worker, float32 `[ANCHOR_SIZE]`. Differentiable.

    Args:
        anchor: float32 `[parts * ANCHOR_SIZE]`, an anchor or its gradient. An anchor of a single
            part may have another shape, and is returned as it is.
        parts: The number of workers that have a part.
        worker: The rank of the worker.
    """
    if parts == 1:
        return anchor
    part = anchor[worker * tf_ops.ANCHOR_SIZE : (worker + 1) * tf_ops.ANCHOR_SIZE]
    part.set_shape([tf_ops.ANCHOR_SIZE])
    return part


def summed_alike(gradient: tf.Tensor, parts: int) -> tf.Tensor:
    """Returns whether a sum has the gradients of all workers, each with the same factor.

    A call of a layer is collective, so all workers have made as many deposits. Their marks depend
    on the norms of their own gradients, but differ only by powers of `2**ANCHOR_MARK_STEP`. Without
    these powers the marks of all workers have the same sum.

    Args:
        gradient: float32 `[parts * ANCHOR_SIZE]`, of an anchor.
        parts: The number of workers that have one.

    Returns:
        A bool scalar. Numbers that are not finite count as alike: the commit checks them.
    """
    places = (tf_ops.ANCHOR_SIZE - tf_ops.ANCHOR_COORDINATES) // 2
    marks = tf.reshape(gradient, [parts, tf_ops.ANCHOR_SIZE])[:, :places]
    marks = tf.cast(marks, tf.float64)
    sizes = tf.abs(marks) / tf.reduce_max(tf.abs(marks))
    present = sizes > 0
    digits = tf.math.log(tf.where(present, sizes, 1.0)) / tf.math.log(tf.constant(2.0, tf.float64))
    steps = tf.round(digits / tf_ops.ANCHOR_MARK_STEP) * tf_ops.ANCHOR_MARK_STEP
    by_worker = tf.where(
        present, tf.sign(marks) * sizes * tf.pow(tf.cast(2.0, tf.float64), -steps), 0.0
    )
    sums = tf.reduce_sum(by_worker, 1)
    off = tf.abs(sums - sums[0])
    is_finite = tf.reduce_all(tf.math.is_finite(marks))
    return tf.reduce_all(off <= _TOLERANCE * tf.abs(sums[0])) | ~is_finite
