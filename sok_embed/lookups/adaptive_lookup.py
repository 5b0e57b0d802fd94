"""Looks keys up in an adaptive table: own rows, else static rows; a mask may choose."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.exchange import look_up
from sok_embed.lookups.lookup import Call, TableLookup
from sok_embed.tables.adaptive_table import AdaptiveTable

AUTOMATIC = -1  # the route of a key that goes where its count says
_STATIC = 0


class AdaptiveLookup(TableLookup):
    """Finds the own rows of keys that have one, and the static rows of the others.

    Args:
        table: The part of this worker.
        host: The owner of the table, as for `TableLookup`.
    """

    def __init__(self, table: AdaptiveTable, host: str) -> None:
        def read(call: Call, dtype: tf.DType, asked: tf_ops.TableKeys) -> tf_ops.Lookup:
            return tf_ops.adaptive_lookup(
                table.resource_handle,
                asked.keys,
                table.dim,
                call.trains,
                counts=asked.counts,
                mask=None if asked.said is None else tf.cast(asked.said, tf.int32),
                dtype=dtype,
                anchor=call.anchor,
                reports=asked.reports,
            )

        super().__init__(table, host, read, buckets=table.static_buckets)

    def routed(self, call: Call, keys: tf.Tensor, route: Any, dtype: tf.DType) -> tf.Tensor:
        """Looks keys up. Collective, if there are several workers.

        All workers must give a number, or none of them: the exchange differs.

        Args:
            call: The rights of the lookup, from `begin`.
            keys: int64 of any shape.
            route: -1, 0 or 1 for all keys, or int32 of the shape of the keys.
            dtype: The dtype of the result.

        Returns:
            `keys.shape + [dim]`.
        """
        several = self.communicator().size > 1
        if isinstance(route, int):
            told = several or route != AUTOMATIC
            routes = tf.fill(tf.shape(keys), route) if told else None
            return self.vectors(call, keys, routes, dtype)
        if not several:
            return self.vectors(call, keys, route, dtype)
        flat, flat_keys = tf.reshape(route, [-1]), tf.reshape(keys, [-1])
        with tf.control_dependencies(_assertions(flat)):
            is_static = tf.equal(flat, _STATIC)
        # A forced key has its row everywhere among keys that are not static. A key may
        # be looked up in both ways, and then has two rows.
        places = [tf.cast(tf.where(at)[:, 0], tf.int32) for at in (~is_static, is_static)]
        ways = [
            self.asked(call, *(tf.gather(each, at) for each in (flat_keys, flat))) for at in places
        ]
        rows = look_up(ways, self.table.name)
        return self.shaped(tf.cast(tf.dynamic_stitch(places, rows), dtype), keys)


def _assertions(route: tf.Tensor) -> list[Any]:
    """Returns the check of routes; a lookup would check the greatest of equal keys alone."""
    check = tf.debugging.Assert(
        tf.reduce_all((route >= -1) & (route <= 1)),
        ["Expected a mask of -1, 0 and 1. Received:", route],
    )
    return [] if check is None else [check]
