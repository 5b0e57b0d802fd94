"""Regularizers of rows, which see the distinct rows of a call."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import shown


def get(identifier: Any) -> Any:
    """Returns the regularizer of what a user writes: a function of rows `[n, dim]`, or `None`.

    Args:
        identifier: A Keras regularizer, its name or config, a function of rows, or `None`.

    Raises:
        ValueError: For anything else.
    """
    try:
        return keras.regularizers.get(identifier)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Expected a regularizer: None, a keras.regularizers.Regularizer, its name or config, "
            f"or a function of rows. Received: {shown(identifier)} (of type "
            f"{type(identifier).__name__})."
        ) from error


def distinct_rows(keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the row of each distinct key, `[u, dim]`, in the order of their first places.

    Args:
        keys: int64 of any shape.
        rows: Floats `keys.shape + [dim]`, equal for equal keys.
    """
    keys = tf.reshape(keys, [-1])
    distinct, inverse = tf.unique(keys)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), inverse, tf.size(distinct))
    return tf.gather(tf.reshape(rows, [-1, rows.shape[-1]]), first)
