"""An adaptive table in a graph for serving: reads own rows or, without one, static rows."""

from __future__ import annotations

import tensorflow as tf

from sok_embed.tf_ops import stock_hashes
from sok_embed.tf_ops.served import ServedAdaptiveRows, ServedRows, checked


class AdaptiveRows(tf.Module, ServedAdaptiveRows):
    """Own rows by key, and static rows by bucket.

    Args:
        static: The static rows, with start vectors for buckets that have none.
    """

    def __init__(self, own: ServedRows, static: ServedRows, buckets: int) -> None:
        super().__init__()
        self.own = own
        self.static = static
        self._buckets = buckets

    def lookup(self, keys: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """See `ServedAdaptiveRows`."""
        rows, exists = self.own.find(keys)
        if mask is not None:
            right = (mask >= -1) & (mask <= 1)
            mask = checked(mask, right, "Expected a mask of -1, 0 and 1. Received:", mask)
            exists &= tf.not_equal(mask, 0)
        static = self.static.lookup(stock_hashes.adaptive_buckets(keys, self._buckets))
        vectors = tf.where(exists[..., tf.newaxis], rows, static)
        vectors.set_shape(rows.shape)
        return vectors
