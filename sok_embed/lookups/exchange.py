"""Looks up the bags of many tables in three parts, wherever rows lie and however many workers are.

The keys go to the owners of their rows, the owners read the rows, and vectors come back: for all
tables at once. With one worker nothing is sent. A worker that fails sends its error in the message,
and all workers raise it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.lookups.seen_keys import is_on_disk, note_request, requests_ahead
from sok_embed.lookups.served_bags import served_bags
from sok_embed.tf_ops.served import is_serving
from sok_embed.training.commit import TrainedTable
from sok_embed.training.same_model import Hosted, check_same_hosts, fingerprint_of


class PooledBatch(NamedTuple):
    """The keys of each feature of a batch, and the bags that they are in.

    Attributes:
        keys: int32, int64 or uint64 of any shape.
        bags: The kinds of bags, as for `tf_ops.collection_request`.
        splits: The row splits, as for `tf_ops.collection_request`.
        combiners: The combiners, as for `tf_ops.collection_pool`.
        weights: The weights, as for `tf_ops.collection_pool`.
        routes: The numbers that are sent with keys, as `said` of `tf_ops.collection_request`.
    """

    keys: Sequence[tf.Tensor]
    bags: Sequence[int]
    splits: Sequence[tf.Tensor]
    combiners: Sequence[str]
    weights: Sequence[tf.Tensor | None]
    routes: Sequence[tf.Tensor] = ()


class _Asked(NamedTuple):
    """The keys that workers ask this one for.

    Attributes:
        request: The own request.
        pools: The `pools` of the request.
        message: The requests of all workers that have arrived.
        splits: The words of the message by worker.
    """

    request: tf_ops.CollectionRequest
    pools: Sequence[bool]
    message: tf.Tensor
    splits: tf.Tensor


class OnHost(NamedTuple):
    """Tables whose rows this worker reads and pools in the memory of the host.

    Attributes:
        serve: A function that reads the rows that all workers have asked this one for. Its
            arguments are the `pools` of the request, the message that has arrived, and its splits.
        tables: The tables of the plan.
        packed: True for rows of bfloat16 between workers, as for `tf_ops.collection_pool`.
    """

    serve: Callable[[Sequence[bool], tf.Tensor, tf.Tensor], tf_ops.CollectionRows]
    tables: Sequence[Any]
    packed: bool = False

    @property
    def on_disk(self) -> list[bool]:
        """True for each table that lies in a storage."""
        return [is_on_disk(each) for each in self.tables]

    def rows(self, plan: tf_ops.CollectionPlan, asked: _Asked) -> tf_ops.CollectionRows:
        """Returns the rows that workers ask for."""
        return self.serve(asked.pools, asked.message, asked.splits)

    def pooled(
        self,
        plan: tf_ops.CollectionPlan,
        batch: PooledBatch,
        rows: tf_ops.CollectionRows,
        asked: tf.Tensor,
        concat: bool,
        dtype: tf.DType,
    ) -> list[tf.Tensor]:
        """Returns the vectors of bags, of rows that have come back."""
        return tf_ops.collection_pool(
            plan,
            rows,
            asked,
            batch.combiners,
            batch.weights,
            concat=concat,
            packed=self.packed,
            dtype=dtype,
        )


class OnGpu(NamedTuple):
    """Tables in the memory of this worker's GPU, which reads and pools their rows.

    Attributes:
        tables: The handle of one table, or the handles of a collection.
        device: The name of the GPU, as TensorFlow has it.
        make_rows: True if a key without a row gets one.
        trainable: True for each table that is trained.
        anchor: The anchor, which gets the gradient of the rows. `None`: rows get no gradient.
    """

    tables: tf.Tensor | tf_ops.CollectionTables
    device: str
    make_rows: bool
    trainable: Sequence[bool]
    anchor: tf.Tensor | None

    def rows(self, plan: tf_ops.CollectionPlan, asked: _Asked) -> tf_ops.CollectionRows:
        """Returns the rows that workers ask for."""
        return tf_ops.collection_serve_on_gpu(
            self.tables,
            plan,
            asked.pools,
            asked.message,
            asked.splits,
            self.device,
            make_rows=self.make_rows,
            trainable=self.trainable,
            anchor=self.anchor,
        )

    def pooled(
        self,
        plan: tf_ops.CollectionPlan,
        batch: PooledBatch,
        rows: tf_ops.CollectionRows,
        asked: tf.Tensor,
        concat: bool,
        dtype: tf.DType,
    ) -> list[tf.Tensor]:
        """Returns the vectors of bags, of rows that have come back."""
        return tf_ops.collection_pool_on_gpu(
            self.tables,
            plan,
            rows,
            asked,
            batch.bags,
            batch.splits,
            batch.combiners,
            batch.weights,
            self.device,
            concat=concat,
            dtype=dtype,
        )

    def read_and_pooled(
        self, plan: tf_ops.CollectionPlan, batch: PooledBatch, concat: bool, dtype: tf.DType
    ) -> list[tf.Tensor]:
        """Returns the vectors of bags of the only worker, by one op for all three parts."""
        splits = iter(batch.splits)
        features = [
            tf_ops.PooledFeature(
                number,
                keys,
                batch.bags[number],
                next(splits) if batch.bags[number] == tf_ops.BAG_BY_SPLITS else None,
                batch.combiners[number],
                batch.weights[number],
            )
            for number, keys in enumerate(batch.keys)
        ]
        return tf_ops.lookup_pooled_on_gpu(
            self.tables,
            plan,
            features,
            self.device,
            make_rows=self.make_rows,
            trainable=self.trainable,
            anchor=self.anchor,
            concat=concat,
            dtype=dtype,
        )


# Changes the fingerprint of plans whose rows are sent between GPUs: other workers would wait for
# another exchange.
_BETWEEN_GPUS = 1


def pooled_rows(
    plan: tf_ops.CollectionPlan,
    batch: PooledBatch,
    tables: Sequence[Hosted],
    place: OnHost | OnGpu,
    name: str,
    *,
    trains: bool = True,
    concat: bool = False,
    dtype: tf.DType = tf.float32,
) -> list[tf.Tensor]:
    """Returns a vector of each bag. Collective, if there are several workers.

    Args:
        plan: The plan of the tables and features.
        batch: The keys of all features.
        tables: The tables, or collections of tables, that the keys are looked up in.
        place: The memory that the rows of this worker lie in. Workers may have different ones
            unless `communicator.exchanges_on_gpu`.
        name: A name that tells the exchange from others; the same on every worker.
        trains: True if rows get gradients, as for `tf_ops.collection_request`.
        concat: True for one vector an example, as for `tf_ops.collection_pool`.
        dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.

    Returns:
        `[bags, dim]` for each feature; with `concat` one, of `[bags, sum of dims]`.

    Raises:
        tf.errors.InternalError: If a worker has failed, with its number and its error.
        ValueError: In eager calls, if the layer of the tables differs on a worker.
        tf.errors.FailedPreconditionError: In functions, likewise.
    """
    name = f"sok_embed.{name}"
    of_ops = tf.float32 if dtype == tf.float16 else dtype  # the ops have no float16
    if isinstance(place, OnGpu) and communicators.size() == 1:
        pooled = place.read_and_pooled(plan, batch, concat, of_ops)
    else:
        plan = _agreed(plan, tables, place)
        asked = _to_owners(plan, batch, place, name, trains)
        rows = _to_askers(asked.request, place.rows(plan, asked), name)
        pooled = place.pooled(plan, batch, rows, asked.request.asked, concat, of_ops)
    return [tf.cast(vectors, dtype) for vectors in pooled]


def _agreed(
    plan: tf_ops.CollectionPlan, tables: Sequence[Hosted], place: OnHost | OnGpu
) -> tf_ops.CollectionPlan:
    """Returns the plan with the fingerprint that messages of all workers must have."""
    communicator = communicators.current()
    if communicator.size == 1:
        return plan
    if tf.executing_eagerly():
        check_same_hosts(tables)
    fingerprint = plan.fingerprint ^ fingerprint_of(tables)
    if isinstance(place, OnGpu) and communicator.exchanges_on_gpu:
        # A worker whose rows lie on the host would wait for another exchange.
        fingerprint ^= _BETWEEN_GPUS
    return dataclasses.replace(plan, fingerprint=fingerprint)


def _to_owners(
    plan: tf_ops.CollectionPlan,
    batch: PooledBatch,
    place: OnHost | OnGpu,
    name: str,
    trains: bool,
) -> _Asked:
    """Sends the distinct keys of each table to the owners of their rows."""
    pools, communicator = plan.pools(batch.bags, batch.weights), communicators.current()
    on_disk = place.on_disk if isinstance(place, OnHost) and communicator.size > 1 else []
    request = tf_ops.collection_request(
        plan,
        batch.keys,
        batch.bags,
        batch.splits,
        combiners=batch.combiners,
        pools=pools,
        trains=trains,
        said=batch.routes,
        ahead=requests_ahead(),
        on_disk=on_disk if any(on_disk) else (),
    )
    if isinstance(place, OnHost):
        note_request(place.tables, batch.keys, request.asked)
    message, splits = request.message, request.splits
    if communicator.size > 1:
        message, splits = communicator.all_to_all(message, splits, f"{name}.keys")
    if any(on_disk):
        to_come = tf_ops.collection_to_come(message, splits, len(on_disk))
        noted = [
            tf_ops.prefetch(table.resource_handle, keys, later=True)
            for table, keys in zip(place.tables, to_come, strict=True)
            if is_on_disk(table)
        ]
        if not tf.executing_eagerly():
            with tf.control_dependencies(noted):  # a TF1 graph runs what is asked for alone
                splits = tf.identity(splits)
    return _Asked(request, pools, message, splits)


def _to_askers(
    request: tf_ops.CollectionRequest, rows: tf_ops.CollectionRows, name: str
) -> tf_ops.CollectionRows:
    """Sends rows to the workers that have asked for them."""
    communicator = communicators.current()
    if communicator.size == 1:
        return rows
    # If a table lies on every worker, its gradients go to all of them, unlike its rows.
    sent, splits = communicator.exchange(*rows, request.gradient_splits, name)
    return tf_ops.CollectionRows(sent, splits)


class SharedTable(TrainedTable, Protocol):
    """One worker's part of a table: a `Table`, an `AdaptiveTable` or a similar object."""

    dim: int
    owners: int
    owner: int

    @property
    def counts_keys(self) -> bool:
        """Returns whether an admission counts the keys of lookups."""

    @property
    def resource_handle(self) -> tf.Tensor:
        """The handle of the table for ops."""


class TableQuery(NamedTuple):
    """The bags of keys that are asked of one table.

    Attributes:
        table: The table.
        read: A function that reads the rows of keys that workers ask this one for.
        keys: The keys of this worker, as for `tf_ops.collection_request`.
        routes: Integers, a number for each key that is sent to its owner: the route of a key in an
            adaptive table, or the static row of a key of a column. `None`: there are none. Workers
            must agree on whether there are, and on the next two.
        buckets: The number of `adaptive_buckets` by which keys are spread. 0: keys are spread by
            themselves.
        key_limit: The number that keys must be below; 0: any key is allowed.
        bags: The kind of bags, as for `tf_ops.collection_request`.
        splits: The row splits of `BAG_BY_SPLITS`.
        weights: The weights of the keys, as for `tf_ops.collection_pool`.
        combiner: The combiner of bags.
    """

    table: SharedTable
    read: Callable[[tf_ops.TableKeys], tf_ops.Lookup]
    keys: tf.Tensor
    routes: tf.Tensor | None = None
    buckets: int = 0
    key_limit: int = 0
    bags: int = tf_ops.BAG_A_KEY
    splits: tf.Tensor | None = None
    weights: tf.Tensor | None = None
    combiner: str = "sum"


def look_up(
    queries: Sequence[TableQuery],
    name: str,
    dtype: tf.DType = tf.float32,
    on_gpu: OnGpu | None = None,
) -> list[tf.Tensor]:
    """Looks bags up in several tables, each read by itself, in one exchange. Collective.

    Args:
        queries: The bags of each table; the same tables in the same order on every worker.
        name: A name that tells the exchange from others; the same on every worker.
        dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.
        on_gpu: The table, if it is the only one and is read on a GPU.

    Returns:
        `[bags, dim]` for each table.

    Raises:
        tf.errors.InternalError: If a worker has failed, with its number and its error.
    """
    if not queries:
        return []
    plan = _plan_of(queries)
    batch = PooledBatch(
        keys=[each.keys for each in queries],
        bags=[each.bags for each in queries],
        splits=[each.splits for each in queries if each.splits is not None],
        combiners=[each.combiner for each in queries],
        weights=[each.weights for each in queries],
        routes=[tf.cast(each.routes, tf.int64) for each in queries if each.routes is not None],
    )
    if is_serving():
        found = [each.read(tf_ops.TableKeys(each.keys, said=each.routes)) for each in queries]
        return served_bags(plan, batch, [each.embeddings for each in found], dtype=dtype)

    def serve(
        pools: Sequence[bool], message: tf.Tensor, splits: tf.Tensor
    ) -> tf_ops.CollectionRows:
        of_tables, sizes = tf_ops.collection_asked(plan, message, splits)
        found = [each.read(keys) for each, keys in zip(queries, of_tables, strict=True)]
        return tf_ops.collection_answer(found, sizes)

    tables = [each.table for each in queries]
    return pooled_rows(plan, batch, tables, on_gpu or OnHost(serve, tables), name, dtype=dtype)


def _plan_of(queries: Sequence[TableQuery]) -> tf_ops.CollectionPlan:
    """Returns the plan of an exchange with one feature a table."""
    communicator = communicators.current()
    names = tuple(each.table.name for each in queries)
    nothing = (0,) * len(names)
    plan = tf_ops.CollectionPlan(
        table_names=names,
        dims=tuple(each.table.dim for each in queries),
        salts=nothing,
        key_limits=tuple(each.key_limit for each in queries),
        placements=tuple(
            tf_ops.BY_BUCKET if each.buckets else tf_ops.BY_MODULO for each in queries
        ),
        holders=nothing,
        feature_names=names,
        feature_tables=tuple(range(len(names))),
        max_lengths=nothing,
        workers=communicator.size,
        rank=0,
        fingerprint=0,
        counts=tuple(each.table.counts_keys for each in queries),
        buckets=tuple(each.buckets for each in queries),
        says=tuple(each.routes is not None for each in queries),
        marks_unused=False,
    )
    digest = hashlib.blake2b(repr(plan).encode(), digest_size=8).digest()
    fingerprint = int.from_bytes(digest, "little", signed=True)
    return dataclasses.replace(plan, rank=communicator.rank, fingerprint=fingerprint)
