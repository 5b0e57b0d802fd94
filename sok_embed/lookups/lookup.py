"""Looks keys up in a table, over all workers, with the anchor that trains the table.

With one worker a lookup reads its table. With several, each worker sends the distinct keys of its
batch to their owners, these look them up, and the rows come back: see `exchange.py`. Kinds of
tables differ in how their owner looks keys up, and in the numbers that are sent with the keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.communicators import Communicator
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.anchors import watched
from sok_embed.keras_bridge.traced_calls import refuse_call_without_values
from sok_embed.lookups.bags import Bags
from sok_embed.lookups.exchange import Asked, OnGpu, SharedTable, look_up, plan_of
from sok_embed.tf_ops.served import ServedRows, is_serving
from sok_embed.training.commit import Commit
from sok_embed.training.strategies import own_part, parts_of, workers_summed


class Call(NamedTuple):
    """The rights of one lookup in a table.

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


# A function that looks up keys whose rows lie on this worker. Its arguments are the rights of the
# lookup, from `begin`, the dtype of the vectors, `tf.float32` or `tf.bfloat16`, and the keys.
Read = Callable[[Call, tf.DType, tf_ops.TableKeys], tf_ops.Lookup]


class AnchoredLookup:
    """The base of lookups: the anchor, and the checks that all of them make.

    Args:
        host: The owner of the tables, as a message begins: `"Layer 'items'"`.
        owner: The number of the worker for which the tables were made.
        owners: The number of workers at that time.
    """

    anchor: Any

    def __init__(self, host: str, owner: int, owners: int) -> None:
        self._host = host
        self._made_for = (owner, owners)

    def _make_anchor(self, make: Callable[..., Any], commit: Commit, **arguments: Any) -> Any:
        """Makes the variable whose constraint is a commit; see `TableLookup.make_anchor`."""
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

    def begin(self, trainable: bool, training: bool) -> Call:
        """Returns the rights of a call.

        Args:
            trainable: True if the host is trainable. A frozen host takes no gradient and makes no
                rows.
            training: True if the call is part of training.

        Raises:
            ValueError: If the strategy in scope sums gradients over workers, and the anchor was
                made outside of it; for a model whose `call` is a `tf.function` that Keras traces
                to build its layers.
        """
        refuse_call_without_values(self._host)
        if is_serving() or not (trainable and self.anchor.trainable):
            return Call(None, False)
        parts, workers = parts_of(self.anchor), workers_summed()
        if workers > 1 and parts != workers:
            raise ValueError(
                f"{self._host}: expected to be built inside of the scope of the strategy that it "
                f"is called under, of {workers} workers. Received: a layer that was built outside. "
                "Make the model within `with strategy.scope():`."
            )
        anchor = own_part(watched(self.anchor), parts, self._made_for[0])
        return Call(anchor, training, training and callers.recomputing())

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


class TableLookup(AnchoredLookup):
    """Finds the vectors of keys in one table, wherever its rows lie, and makes its anchor.

    Args:
        table: The part of this worker.
        host: The owner of the table, as a message begins: `"Layer 'items'"`.
        read: A function that looks keys up on this worker. `None`: `read_rows`.
        key_limit: The limit of keys, as in `Asked`.
        buckets: The number of buckets, as in `Asked`.

    Attributes:
        table: The part of this worker.
        read: The function that looks keys up on this worker.
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
        self._plain_read = read_rows(table)
        self.read = read or self._plain_read
        self._key_limit = key_limit
        self._buckets = buckets

    def make_anchor(
        self,
        make: Callable[..., Any],
        optimizer: keras.optimizers.Optimizer | None = None,
        *,
        static: Any = None,
        **arguments: Any,
    ) -> Any:
        """Makes the variable that stands for the table.

        Args:
            make: The `add_weight` of a Keras layer, or `tf.compat.v1.get_variable`.
            optimizer: The optimizer of the rows, as for `Commit`.
            static: The variable of static rows, as for `Commit`.
            **arguments: Further arguments of `make`, such as the name.

        Returns:
            The result of `make`.
        """
        commit = Commit(self.table, optimizer, static=static)
        return self._make_anchor(make, commit, **arguments)

    def vectors(
        self,
        call: Call,
        keys: tf.Tensor,
        said: tf.Tensor | None = None,
        dtype: tf.DType = tf.float32,
    ) -> tf.Tensor:
        """Looks keys up. Collective, if there are several workers.

        Args:
            call: The rights of the lookup, from `begin`.
            keys: int64 of any shape.
            said: Integers of the shape of the keys, the number that is sent with each key to its
                owner.
            dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.

        Returns:
            `keys.shape + [dim]`.
        """
        if is_serving() or self.communicator().size == 1:
            found = self.read(call, type_of_ops(dtype), tf_ops.TableKeys(keys, said=said))
            return tf.cast(found.embeddings, dtype)
        asked = self.asked(call, keys, said)
        (rows,) = look_up([asked], self.table.name, dtype, self._on_gpu(call, said))
        return self.shaped(rows, keys)

    def _on_gpu(self, call: Call, said: tf.Tensor | None = None) -> OnGpu | None:
        """Returns the table, if its rows lie on a GPU and are exchanged there; else `None`."""
        device = getattr(self.table, "exchange_device", None)
        if device is None or self.read is not self._plain_read or said is not None:
            return None
        handle = self.table.resource_handle
        return OnGpu(handle, device, call.trains, [True], call.anchor)

    def asked(self, call: Call, keys: tf.Tensor, said: tf.Tensor | None = None) -> Asked:
        """Returns the request of keys for `look_up`, a bag for each key.

        Args:
            call: The rights of the lookup, from `begin`.
            keys: int64 of any shape.
            said: The numbers of the keys, as for `vectors`.
        """
        self.communicator()  # raises if the table was made for another
        return Asked(
            self.table,
            functools.partial(self.read, call, tf.float32),
            keys,
            said,
            buckets=self._buckets,
            key_limit=self._key_limit,
        )

    def pooled(self, call: Call, bags: Bags, combiner: str, dtype: tf.DType) -> tf.Tensor:
        """Returns a vector of each bag, `[bags, dim]`. Collective, if there are several workers.

        Args:
            call: The rights of the lookup, from `begin`.
            bags: The bags of the batch.
            combiner: `"sum"`, `"mean"`, `"sqrtn"` or `"max"`.
            dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`; sums are in
                float32.
        """
        kind = tf_ops.BAG_A_ROW if bags.splits is None else tf_ops.BAG_BY_SPLITS
        asked = self.asked(call, bags.keys)._replace(
            bags=kind, splits=bags.splits, weights=bags.weights, combiner=combiner
        )
        device = getattr(self.table, "lookup_device", None)
        if device is not None and self.read is self._plain_read and not is_serving():
            feature = tf_ops.PooledFeature(0, bags.keys, kind, bags.splits, combiner, bags.weights)
            (vectors,) = tf_ops.lookup_pooled_on_gpu(
                self.table.resource_handle,
                plan_of([asked]),
                [feature],
                device,
                make_rows=call.trains,
                trainable=[True],
                anchor=call.anchor,
                dtype=type_of_ops(dtype),
            )
            return tf.cast(vectors, dtype)
        (vectors,) = look_up([asked], self.table.name, dtype, self._on_gpu(call))
        return vectors

    def shaped(self, rows: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows `[n, dim]` of keys in the shape of the keys, `keys.shape + [dim]`."""
        dim = self.table.dim
        vectors = tf.reshape(rows, tf.concat([tf.shape(keys), [dim]], 0))
        vectors.set_shape([*keys.shape, dim])
        return vectors


def type_of_ops(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which ops make vectors: they make float32 in place of float16."""
    return tf.float32 if dtype == tf.float16 else dtype


def _zeros(shape: Any, dtype: Any = None) -> tf.Tensor:
    """Returns zeros: an initializer, for Keras and for TF1 graphs."""
    return tf.zeros(shape, dtype or tf.float32)


def read_rows(table: SharedTable, default: str | int | None = None) -> Read:
    """Returns a function that looks up keys in a table in which each key has a row of its own.

    Args:
        table: The part of this worker.
        default: The vector of keys without a row in calls that do not train: `"zeros"`; or another
            key of this worker, whose vector it is. `None`: the vector that training would start
            from.
    """

    def read(call: Call, dtype: tf.DType, asked: tf_ops.TableKeys) -> tf_ops.Lookup:
        handle, keys = table.resource_handle, asked.keys
        if default == "zeros" and isinstance(handle, ServedRows):
            # Zeros need no start vectors.
            return tf_ops.Lookup(tf.cast(handle.find(keys)[0], dtype), None)
        counts = call.counts(table, asked)
        device = getattr(table, "lookup_device", None)
        # Keys and rows of an exchange are in the host's memory.
        by_host = counts is not None or asked.reports or isinstance(handle, ServedRows)
        if device is None or by_host:
            found = tf_ops.lookup(
                handle, keys, table.dim, call.trains, dtype, call.anchor, counts, asked.reports
            )
        else:
            rows = tf_ops.lookup_on_gpu(
                handle, keys, table.dim, call.trains, device, anchor=call.anchor, dtype=dtype
            )
            found = tf_ops.Lookup(rows, None)
        if default is None or call.trains:
            return found
        if default == "zeros":
            vector = tf.zeros([table.dim], dtype)
        else:
            key = tf.constant(default, tf.int64)
            vector = tf_ops.lookup(handle, key, table.dim, False, dtype).embeddings
        exists = tf_ops.exists(handle, keys)
        return found._replace(
            embeddings=tf.where(exists[..., tf.newaxis], found.embeddings, vector)
        )

    return read
