"""Lookups of adaptive keys whose rows lie on several workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.communicators import Communicator

_STATIC = 0

# Of keys [n], int64: how often each stands for itself, int64 [n]; its route, int32 [n].
LookUp = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def exchange(
    communicator: Communicator,
    name: str,
    keys: tf.Tensor,
    route: Any,
    static_buckets: int,
    look_up: LookUp,
) -> tf.Tensor:
    """Has the owners of keys look them up.

    Collective: which exchanges a call makes depends on whether its route is a number, and on
    nothing that differs between workers.

    Args:
        communicator: Between the workers.
        name: Of the call, the same on every worker.
        keys: int64 `[n]`.
        route: -1, 0 or 1 for all keys, or int32 `[n]`.
        static_buckets: How many buckets all workers have together.
        look_up: Called with the distinct keys that workers ask this one for. Returns float32 rows.

    Returns:
        float32 `[n, dim]`. Differentiable.
    """
    if isinstance(route, int):
        routes = tf.fill(tf.shape(keys), route)
        return _exchange(communicator, name, keys, routes, static_buckets, look_up)
    with tf.control_dependencies(_assertions(route)):
        is_static = tf.equal(route, _STATIC)
    # A key may be looked up in both ways, and then has two rows.
    places = [tf.cast(tf.where(at)[:, 0], tf.int32) for at in (~is_static, is_static)]
    rows = [
        _exchange(
            communicator,
            f"{name}.{kind}",
            tf.gather(keys, at),
            tf.gather(route, at),
            static_buckets,
            look_up,
        )
        for kind, at in zip(("own", "static"), places, strict=True)
    ]
    return tf.dynamic_stitch(places, rows)


def _exchange(
    communicator: Communicator,
    name: str,
    keys: tf.Tensor,
    routes: tf.Tensor,
    static_buckets: int,
    look_up: LookUp,
) -> tf.Tensor:
    """As `exchange`, for routes that are all static or none of them."""
    part = tf_ops.adaptive_partition(keys, communicator.size, static_buckets)
    distinct = tf.size(part.unique_keys)
    # A key that is forced anywhere in the batch has its row everywhere in it.
    forced = tf.math.unsorted_segment_max(routes, part.inverse, distinct)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(keys), part.inverse, distinct)
    request = tf.stack([part.unique_keys, counts, tf.cast(forced, tf.int64)], 1)
    owned, owned_splits = communicator.all_to_all(request, part.splits, f"{name}.keys")
    owned_keys, owned_counts, owned_routes = tf.unstack(owned, axis=1)
    owned_rows = look_up(owned_keys, owned_counts, tf.cast(owned_routes, tf.int32))
    rows, _ = communicator.all_to_all(owned_rows, owned_splits, f"{name}.rows")
    return tf_ops.expand(rows, part.inverse)


def _assertions(route: tf.Tensor) -> list[Any]:
    """As the lookup's own check, which would see only what becomes of the routes."""
    check = tf.debugging.Assert(
        tf.reduce_all((route >= -1) & (route <= 1)),
        ["Expected a mask of -1, 0 and 1. Received:", route],
    )
    return [] if check is None else [check]
