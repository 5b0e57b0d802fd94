"""Lookups that fail on the last worker alone: all workers raise, and the next lookup is well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import sok_embed
from sharded.registry import Here, scenario
from sok_embed import communicators, tf_ops
from sok_embed import feature_column as fc
from sok_embed.communicators.horovod import HorovodCommunicator

KEYS = np.arange(12).reshape(4, 3)
PLACES = 12  # keys of the layer without a hash table, on each worker


def _raised(call: Callable[[], Any]) -> dict[str, Any]:
    """The error of a call, eager and compiled, and with exchanges by Horovod if it is there."""
    found = {}
    forms = {"eager": call, "compiled": tf.function(call)}
    if isinstance(communicators.current(), HorovodCommunicator):
        forms["by_horovod"] = _by_horovod(call)
    for form, function in forms.items():
        try:
            function()
        except Exception as error:
            found |= {f"{form}.type": type(error).__name__, f"{form}.text": str(error)}
        else:
            found |= {f"{form}.type": "nothing", f"{form}.text": ""}
    return found


def _by_horovod(call: Callable[[], Any]) -> Callable[[], Any]:
    def with_exchanges() -> None:
        communicator = communicators.current()
        sok_embed.init("horovod", exchange="horovod")
        try:
            call()
        finally:
            sok_embed.init(communicator)

    return with_exchanges


def _failing(here: Here, layer: Any, table: Any, look_up: Callable[[], Any]) -> dict[str, Any]:
    """The errors of a lookup whose table is gone on the last worker."""
    before = look_up()
    well = sok_embed.DynamicEmbedding(2, "ones", name=f"{layer.name}_well")
    if here.rank == here.size - 1:
        tf_ops.release(table.resource_handle)
    raised = _raised(look_up)
    return {**raised, "shape": np.array(before.shape), "again": well(KEYS)}


@scenario
def failing_dynamic(here: Here) -> dict[str, Any]:
    layer = sok_embed.DynamicEmbedding(2, name="failing_dynamic")
    return _failing(here, layer, layer.table, lambda: layer(KEYS, training=True))


@scenario
def failing_pooled(here: Here) -> dict[str, Any]:
    layer = sok_embed.DynamicEmbedding(2, combiner="mean", name="failing_pooled")
    return _failing(here, layer, layer.table, lambda: layer(KEYS, training=True))


@scenario
def failing_all2all(here: Here) -> dict[str, Any]:
    layer = sok_embed.All2AllDenseEmbedding(100, 2, 4, 3, name="failing_all2all")
    keys = tf.constant(KEYS[np.newaxis])
    return _failing(here, layer, layer.table, lambda: layer(keys, training=True))


@scenario
def failing_adaptive(here: Here) -> dict[str, Any]:
    layer = sok_embed.AdaptiveEmbedding(2, static_buckets=5, name="failing_adaptive")
    return _failing(here, layer, layer.table, lambda: layer(KEYS, training=True))


@scenario
def failing_masked(here: Here) -> dict[str, Any]:
    layer = sok_embed.AdaptiveEmbedding(2, static_buckets=5, name="failing_masked")
    mask = KEYS % 3 - 1
    return _failing(here, layer, layer.table, lambda: layer(KEYS, training=True, mask=mask))


@scenario
def failing_columns(here: Here) -> dict[str, Any]:
    columns = [
        fc.embedding_column(
            fc.categorical_column_with_adaptive_embedding(name, 5, tf.int64), dim, "sum"
        )
        for name, dim in (("item", 2), ("user", 3))
    ]
    layer = fc.DenseFeatures(columns, name="failing_columns")
    features = {"item": KEYS, "user": KEYS + 5}
    masks = {name: np.ones_like(KEYS, np.int32) for name in features}
    look_up = lambda: layer(features, masks)  # noqa: E731
    look_up()
    return _failing(here, layer, layer.tables["user_embedding"], look_up)


@scenario
def failing_key(here: Here) -> dict[str, Any]:
    """The last worker brings a key that no place is for."""
    layer = sok_embed.All2AllDenseEmbedding(
        PLACES, 2, 4, 3, use_hashtable=False, name="failing_key"
    )
    keys = tf.constant(KEYS[np.newaxis])
    layer(keys)
    bad = keys + PLACES * here.size if here.rank == here.size - 1 else keys
    return {**_raised(lambda: layer(bad, training=True)), "again": layer(keys, training=True)}
