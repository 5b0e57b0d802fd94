"""Looks keys up in a table, over all workers, with the anchor that trains the table.

With one worker a lookup of single keys reads its table. All other lookups have three parts: the
distinct keys of a batch go to their owners, these read the rows, and the vectors of bags come back,
see `exchange.py`. Kinds of tables differ in how their owner looks keys up, and in the numbers that
are sent with the keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.arguments import shown
from sok_embed.communicators import Communicator
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.anchors import watched
from sok_embed.keras_bridge.layer_calls import refuse_call_without_values
from sok_embed.lookups.bags import Bags
from sok_embed.lookups.exchange import OnGpu, SharedTable, TableQuery, look_up
from sok_embed.lookups.seen_keys import note_keys
from sok_embed.tf_ops.served import ServedRows, is_serving
from sok_embed.training.commit import Commit
from sok_embed.training.strategies import own_part, parts_of, workers_summed


class LookupContext(NamedTuple):
    """The training of one lookup: whether it makes rows, and where its gradient goes.

    Attributes:
        anchor: The anchor, which gets the gradient of the vectors. `None`: there is no gradient.
        trains: True if keys without a row get one, and keys are counted.
        counted: True if the lookup is one that is computed again, for a gradient, so that its keys
            have been counted before.
    """

    anchor: tf.Tensor | None
    trains: bool
    counted: bool = False

    def counts(self, table: SharedTable, asked: tf_ops.TableKeys) -> tf.Tensor | None:
        """Returns the counts of keys for the op that looks them up: of counted keys, zeros."""
        if self.counted and table.counts_keys:
            return tf.zeros_like(asked.keys, tf.int64)
        return asked.counts


# A function that looks up keys whose rows lie on this worker. Its arguments are the context of the
# lookup, from `begin`, the dtype of the vectors, `tf.float32` or `tf.bfloat16`, and the keys.
Read = Callable[[LookupContext, tf.DType, tf_ops.TableKeys], tf_ops.Lookup]


class Lookup:
    """The base of lookups: the anchor, and the checks of each call.

    Args:
        host: The owner of the tables, as a message begins: `"Layer 'items'"`.
        owner: The number of the worker for which the tables were made.
        owners: The number of workers at that time.
    """

    anchor: Any

    def __init__(self, host: str, owner: int, owners: int) -> None:
        self._host = host
        self._made_for = (owner, owners)

    def make_anchor(self, make: Callable[..., Any], commit: Commit, **arguments: Any) -> Any:
        """Makes the variable that stands for the tables.

        Args:
            make: The `add_weight` of a Keras layer, or `tf.compat.v1.get_variable`.
            commit: The constraint of the anchor.
            **arguments: Further arguments of `make`, such as the name.

        Returns:
            The result of `make`.
        """
        self.anchor = make(
            shape=(workers_summed() * tf_ops.ANCHOR_SIZE,),
            dtype=tf.float32,
            initializer=_zeros,
            constraint=commit,
            **arguments,
        )
        if isinstance(self.anchor, keras.Variable):
            watched(self.anchor)
        return self.anchor

    def begin(self, trainable: bool, training: Any) -> LookupContext:
        """Returns the context of a call.

        Args:
            trainable: True if the host is trainable. A frozen host takes no gradient and makes no
                rows.
            training: True if the call is part of training. `None` is `False`.

        Raises:
            ValueError: For a tensor `training`; if the strategy in scope sums gradients over
                workers, and the anchor was made outside of it; for a model whose `call` is a
                `tf.function` that Keras traces to build its layers.
        """
        trains = check_training(self._host, training)
        refuse_call_without_values(self._host)
        if is_serving() or not (trainable and self.anchor.trainable):
            return LookupContext(None, False)
        parts, workers = parts_of(self.anchor), workers_summed()
        if workers > 1 and parts != workers:
            raise ValueError(
                f"{self._host}: expected to be built inside of the scope of the strategy that it "
                f"is called under, of {workers} workers. Received: a layer that was built outside. "
                "Make the model within `with strategy.scope():`."
            )
        anchor = watched(self.anchor)
        if parts > 1:
            anchor = own_part(anchor, self._made_for[0])
        return LookupContext(anchor, trains, trains and callers.recomputing())

    def communicator(self) -> Communicator:
        """Returns the communicator of the process.

        Raises:
            ValueError: If the tables were made for another worker.
        """
        communicator = communicators.current()
        now = (communicator.rank, communicator.size)
        if now != self._made_for:
            raise ValueError(
                f"{self._host}: expected to be worker {self._made_for[0]} of {self._made_for[1]}, "
                f"for which its table was made. Received: worker {now[0]} of {now[1]}. Call "
                "sok_embed.init() before layers are made."
            )
        return communicator


class TableLookup(Lookup):
    """Finds the vectors of keys in one table, wherever its rows lie, and makes its anchor.

    Args:
        host: The owner of the table, as a message begins: `"Layer 'items'"`.
        read: A function that looks keys up on this worker. `None`: each key has a row of its own.

    Attributes:
        table: The part of this worker.
        default: The vector of keys without a row in calls that do not train: `"zeros"`; or another
            key of this worker, whose vector it is. `None`: the vector that training would start
            from. For lookups without `read`.
    """

    def __init__(
        self,
        table: SharedTable,
        host: str,
        read: Read | None = None,
        *,
        key_limit: int = 0,
        buckets: int = 0,
    ) -> None:
        super().__init__(host, table.owner, table.owners)
        self.table = table
        self.default: str | int | None = None
        self._read = read
        self._key_limit = key_limit
        self._buckets = buckets

    def read(
        self, context: LookupContext, dtype: tf.DType, asked: tf_ops.TableKeys
    ) -> tf_ops.Lookup:
        """Looks up keys whose rows lie on this worker."""
        if self._read is not None:
            return self._read(context, dtype, asked)
        table, handle, keys = self.table, self.table.resource_handle, asked.keys
        if self.default == "zeros" and isinstance(handle, ServedRows):
            # Zeros need no start vectors.
            return tf_ops.Lookup(tf.cast(handle.find(keys)[0], dtype), None)
        counts = context.counts(table, asked)
        device = getattr(table, "lookup_device", None)
        # Keys and rows of an exchange are in the host's memory.
        by_host = counts is not None or asked.reports or isinstance(handle, ServedRows)
        trains, anchor = context.trains, context.anchor
        if device is None or by_host:
            found = tf_ops.lookup(
                handle, keys, table.dim, trains, dtype, anchor, counts, asked.reports
            )
        else:
            rows = tf_ops.lookup_on_gpu(
                handle, keys, table.dim, trains, device, anchor=anchor, dtype=dtype
            )
            found = tf_ops.Lookup(rows, None)
        if self.default is None or trains:
            return found
        if self.default == "zeros":
            vector = tf.zeros([table.dim], dtype)
        else:
            key = tf.constant(self.default, tf.int64)
            vector = tf_ops.lookup(handle, key, table.dim, False, dtype).embeddings
        exists = tf_ops.exists(handle, keys)
        return found._replace(
            embeddings=tf.where(exists[..., tf.newaxis], found.embeddings, vector)
        )

    def vectors(
        self,
        context: LookupContext,
        keys: tf.Tensor,
        routes: tf.Tensor | None = None,
        dtype: tf.DType = tf.float32,
    ) -> tf.Tensor:
        """Looks keys up. Collective, if there are several workers.

        Args:
            context: The context of the lookup, from `begin`.
            keys: int64 of any shape.
            routes: Integers of the shape of the keys, the number that is sent with each key to its
                owner.
            dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.

        Returns:
            `keys.shape + [dim]`.
        """
        note_keys(self.table, keys)
        if is_serving() or self.communicator().size == 1:
            # The ops have no float16.
            of_ops = tf.float32 if dtype == tf.float16 else dtype
            found = self.read(context, of_ops, tf_ops.TableKeys(keys, said=routes))
            return tf.cast(found.embeddings, dtype)
        return self.shaped(self._look_up(context, self.query(context, keys, routes), dtype), keys)

    def pooled(
        self, context: LookupContext, bags: Bags, combiner: str, dtype: tf.DType
    ) -> tf.Tensor:
        """Returns a vector of each bag, `[bags, dim]`. Collective, if there are several workers.

        The combiner is `"sum"`, `"mean"`, `"sqrtn"` or `"max"`. Sums are in float32, whatever the
        dtype of the result.
        """
        note_keys(self.table, bags.keys)
        kind = tf_ops.BAG_A_ROW if bags.splits is None else tf_ops.BAG_BY_SPLITS
        query = self.query(context, bags.keys)._replace(
            bags=kind, splits=bags.splits, weights=bags.weights, combiner=combiner
        )
        return self._look_up(context, query, dtype)

    def query(
        self, context: LookupContext, keys: tf.Tensor, routes: tf.Tensor | None = None
    ) -> TableQuery:
        """Returns the request of keys for `look_up`, a bag for each key."""
        self.communicator()  # raises if the table was made for another
        return TableQuery(
            self.table,
            functools.partial(self.read, context, tf.float32),
            keys,
            routes,
            buckets=self._buckets,
            key_limit=self._key_limit,
        )

    def _look_up(self, context: LookupContext, query: TableQuery, dtype: tf.DType) -> tf.Tensor:
        """Returns the vectors of a query; the GPU that the rows lie on reads and pools them."""
        table: Any = self.table
        is_plain = self._read is None and self.default is None and query.routes is None
        device = table.lookup_device or table.exchange_device if is_plain else None
        on_gpu = None
        if device is not None:
            on_gpu = OnGpu(table.resource_handle, device, context.trains, [True], context.anchor)
        (vectors,) = look_up([query], table.name, dtype, on_gpu)
        return vectors

    def shaped(self, rows: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows `[n, dim]` of keys in the shape of the keys, `keys.shape + [dim]`."""
        dim = self.table.dim
        vectors = tf.reshape(rows, tf.concat([tf.shape(keys), [dim]], 0))
        vectors.set_shape([*keys.shape, dim])
        return vectors


def check_training(host: str, training: Any) -> bool:
    """Returns whether a call is for training. Raises ValueError for a tensor."""
    if training is None or isinstance(training, (bool, np.bool_, int)):
        return bool(training)
    raise ValueError(
        f"{host}: expected training to be a Python bool or None. Received: {shown(training)}. "
        "Whether rows are made is decided when the call is traced: pass True or False, and trace a "
        "function for each."
    )


def distinct_rows(keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the row of each distinct key of a call, `[u, dim]`, for regularizers.

    Rows are in the order of first occurrence.

    Args:
        keys: int64 of any shape.
        rows: Floats `keys.shape + [dim]`, equal for equal keys.
    """
    keys = tf.reshape(keys, [-1])
    distinct, inverse = tf.unique(keys)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), inverse, tf.size(distinct))
    return tf.gather(tf.reshape(rows, [-1, rows.shape[-1]]), first)


def _zeros(shape: Any, dtype: Any = None) -> tf.Tensor:
    """Returns zeros: an initializer, for Keras and for TF1 graphs."""
    return tf.zeros(shape, dtype or tf.float32)
