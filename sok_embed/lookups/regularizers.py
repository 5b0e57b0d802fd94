"""Rows for regularizers: the distinct rows of a call."""

from __future__ import annotations

import tensorflow as tf


def distinct_rows(keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the row of each distinct key, `[u, dim]`, in the order of first occurrence.

    Args:
        keys: int64 of any shape.
        rows: Floats `keys.shape + [dim]`, equal for equal keys.
    """
    keys = tf.reshape(keys, [-1])
    distinct, inverse = tf.unique(keys)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), inverse, tf.size(distinct))
    return tf.gather(tf.reshape(rows, [-1, rows.shape[-1]]), first)
