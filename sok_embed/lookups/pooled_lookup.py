"""Bags of keys of one table as vectors: read as any keys of it, pooled as features are."""

from __future__ import annotations

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.bags import Bags
from sok_embed.lookups.lookup import Call, TableLookup


class PooledLookup:
    """Reads the distinct keys of a batch by the lookup of a table, and pools their vectors.

    To the ops of collections this is a collection of one table with one worker: they find the
    distinct keys and pool. Rows and gradients go the way of any lookup of the table.

    Args:
        lookup: The lookup of the table.
        name: The name of the layer.
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
        """Returns a vector of each bag. Collective, if there are several workers.

        Args:
            call: The call, from the lookup's `begin`.
            bags: The bags of the batch.
            dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`. Sums are in
                float32.

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
