"""Looks keys up in an adaptive table: reads own rows or static rows, as a route may choose."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.exchange import look_up
from sok_embed.lookups.lookup import LookupContext, TableLookup
from sok_embed.tables.adaptive_table import AdaptiveTable

AUTOMATIC = -1  # the route of a key whose count decides
_STATIC = 0


class AdaptiveLookup(TableLookup):
    """Finds the own rows of keys that have one, and the static rows of the others."""

    def __init__(self, table: AdaptiveTable, host: str) -> None:
        def read(context: LookupContext, dtype: tf.DType, asked: tf_ops.TableKeys) -> tf_ops.Lookup:
            return tf_ops.adaptive_lookup(
                table.resource_handle,
                asked.keys,
                table.dim,
                context.trains,
                counts=context.counts(table, asked),
                mask=None if asked.said is None else tf.cast(asked.said, tf.int32),
                dtype=dtype,
                anchor=context.anchor,
                reports=asked.reports,
            )

        super().__init__(table, host, read, buckets=table.static_buckets)

    def vectors(
        self,
        context: LookupContext,
        keys: tf.Tensor,
        routes: Any = AUTOMATIC,
        dtype: tf.DType = tf.float32,
    ) -> tf.Tensor:
        """Looks keys up. Collective, if there are several workers.

        If one worker gives one number for all keys, all must: messages then differ from those with
        a route for each key. `routes` are -1, 0 or 1 for all keys, or int32 of the shape of the
        keys.

        Returns:
            `keys.shape + [dim]`.
        """
        several = self.communicator().size > 1
        if isinstance(routes, int):
            sent = several or routes != AUTOMATIC
            of_keys = tf.fill(tf.shape(keys), routes) if sent else None
            return super().vectors(context, keys, of_keys, dtype)
        if not several:
            return super().vectors(context, keys, routes, dtype)
        flat, flat_keys = tf.reshape(routes, [-1]), tf.reshape(keys, [-1])
        with tf.control_dependencies(_assertions(flat)):
            is_static = tf.equal(flat, _STATIC)
        # If one position of a key has route 1, its other positions without route 0 read the own row
        # too. A key may also be looked up with route 0, and then has two rows in the batch.
        places = [tf.cast(tf.where(at)[:, 0], tf.int32) for at in (~is_static, is_static)]
        queries = [
            self.query(context, tf.gather(flat_keys, at), tf.gather(flat, at)) for at in places
        ]
        rows = look_up(queries, self.table.name)
        return self.shaped(tf.cast(tf.dynamic_stitch(places, rows), dtype), keys)


def _assertions(route: tf.Tensor) -> list[Any]:
    """Returns the check of all routes: a lookup checks only the greatest of equal keys."""
    check = tf.debugging.Assert(
        tf.reduce_all((route >= -1) & (route <= 1)),
        ["Expected a mask of -1, 0 and 1. Received:", route],
    )
    return [] if check is None else [check]
