"""Pools the rows of a batch in a graph for serving, with one worker and without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.tf_ops import stock_bags
from sok_embed.tf_ops.served import as_int64, checked, serving_pool


def served_bags(
    plan: tf_ops.CollectionPlan,
    batch: Any,
    rows: Sequence[tf.Tensor],
    *,
    concat: bool = False,
    dtype: tf.DType = tf.float32,
) -> list[tf.Tensor]:
    """Does what `pooled_rows` does, with rows that were looked up already.

    Args:
        plan: The plan of the tables and features.
        batch: The keys of each feature, a `PooledBatch`.
        rows: float32 `keys.shape + [dim]` of each feature.
        concat: True for one vector an example.
        dtype: The dtype of the result.

    Raises:
        tf.errors.InvalidArgumentError: When the graph runs, as `tf_ops.collection_request` does.
    """
    given, pool = iter(batch.splits), serving_pool()
    pooled = []
    for number, (keys, kind) in enumerate(zip(batch.keys, batch.bags, strict=True)):
        splits = next(given) if kind == tf_ops.BAG_BY_SPLITS else None
        table = plan.feature_tables[number]
        name, dim = plan.feature_names[number], plan.dims[table]
        vectors = tf.reshape(rows[number], [-1, dim])
        vectors = _below_limit(vectors, keys, name, plan.key_limits[table])
        weights = batch.weights[number]
        if kind == tf_ops.BAG_A_KEY and weights is None:
            pooled.append(vectors)
            continue
        most, combiner = plan.max_lengths[number], batch.combiners[number]
        if pool is not None:
            bags = _bags(keys, kind, splits)
            pooled.append(pool(vectors, bags, weights, combiner, most, name))
            continue
        length = _length(keys) if kind == tf_ops.BAG_A_ROW and weights is None else 0
        if length and combiner != "max" and not 0 < most < length:
            pooled.append(stock_bags.pool_rows(vectors, length, combiner))
            continue
        segments = _segments(keys, kind, splits, name)
        if most:
            segments = segments._replace(
                lengths=checked(
                    segments.lengths,
                    segments.lengths <= most,
                    f"feature '{name}': expected at most max_length={most} keys in an example. "
                    "Received:",
                    segments.lengths,
                )
            )
        pooled.append(stock_bags.pool(vectors, segments, weights, combiner))
    if concat:
        pooled = [tf.concat(pooled, 1)]
    return [tf.cast(each, dtype) for each in pooled]


def _length(keys: tf.Tensor) -> int:
    """Returns the number of keys of a row, 0 if it is not known."""
    return (keys.shape[1:].num_elements() or 0) if keys.shape.rank else 0


def _bags(keys: tf.Tensor, kind: int, splits: Any) -> tf.Tensor | int:
    """Returns the row splits of bags, or the length of all bags, as arguments of a `Pool`."""
    if kind == tf_ops.BAG_BY_SPLITS:
        return splits
    length = 1 if kind == tf_ops.BAG_A_KEY else _length(keys)
    if length:
        return length
    shape = tf.shape(keys, tf.int64)
    return tf.range(shape[0] + 1) * tf.reduce_prod(shape[1:])


def _segments(keys: tf.Tensor, kind: int, splits: Any, name: str) -> stock_bags.Segments:
    count = tf.size(keys, tf.int64)
    if kind == tf_ops.BAG_A_KEY:
        return stock_bags.of_rows(count, tf.constant(1, tf.int64))
    if kind == tf_ops.BAG_A_ROW:
        shape = tf.shape(keys, tf.int64)
        return stock_bags.of_rows(shape[0], tf.reduce_prod(shape[1:]))
    splits = checked(
        splits,
        tf.concat(
            [
                tf.equal(splits[:1], 0),
                splits[1:] >= splits[:-1],
                tf.equal(splits[-1:], count),
            ],
            0,
        ),
        f"feature '{name}': expected row splits that begin with 0, never fall and end with the "
        "number of keys. Received:",
        splits,
    )
    return stock_bags.of_splits(splits)


def _below_limit(rows: tf.Tensor, keys: tf.Tensor, name: str, limit: int) -> tf.Tensor:
    if not limit:
        return rows
    flat = tf.reshape(as_int64(keys), [-1])
    right = (flat >= 0) & (flat <= limit - 1)
    return checked(rows, right, f"feature '{name}': expected keys in [0, {limit}). Received:", flat)
