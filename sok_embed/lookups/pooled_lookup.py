"""Bags of keys of one table as vectors: read as any keys of it, pooled as features are."""

from __future__ import annotations

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.bags import Bags
from sok_embed.lookups.exchange import look_up
from sok_embed.lookups.lookup import Call, TableLookup


def pooled(
    lookup: TableLookup, call: Call, bags: Bags, combiner: str, dtype: tf.DType
) -> tf.Tensor:
    """Returns a vector of each bag, `[bags, dim]`. Collective, if there are several workers.

    Args:
        lookup: The lookup of the table.
        call: The rights of the lookup, from `begin`.
        bags: The bags of the batch.
        combiner: `"sum"`, `"mean"`, `"sqrtn"` or `"max"`.
        dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`; sums are in
            float32.
    """
    asked = lookup.asked(call, bags.keys)._replace(
        bags=tf_ops.BAG_A_ROW if bags.splits is None else tf_ops.BAG_BY_SPLITS,
        splits=bags.splits,
        weights=bags.weights,
        combiner=combiner,
    )
    (vectors,) = look_up([asked], lookup.table.name, dtype)
    return vectors
