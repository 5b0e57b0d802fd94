"""Looks keys up in an adaptive table: own rows, else static rows; a mask may choose."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.lookup import Call, Column, TableLookup, in_parts
from sok_embed.tables.adaptive_table import AdaptiveTable

AUTOMATIC = -1  # the route of a key that goes where its count says
_STATIC = 0


class AdaptiveLookup(TableLookup):
    """Finds the own rows of keys that have one, and the static rows of the others.

    Args:
        table: The part of this worker.
        host: The host, as for `TableLookup`.
    """

    def __init__(self, table: AdaptiveTable, host: str) -> None:
        def read(
            call: Call, dtype: tf.DType, keys: tf.Tensor, *columns: tf.Tensor | None
        ) -> tf.Tensor:
            counts, routes = columns
            return tf_ops.adaptive_lookup(
                table.resource_handle,
                keys,
                table.dim,
                call.trains,
                counts=counts,
                mask=None if routes is None else tf.cast(routes, tf.int32),
                dtype=dtype,
                anchor=call.anchor,
            )

        super().__init__(table, host, read, buckets=table.static_buckets)

    def routed(self, call: Call, keys: tf.Tensor, route: Any, dtype: tf.DType) -> tf.Tensor:
        """Looks keys up. Collective, if there are several workers.

        Which exchanges a call makes depends on whether its route is a number, and on nothing that
        differs between workers.

        Args:
            call: The call, from `begin`.
            keys: int64 of any shape.
            route: -1, 0 or 1 for all keys, or int32 of the shape of the keys.
            dtype: The dtype of the result.

        Returns:
            `keys.shape + [dim]`.
        """
        if isinstance(route, int):
            routes = None if route == AUTOMATIC else tf.fill(tf.shape(keys), route)
            return self.vectors(call, keys, _columns(routes), dtype)
        if self.communicator().size == 1:
            return self.vectors(call, keys, _columns(route), dtype)
        flat = tf.reshape(route, [-1])
        with tf.control_dependencies(_assertions(flat)):
            is_static = tf.equal(flat, _STATIC)

        def look_up(part: str, keys: tf.Tensor, routes: tf.Tensor) -> tf.Tensor:
            return self.vectors(call, keys, _columns(routes), part=part)

        # A key may be looked up in both ways, and then has two rows.
        ways = [functools.partial(look_up, part) for part in (".own", ".static")]
        rows = in_parts(is_static, ways, tf.reshape(keys, [-1]), flat)
        return self.shaped(tf.cast(rows, dtype), keys)


def _columns(routes: tf.Tensor | None) -> tuple[Column, Column]:
    """Returns the columns of a request: the count of each key in the batch, and its route."""
    return (
        Column(None, 1, tf.math.unsorted_segment_sum),
        # A key that is forced anywhere in the batch has its row everywhere in it.
        Column(routes, AUTOMATIC, tf.math.unsorted_segment_max),
    )


def _assertions(route: tf.Tensor) -> list[Any]:
    """Asserts what the lookup's own check would, which sees only the routes made of the mask."""
    check = tf.debugging.Assert(
        tf.reduce_all((route >= -1) & (route <= 1)),
        ["Expected a mask of -1, 0 and 1. Received:", route],
    )
    return [] if check is None else [check]
