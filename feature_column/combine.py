"""Finds which ids of examples to look up, and combines their rows by TensorFlow's functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf


class Positions(NamedTuple):
    """The lookup of a column in a batch, and the places of its rows in it.

    Attributes:
        ids: `[batch, …]` with n values. Only their positions matter, not their values.
        weights: The weights of the same places, or `None`.
        keys: int64 `[n]`.
        buckets: int64 `[n]`, or `None`.
        mask: int32 `[n]`, or `None` where there are no own rows.
        safe: True for the behaviour of `tf.nn.safe_embedding_lookup_sparse`, which returns zeros
            where there are no ids.
    """

    ids: tf.SparseTensor
    weights: tf.SparseTensor | None
    keys: tf.Tensor
    buckets: tf.Tensor | None
    mask: tf.Tensor | None
    safe: bool


def static_positions(
    ids: tf.SparseTensor, weights: tf.SparseTensor | None, safe: bool
) -> Positions:
    """Returns the positions of ids that are numbers of static rows; safe ones are not negative."""
    if safe:
        kept = ids.values >= 0
        ids = tf.sparse.retain(ids, kept)
        weights = None if weights is None else tf.sparse.retain(weights, kept)
    return Positions(ids, weights, ids.values, None, None, safe)


def with_weight(column: Any, positions: Positions) -> Positions:
    """Returns the positions that are looked up: a safe mean leaves out weights of 0 and below."""
    ids, weights, keys, buckets, mask, safe = positions
    if not safe or weights is None or column.combiner == "sum":
        return positions
    # This is done here and not by TensorFlow, so that no row is made or trained for an id without
    # weight.
    mask = _checked(column, mask)  # even if no lookup will see it
    kept = weights.values > 0
    return Positions(
        tf.sparse.retain(ids, kept),
        tf.sparse.retain(weights, kept),
        tf.boolean_mask(keys, kept),
        None if buckets is None else tf.boolean_mask(buckets, kept),
        tf.boolean_mask(mask, kept),
        safe,
    )


def combine(column: Any, positions: Positions, rows: tf.Tensor) -> tf.Tensor:
    """Combines as `tf.nn.embedding_lookup_sparse` does, with rows that have been looked up.

    `rows` are float32 `[n, dim]`, one for each key of the positions.

    Returns:
        float32 `[batch, …, dim]`, the last dimension of the ids combined.
    """
    ids, weights = positions.ids, positions.weights
    n = tf.size(positions.keys, tf.int64)
    # TensorFlow reads row 0 for examples without ids, and replaces it by zeros.
    rows = tf.pad(rows, [[0, tf.cast(tf.equal(n, 0), tf.int32)], [0, 0]])
    rows.set_shape([None, column.dimension])
    places = tf.SparseTensor(ids.indices, tf.range(n), ids.dense_shape)
    arguments: dict[str, Any] = {"combiner": column.combiner, "max_norm": column.max_norm}
    if not positions.safe:
        return tf.nn.embedding_lookup_sparse(rows, places, weights, **arguments)
    # This is fast: the gradient is dense, since all gathered rows are in use.
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
