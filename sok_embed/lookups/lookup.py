"""The one way from keys to vectors: a table, the anchor that trains it, and the exchange.

With one worker a lookup reads its table. With several, each worker sends the distinct keys of its
batch to their owners, these look them up, and the rows come back. Tables differ in how their owner
looks keys up, and in the values that it receives beside the keys; the rest is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.communicators import Communicator
from sok_embed.training import strategies
from sok_embed.training.anchor_parts import own_part, parts_of
from sok_embed.training.commit import Commit, TrainedTable, trained_anchor


class SharedTable(TrainedTable, Protocol):
    """One worker's part of a table: a `Table`, an `AdaptiveTable`, or what has these."""

    dim: int
    owners: int
    owner: int

    @property
    def counts_keys(self) -> bool:
        """Returns whether an admission counts the keys of lookups."""

    @property
    def resource_handle(self) -> tf.Tensor:
        """The handle of the table for ops."""


class Call(NamedTuple):
    """The options of one lookup: where its gradient goes, and whether it makes rows.

    Attributes:
        anchor: The anchor, which gets the gradient of the vectors. `None`: there is no gradient.
        trains: True if keys get rows, and are counted.
    """

    anchor: tf.Tensor | None
    trains: bool


class Column(NamedTuple):
    """A value of each key in a request, beside the key.

    Attributes:
        values: Integers of the shape of the keys. `None`: nothing is said, and a table that lies
            in this process is told so.
        missing: The value of each key, for a table of another worker, where nothing is said.
        of_equals: Makes one value of those of equal keys: `tf.math.unsorted_segment_sum` or
            `tf.math.unsorted_segment_max`.
    """

    values: tf.Tensor | None
    missing: int = 0
    of_equals: Callable[..., tf.Tensor] = tf.math.unsorted_segment_max


class Read(Protocol):
    """The function by which the owner of keys looks them up."""

    def __call__(
        self, call: Call, dtype: tf.DType, keys: tf.Tensor, *columns: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns vectors of keys.

        Args:
            call: The options of the lookup.
            dtype: The dtype of the vectors, `tf.float32` or `tf.bfloat16`.
            keys: int64 of any shape.
            *columns: Values of the shape of the keys. Those of a request that has come from a
                worker are int64.

        Returns:
            `keys.shape + [dim]`.
        """


class AnchoredLookup:
    """The base of lookups by way of an anchor, on one worker or several.

    Args:
        host: The owner of the tables, as a message begins: `"Layer 'items'"`.
        owner: The worker that they were made for.
        owners: The number of workers at that time.
    """

    anchor: Any

    def __init__(self, host: str, owner: int, owners: int) -> None:
        self._host = host
        self._made_for = (owner, owners)

    def _make_anchor(self, make: Callable[..., Any], commit: Commit, **arguments: Any) -> Any:
        """Makes the variable whose constraint is a commit; see `TableLookup.make_anchor`."""
        self.anchor = make(
            shape=(strategies.workers_summed() * tf_ops.ANCHOR_SIZE,),
            dtype=tf.float32,
            initializer=_zeros,
            constraint=commit,
            **arguments,
        )
        if isinstance(self.anchor, keras.Variable):
            trained_anchor(self.anchor)
        return self.anchor

    def begin(self, trainable: bool, training: bool) -> Call:
        """Returns the options of a call.

        Args:
            trainable: True if the host is trainable. A frozen one takes no gradient and makes no
                rows.
            training: True for a call of training.

        Raises:
            ValueError: If the strategy in scope sums gradients over workers, and the anchor was
                made outside of it.
        """
        if not (trainable and self.anchor.trainable):
            return Call(None, False)
        parts, workers = parts_of(self.anchor), strategies.workers_summed()
        if workers > 1 and parts != workers:
            raise ValueError(
                f"{self._host}: expected to be built inside of the scope of the strategy that it "
                f"is called under, of {workers} workers. Received: one that was built outside. "
                "Make the model within `with strategy.scope():`."
            )
        return Call(own_part(trained_anchor(self.anchor), parts, self._made_for[0]), training)

    def communicator(self) -> Communicator:
        """Returns the communicator of the process.

        Raises:
            ValueError: If the tables were made for another.
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
        read: The function by which the owner looks keys up. `None`: `tf_ops.lookup`, with
            `count_columns`.
        key_limit: The limit of keys, as for `tf_ops.unique_and_partition`.
        buckets: The buckets, as for `tf_ops.unique_and_partition`.

    Attributes:
        table: The part of this worker.
        read: The function by which the owner looks keys up.
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
        self.read = read or read_rows(table)
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
            optimizer: The optimizer, as for `Commit`.
            static: The static rows, as for `Commit`.
            **arguments: More of `make`, its name among them.

        Returns:
            The result of `make`.
        """
        commit = Commit(self.table, optimizer, static=static)
        return self._make_anchor(make, commit, **arguments)

    def vectors(
        self,
        call: Call,
        keys: tf.Tensor,
        columns: Sequence[Column] = (),
        dtype: tf.DType = tf.float32,
        part: str = "",
    ) -> tf.Tensor:
        """Looks keys up. Collective, if there are several workers.

        Args:
            call: The call, from `begin`.
            keys: int64 of any shape.
            columns: The values for the owners beside each key.
            dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.
            part: The name of this one among the exchanges of one call of the host; the same on
                every worker.

        Returns:
            `keys.shape + [dim]`.
        """
        communicator = self.communicator()
        if communicator.size == 1:
            # The ops have no float16.
            read_type = tf.float32 if dtype == tf.float16 else dtype
            values = [column.values for column in columns]
            return tf.cast(self.read(call, read_type, keys, *values), dtype)
        # The same on every worker; TensorFlow numbers the calls within a graph.
        name = f"sok_embed.{self.table.name}{part}"
        request = self.request(keys, columns, communicator.size)
        asked, splits = communicator.all_to_all(request.rows, request.splits, f"{name}.keys")
        fields = [asked[:, i] for i in range(1 + len(columns))] if columns else [asked]
        found = self.read(call, tf.float32, *fields)
        rows, _ = communicator.all_to_all(found, splits, f"{name}.rows")
        return self.shaped(tf.cast(tf_ops.expand(rows, request.inverse), dtype), keys)

    def count_columns(self, counts: tf.Tensor | None = None) -> tuple[Column, ...]:
        """Returns what owners are told of each key so that an admission counts all of them.

        Args:
            counts: The number of keys of a batch that each key stands for. `None`: 1 each.
        """
        if not self.table.counts_keys:
            return ()
        return (Column(counts, 1, tf.math.unsorted_segment_sum),)

    def shaped(self, rows: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows `[n, dim]` of keys flattened to `[n]`, in the shape of the keys."""
        dim = self.table.dim
        vectors = tf.reshape(rows, tf.concat([tf.shape(keys), [dim]], 0))
        vectors.set_shape([*keys.shape, dim])
        return vectors

    def request(self, keys: tf.Tensor, columns: Sequence[Column], workers: int) -> Request:
        """Returns the request of a worker to the others.

        Args:
            keys: int64 of any shape.
            columns: The values for the owners beside each key.
            workers: The number of workers.
        """
        keys = tf.reshape(keys, [-1])
        part = tf_ops.unique_and_partition(keys, workers, self._key_limit, self._buckets)
        if not columns:
            return Request(part.unique_keys, part.splits, part.inverse)
        distinct = tf.size(part.unique_keys)
        fields = [part.unique_keys]
        for column in columns:
            if column.values is None:
                values = tf.fill(tf.shape(keys), tf.constant(column.missing, tf.int64))
            else:
                values = tf.reshape(column.values, [-1])
            fields.append(tf.cast(column.of_equals(values, part.inverse, distinct), tf.int64))
        return Request(tf.stack(fields, 1), part.splits, part.inverse)


class CollectionLookup(AnchoredLookup):
    """Pools the vectors of many features, in three messages whatever the number of tables.

    Args:
        plan: The plan that all calls have in common.
        tables: The part of this worker.
        host: The owner of the tables, as a message begins: `"Layer 'fields'"`.
        name: The name of its exchanges; the same on every worker.
        owner: This worker.
        exchange_dtype: The dtype of rows between workers, `tf.float32` or `tf.bfloat16`.
    """

    def __init__(
        self,
        plan: tf_ops.CollectionPlan,
        tables: CollectedTables,
        host: str,
        name: str,
        owner: int,
        exchange_dtype: tf.DType = tf.float32,
    ) -> None:
        super().__init__(host, owner, plan.workers)
        self._plan = plan
        self._packed = plan.workers > 1 and exchange_dtype == tf.bfloat16
        self._tables = tables
        self._name = name

    def make_anchor(self, make: Callable[..., Any], commit: Commit, **arguments: Any) -> Any:
        """Makes the variable that stands for all tables.

        Args:
            make: The `add_weight` of a Keras layer.
            commit: The constraint of the anchor.
            **arguments: More of `make`, its name among them.

        Returns:
            The result of `make`.
        """
        return self._make_anchor(make, commit, **arguments)

    def pooled(
        self,
        call: Call,
        batch: PooledBatch,
        *,
        concat: bool = False,
        dtype: tf.DType = tf.float32,
    ) -> list[tf.Tensor]:
        """Returns a vector of each bag. Collective, if there are several workers.

        Args:
            call: The call, from `begin`.
            batch: The batch of all features.
            concat: True to concatenate, as for `tf_ops.collection_pool`.
            dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.

        Returns:
            `[bags, dim]` for each feature; with `concat` one, of `[bags, sum of dims]`.
        """
        communicator = self.communicator()
        pools = self._plan.pools(batch.bags, batch.weights)
        request = tf_ops.collection_request(
            self._plan,
            batch.keys,
            batch.bags,
            batch.splits,
            combiners=batch.combiners,
            pools=pools,
            trains=call.anchor is not None,
        )
        message, splits = request.message, request.splits
        name = f"sok_embed.{self._name}"
        if communicator.size > 1:
            message, splits = communicator.all_to_all(message, splits, f"{name}.keys")
        rows, row_splits = tf_ops.collection_serve(
            self._tables.handles,
            self._plan,
            pools,
            message,
            splits,
            call.trains,
            self._tables.trainable,
            call.anchor,
            packed=self._packed,
        )
        if communicator.size > 1:
            # Gradients go another way than rows came where a table lies on every worker.
            rows = communicator.exchange(rows, row_splits, request.gradient_splits, name)
        # The ops have no float16.
        pooled = tf_ops.collection_pool(
            self._plan,
            rows,
            request.asked,
            batch.combiners,
            batch.weights,
            concat=concat,
            packed=self._packed,
            dtype=tf.float32 if dtype == tf.float16 else dtype,
        )
        return [tf.cast(vectors, dtype) for vectors in pooled]


class CollectedTables(Protocol):
    """One worker's part of the tables of a collection."""

    @property
    def trainable(self) -> Sequence[bool]:
        """True for each table that is trained at all."""

    @property
    def handles(self) -> tf_ops.CollectionTables:
        """The handles of the tables for ops."""


class PooledBatch(NamedTuple):
    """The inputs of a batch for each feature.

    Attributes:
        keys: int32, int64 or uint64 of any shape.
        bags: The bags, as for `tf_ops.collection_request`.
        splits: The splits, as for `tf_ops.collection_request`.
        combiners: The combiners, as for `tf_ops.collection_pool`.
        weights: The weights, as for `tf_ops.collection_pool`.
    """

    keys: Sequence[tf.Tensor]
    bags: Sequence[int]
    splits: Sequence[tf.Tensor]
    combiners: Sequence[str]
    weights: Sequence[tf.Tensor | None]


def _zeros(shape: Any, dtype: Any = None) -> tf.Tensor:
    """Returns zeros: an initializer, for Keras and for TF1 graphs."""
    return tf.zeros(shape, dtype or tf.float32)


class Request(NamedTuple):
    """Distinct keys, by owner.

    Attributes:
        rows: int64 `[u]`, keys; `[u, 1 + c]` with c columns.
        splits: int32, how many rows each worker is asked for.
        inverse: int32 `[n]`, the row of each key of the batch.
    """

    rows: tf.Tensor
    splits: tf.Tensor
    inverse: tf.Tensor


def read_rows(table: SharedTable, default: str | int | None = None) -> Read:
    """Returns the lookup of keys that have a row each. Its column is that of `count_columns`.

    Args:
        table: The part of this worker.
        default: The vector of keys without a row in calls that do not train: `"zeros"`; or another
            key of this worker, whose vector it is. `None`: the vector that training would start
            from.
    """

    def read(call: Call, dtype: tf.DType, keys: tf.Tensor, *columns: tf.Tensor | None) -> tf.Tensor:
        handle = table.resource_handle
        (counts,) = columns or (None,)
        found = tf_ops.lookup(
            handle, keys, table.dim, call.trains, dtype, call.anchor, counts
        ).embeddings
        if default is None or call.trains:
            return found
        if default == "zeros":
            vector = tf.zeros([table.dim], dtype)
        else:
            key = tf.constant(default, tf.int64)
            vector = tf_ops.lookup(handle, key, table.dim, False, dtype).embeddings
        exists = tf_ops.metadata(handle, keys).exists
        return tf.where(exists[..., tf.newaxis], found, vector)

    return read


def in_parts(
    second: tf.Tensor, looked_up: Sequence[Callable[..., tf.Tensor]], *columns: tf.Tensor
) -> tf.Tensor:
    """Looks some positions up in one way and the others in another.

    Args:
        second: Bool `[n]`, whether a position is looked up in the second way.
        looked_up: The two ways: each returns rows for its positions of the columns.
        *columns: `[n]`, what the ways take.

    Returns:
        `[n, dim]`, all rows in their places.
    """
    places = [tf.cast(tf.where(at)[:, 0], tf.int32) for at in (~second, second)]
    rows = [
        look_up(*(tf.gather(column, at) for column in columns))
        for look_up, at in zip(looked_up, places, strict=True)
    ]
    return tf.dynamic_stitch(places, rows)
