"""The table of own rows of a column: its attributes by the column's options, and its evictions."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from sok_embed import communicators, kv, tf_ops
from sok_embed.eviction import MaxAge, core_arguments
from sok_embed.feature_column.categorical import OwnRowsCategorical
from sok_embed.initializers import RowInitializer
from sok_embed.kv.table_spec import RowOptions, TableSpec
from sok_embed.tables.table import Table

# Rows start as their static rows, so this is not used.
NOTHING = RowInitializer("constant", 0.0, 0.0, None)

_by_config: ContextVar[bool] = ContextVar("sok_embed_columns_by_config", default=False)


def open_storage(column: OwnRowsCategorical, name: str) -> kv.Storage | None:
    """Opens the folder of the rows of an embedding, if they lie on disk."""
    option = column.ev_option.storage_option
    if option is None or not option.on_disk:
        return None
    assert option.storage_path is not None
    path = os.path.join(option.storage_path, re.sub(r"[^\w.\-]", "_", name))
    arguments: dict[str, Any] = (
        {} if option.cache_bytes is None else {"cache_bytes": option.cache_bytes}
    )
    if _by_config.get():
        return kv.Storage.from_config({"path": path, **arguments})
    return kv.Storage(path, reset_slots=option.reset_slots, **arguments)


@contextlib.contextmanager
def made_by_config() -> Iterator[None]:
    """Marks folders of columns as named by a file, so that they need consent and are not made."""
    token = _by_config.set(True)
    try:
        yield
    finally:
        _by_config.reset(token)


def table_options(column: OwnRowsCategorical) -> dict[str, Any]:
    """Returns the options that a column gives the table of its own rows."""
    option = column.ev_option
    return {
        "shards": column.partition_num or 0,
        "step_clock": isinstance(option.eviction, MaxAge),
        "admission": option.admission,
        **{name: getattr(option, name) for name in RowOptions.names()},
    }


class Evictor:
    """Evicts own rows after a commit, as the column's options say.

    Args:
        name: The name of the rows, the same on every worker.
    """

    def __init__(
        self, column: OwnRowsCategorical, dim: int, static: Callable[[], Any], name: str
    ) -> None:
        self._column = column
        self._dim = dim
        self._static = static
        self._name = name

    def __call__(self, table: tf.Tensor, anchor: tf.Tensor) -> tf.Tensor:
        """Evicts from a table after a commit. Returns the anchor, computed after the eviction."""
        option = self._column.ev_option.evict_option
        if option is None:
            return anchor
        arguments = core_arguments(option.eviction())
        keys, rows = tf_ops.evict(
            table,
            self._dim,
            max_age=arguments["max_age"],
            min_l2=arguments["min_l2"],
            every=option.every,
            after=anchor,
        )
        if self._column.demote_blend:
            # Each worker has a copy of all static rows.
            communicator = communicators.current()
            keys, _ = communicator.all_gather(keys, f"{self._name}.evicted.keys")
            rows, _ = communicator.all_gather(rows, f"{self._name}.evicted.rows")
            done = self._blend(keys, rows)
            with tf.control_dependencies([] if tf.executing_eagerly() else [done]):
                anchor = tf.identity(anchor)
        # The keys are used here, so that TensorFlow does not prune the eviction.
        return anchor + 0.0 * tf.cast(tf.size(keys), tf.float32)

    def _blend(self, keys: tf.Tensor, rows: tf.Tensor) -> Any:
        """Moves static rows towards removed rows, as if these had been removed one by one."""
        static = self._static()
        buckets, places = tf.unique(self._column.buckets_of(keys))
        ones = tf.ones_like(places, tf.float32)
        counts = tf.math.unsorted_segment_sum(ones, places, tf.size(buckets))[:, tf.newaxis]
        means = tf.math.unsorted_segment_sum(rows, places, tf.size(buckets)) / counts
        # The share by which k equal rows of one bucket would move its static row, one after
        # another. Their mean stands for each of them.
        share = 1.0 - (1.0 - self._column.demote_blend) ** counts
        moves = share * (means - tf.gather(static, buckets))
        return static.scatter_add(tf.IndexedSlices(moves, buckets))


class OwnRows(Table):
    """The table of the own rows of a layer's column.

    Args:
        name: The name for messages and the folder of a storage.
    """

    def __init__(
        self,
        column: OwnRowsCategorical,
        dim: int,
        static: Callable[[], Any],
        *,
        owners: int,
        owner: int,
        name: str,
    ) -> None:
        self._evict = Evictor(column, dim, static, f"sok_embed.{name}")
        spec = TableSpec(
            dim=dim,
            initializer=NOTHING.bounds,
            owners=owners,
            owner=owner,
            storage=open_storage(column, name),
            name=name,
            **table_options(column),
        )
        self._create(spec, None)

    def commit(
        self, anchor: tf.Tensor, steps: tf_ops.RuleSteps, redemption: tf_ops.Redemption
    ) -> tf.Tensor:
        """Applies the deposited gradients, and evicts."""
        return self._evict(self.resource_handle, super().commit(anchor, steps, redemption))
