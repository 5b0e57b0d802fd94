"""Segments of a message: for each worker, and within it for each table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


@tf.custom_gradient
def transposed(values: tf.Tensor, sizes: tf.Tensor) -> Any:
    """Puts segments that lie by the rows of a matrix of sizes into the order of its columns.

    Args:
        values: `[n]`: segments of `sizes[0, 0]`, `sizes[0, 1]`, … elements, one behind the other.
        sizes: int32 `[a, b]`, whose shape is static.

    Returns:
        `[n]`: the segments of `sizes[0, 0]`, `sizes[1, 0]`, … elements.
    """
    rows, columns = sizes.shape
    segments = tf.split(values, tf.reshape(sizes, [-1]), num=rows * columns)
    order = [row * columns + column for column in range(columns) for row in range(rows)]

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        # TensorFlow's own cuts the result into slices, one op each.
        return transposed(upstream, tf.transpose(sizes)), None

    return tf.concat([segments[i] for i in order], 0), gradient
