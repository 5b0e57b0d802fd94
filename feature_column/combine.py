"""From ids to embeddings of examples: lookups, then TensorFlow's own combining of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def combine(
    column: Any,
    ids: tf.SparseTensor,
    weights: tf.SparseTensor | None,
    keys: tf.Tensor,
    buckets: tf.Tensor | None,
    mask: tf.Tensor,
    gather: Callable[[tf.Tensor, tf.Tensor | None, tf.Tensor], tf.Tensor],
    safe: bool,
) -> tf.Tensor:
    """As `tf.nn.embedding_lookup_sparse`, with rows that `gather` finds.

    Args:
        column: Says how to combine.
        ids: `[batch, …]` with n values; where they are counts, not what they are.
        weights: Of the same places, or `None`.
        keys: int64 `[n]`.
        buckets: int64 `[n]`, or `None`.
        mask: int32 `[n]`.
        gather: Takes keys, buckets and masks, and returns rows `[n, dim]`.
        safe: As `tf.nn.safe_embedding_lookup_sparse`, which has zeros where there are no ids.

    Returns:
        float32 `[batch, …, dim]`, the last dimension of `ids` combined.
    """
    if safe and weights is not None and column.combiner != "sum":
        # Here and not by TensorFlow, so that no row is made or trained for an id without weight.
        mask = _checked(column, mask)  # also where no lookup will see it
        kept = weights.values > 0
        ids = tf.sparse.retain(ids, kept)
        weights = tf.sparse.retain(weights, kept)
        keys, mask = tf.boolean_mask(keys, kept), tf.boolean_mask(mask, kept)
        buckets = None if buckets is None else tf.boolean_mask(buckets, kept)
    rows = gather(keys, buckets, mask)
    n = tf.size(keys, tf.int64)
    # TensorFlow has examples without ids read row 0, and puts zeros in its place.
    rows = tf.pad(rows, [[0, tf.cast(tf.equal(n, 0), tf.int32)], [0, 0]])
    rows.set_shape([None, column.dimension])
    places = tf.SparseTensor(ids.indices, tf.range(n), ids.dense_shape)
    arguments: dict[str, Any] = {"combiner": column.combiner, "max_norm": column.max_norm}
    if not safe:
        return tf.nn.embedding_lookup_sparse(rows, places, weights, **arguments)
    # Fast: with a dense gradient, as all rows that were gathered are in use.
    return tf.compat.v1.nn.safe_embedding_lookup_sparse(
        rows, places, weights, **arguments, allow_fast_lookup=True
    )


def _checked(column: Any, mask: tf.Tensor) -> tf.Tensor:
    right = tf.debugging.assert_equal(
        mask,
        tf.clip_by_value(mask, 0, 1),
        f"Column '{column.name}': expected a mask of 1 (own row) or 0 (static row).",
    )
    with tf.control_dependencies([] if right is None else [right]):
        return tf.identity(mask)
