"""Bags of keys of one table as vectors: read as any keys of it, pooled as features are."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.combining import rows_of
from sok_embed.lookups.input_forms import Form, check_beside, flat_values, values_beside
from sok_embed.lookups.lookup import Call, TableLookup
from sok_embed.lookups.padding import is_key


class Bags(NamedTuple):
    """Keys that are pooled over the last axis of an input.

    Attributes:
        keys: int64 `[bags, L]`; with splits `[n]`.
        splits: int64 `[bags + 1]`, where each bag begins and ends. `None`: a bag is a row of keys.
        weights: float32, one a key, in the order of the keys. `None`: there are none.
    """

    keys: tf.Tensor
    splits: tf.Tensor | None
    weights: tf.Tensor | None

    def without(self, padding: int, *beside: tf.Tensor) -> tuple[Bags, list[tf.Tensor]]:
        """Returns the same bags without the keys that are padding, and what lies beside the others.

        Args:
            padding: The key that stands where there is none.
            *beside: Values of the keys, in their order.
        """
        keys, splits, weights = self.keys, self.splits, self.weights
        if splits is None:
            shape = tf.shape(keys, tf.int64)
            splits = tf.range(shape[0] + 1) * shape[1]
            keys = tf.reshape(keys, [-1])
        stays = is_key(keys, padding)
        before = tf.concat([[0], tf.cumsum(tf.cast(stays, tf.int64))], 0)
        if weights is not None:
            weights = tf.boolean_mask(tf.reshape(weights, [-1]), stays)
        bags = Bags(tf.boolean_mask(keys, stays), tf.gather(before, splits), weights)
        return bags, [tf.boolean_mask(tf.reshape(each, [-1]), stays) for each in beside]


def check_weights(what: str, combiner: str | None, ids: Any, weights: Any) -> None:
    """Checks the weights of a call, symbolic or not.

    Args:
        what: How messages begin.
        combiner: Of the layer.
        ids: The input.
        weights: Tensors.

    Raises:
        ValueError: For weights that nothing multiplies by, that are no floats, or that lie
            otherwise than the ids.
    """
    if combiner is None or combiner == "max":
        way = "without a combiner" if combiner is None else "with combiner='max'"
        raise ValueError(
            f"{what}: expected no weights {way}. Received: some. Multiply the vectors by them, or "
            "use combiner='sum', 'mean' or 'sqrtn'."
        )
    form = Form.of(weights)
    if not tf.as_dtype(form.dtype).is_floating:
        raise ValueError(
            f"{what}: expected weights to be floats. Received: {form.dtype}. Cast them."
        )
    check_beside(what, "weights", weights, ids)


def bags_of(ids: Any, weights: Any) -> Bags:
    """Takes an input apart.

    Args:
        ids: int64: dense `[..., L]`, ragged, or sparse `[B, L]`.
        weights: Floats that lie as the ids, or, beside ragged and sparse ones, flat. `None`: there
            are none.
    """
    keys, splits = flat_values(ids), rows_of(ids)
    if weights is not None:
        if isinstance(ids, tf.Tensor):
            weights = _of_shape(weights, ids)
        else:
            weights = values_beside("weights", weights, ids)
        weights = tf.cast(weights, tf.float32)
    if splits is not None:
        return Bags(keys, tf.cast(splits, tf.int64), weights)
    if keys.shape.rank != 2:
        shape = tf.shape(keys)
        keys = tf.reshape(keys, tf.stack([tf.reduce_prod(shape[:-1]), shape[-1]]))
    return Bags(keys, None, weights)


def shaped(vectors: tf.Tensor, ids: Any) -> Any:
    """Vectors `[bags, dim]` in the form of the ids without their last axis."""
    dim = vectors.shape[-1]
    if isinstance(ids, tf.RaggedTensor):
        if ids.flat_values.shape.rank != 1:
            return ids.with_flat_values(shaped(vectors, ids.flat_values))
        if ids.ragged_rank > 1:
            outer = ids.nested_row_splits[:-1]
            return tf.RaggedTensor.from_nested_row_splits(vectors, outer, validate=False)
    elif isinstance(ids, tf.Tensor) and ids.shape.rank != 2:
        vectors = tf.reshape(vectors, tf.concat([tf.shape(ids)[:-1], [dim]], 0))
    vectors.set_shape([*ids.shape[:-1], dim] if ids.shape.rank is not None else None)
    return vectors


class PooledLookup:
    """Reads the distinct keys of a batch by the lookup of a table, and pools their vectors.

    To the ops of collections this is a collection of one table with one worker: they find the
    distinct keys and pool. Rows and gradients go the way of any lookup of the table.

    Args:
        lookup: Of the table.
        name: Of the layer.
        dim: The length of a row.
        combiner: `"sum"`, `"mean"`, `"sqrtn"` or `"max"`.
    """

    def __init__(self, lookup: TableLookup, name: str, dim: int, combiner: str) -> None:
        self._lookup = lookup
        self._combiner = combiner
        self._plan = tf_ops.CollectionPlan(
            table_names=(name,),
            dims=(dim,),
            salts=(0,),
            key_limits=(0,),
            placements=(tf_ops.BY_KEY,),
            holders=(0,),
            feature_names=(name,),
            feature_tables=(0,),
            max_lengths=(0,),
            workers=1,
            rank=0,
            fingerprint=0,
            counts=(lookup.table.counts_keys,),
        )

    def vectors(self, call: Call, bags: Bags, dtype: tf.DType) -> tf.Tensor:
        """A vector of each bag. Collective, if there are several workers.

        Args:
            call: Of the lookup's `begin`.
            bags: Of the batch.
            dtype: Of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`. Sums are in float32.

        Returns:
            `[bags, dim]`.
        """
        with_splits = bags.splits is not None
        kind = tf_ops.BAG_BY_SPLITS if with_splits else tf_ops.BAG_A_ROW
        splits = [bags.splits] if with_splits else []
        request = tf_ops.collection_request(
            self._plan,
            [bags.keys],
            [kind],
            splits,
            combiners=[self._combiner],
            pools=[False],
        )
        keys, counts = tf_ops.requested_keys(self._plan, request)
        rows = self._lookup.vectors(call, keys, self._lookup.count_columns(counts))
        (pooled,) = tf_ops.collection_pool(
            self._plan,
            tf_ops.rows_message(rows),
            request.asked,
            [self._combiner],
            [bags.weights],
            # The ops have no float16.
            dtype=tf.float32 if dtype == tf.float16 else dtype,
        )
        return tf.cast(pooled, dtype)


def _of_shape(weights: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """The weights, whose shape is that of the ids; a graph may know it when it runs alone."""
    if weights.shape.is_fully_defined() and ids.shape.is_fully_defined():
        return weights
    equal = tf.debugging.assert_equal(
        tf.shape(weights), tf.shape(ids), "Expected weights of the shape of the input."
    )
    with tf.control_dependencies([] if equal is None else [equal]):
        return tf.identity(weights)
