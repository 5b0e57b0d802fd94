"""The one exchange of lookups: keys go to their owners, and rows come back, for all tables at once.

With one worker nothing is sent. A worker that fails sends its error in the message, and all workers
raise it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from sok_embed import communicators, tf_ops
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
        said: The numbers of keys, as for `tf_ops.collection_request`.
    """

    keys: Sequence[tf.Tensor]
    bags: Sequence[int]
    splits: Sequence[tf.Tensor]
    combiners: Sequence[str]
    weights: Sequence[tf.Tensor | None]
    said: Sequence[tf.Tensor] = ()


# Reads the rows that all workers have asked this one for. Its arguments are the `pools` of the
# request, the message that has arrived, and its splits.
Serve = Callable[[Sequence[bool], tf.Tensor, tf.Tensor], tf_ops.CollectionRows]


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


# Changes the fingerprint of plans whose rows are sent between GPUs: other workers would wait for
# another exchange.
_BETWEEN_GPUS = 1


def pooled_rows(
    plan: tf_ops.CollectionPlan,
    batch: PooledBatch,
    tables: Sequence[Hosted],
    serve: Serve | OnGpu,
    name: str,
    *,
    trains: bool = True,
    concat: bool = False,
    packed: bool = False,
    dtype: tf.DType = tf.float32,
) -> list[tf.Tensor]:
    """Returns a vector of each bag. Collective, if there are several workers.

    Args:
        plan: The plan of the tables and features.
        batch: The keys of all features.
        tables: The tables, or collections of tables, that the keys are looked up in.
        serve: A function that reads rows on this worker, or the tables on its GPU. Workers may give
            different kinds unless `communicator.exchanges_on_gpu`.
        name: A name that tells the exchange from others; the same on every worker.
        trains: True if rows get gradients, as for `tf_ops.collection_request`.
        concat: True for one vector an example, as for `tf_ops.collection_pool`.
        packed: True for rows of bfloat16, as for `tf_ops.collection_pool`; not on a GPU.
        dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.

    Returns:
        `[bags, dim]` for each feature; with `concat` one, of `[bags, sum of dims]`.

    Raises:
        tf.errors.InternalError: If a worker has failed, with its number and its error.
        ValueError: In eager calls, if the layer of the tables differs on a worker.
        tf.errors.FailedPreconditionError: In functions, likewise.
    """
    communicator = communicators.current()
    if communicator.size > 1:
        if tf.executing_eagerly():
            check_same_hosts(tables)
        fingerprint = plan.fingerprint ^ fingerprint_of(tables)
        plan = dataclasses.replace(plan, fingerprint=fingerprint)
    if isinstance(serve, OnGpu) and communicator.exchanges_on_gpu:
        # A worker whose rows lie on the host would wait for another exchange.
        plan = dataclasses.replace(plan, fingerprint=plan.fingerprint ^ _BETWEEN_GPUS)
    pools = plan.pools(batch.bags, batch.weights)
    request = tf_ops.collection_request(
        plan,
        batch.keys,
        batch.bags,
        batch.splits,
        combiners=batch.combiners,
        pools=pools,
        trains=trains,
        said=batch.said,
    )
    message, splits = request.message, request.splits
    name = f"sok_embed.{name}"
    if communicator.size > 1:
        message, splits = communicator.all_to_all(message, splits, f"{name}.keys")
    if isinstance(serve, OnGpu):
        rows, row_splits = tf_ops.collection_serve_on_gpu(
            serve.tables,
            plan,
            pools,
            message,
            splits,
            serve.device,
            make_rows=serve.make_rows,
            trainable=serve.trainable,
            anchor=serve.anchor,
        )
    else:
        rows, row_splits = serve(pools, message, splits)
    if communicator.size > 1:
        # If a table lies on every worker, its gradients go to all of them, unlike its rows.
        rows, row_splits = communicator.exchange(rows, row_splits, request.gradient_splits, name)
    # The ops have no float16.
    of_ops = tf.float32 if dtype == tf.float16 else dtype
    if isinstance(serve, OnGpu):
        pooled = tf_ops.collection_pool_on_gpu(
            serve.tables,
            plan,
            tf_ops.CollectionRows(rows, row_splits),
            request.asked,
            batch.bags,
            batch.splits,
            batch.combiners,
            batch.weights,
            serve.device,
            concat=concat,
            dtype=of_ops,
        )
    else:
        pooled = tf_ops.collection_pool(
            plan,
            tf_ops.CollectionRows(rows, row_splits),
            request.asked,
            batch.combiners,
            batch.weights,
            concat=concat,
            packed=packed,
            dtype=of_ops,
        )
    return [tf.cast(vectors, dtype) for vectors in pooled]


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


class Asked(NamedTuple):
    """The bags of keys that are asked of one table.

    Attributes:
        table: The table.
        read: A function that reads the rows of keys that workers ask this one for.
        keys: The keys of this worker, as for `tf_ops.collection_request`.
        said: Integers, a number for each key that is sent to its owner: for an adaptive table, the
            route. `None`: there are none. Workers must agree on whether there are, and on the next
            two.
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
    said: tf.Tensor | None = None
    buckets: int = 0
    key_limit: int = 0
    bags: int = tf_ops.BAG_A_KEY
    splits: tf.Tensor | None = None
    weights: tf.Tensor | None = None
    combiner: str = "sum"


def look_up(
    asked: Sequence[Asked], name: str, dtype: tf.DType = tf.float32, on_gpu: OnGpu | None = None
) -> list[tf.Tensor]:
    """Looks bags up in several tables, each read by itself, in one exchange. Collective.

    Args:
        asked: The bags of each table; the same tables in the same order on every worker.
        name: A name that tells the exchange from others; the same on every worker.
        dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.
        on_gpu: The table, if it is the only one and is read on a GPU.

    Returns:
        `[bags, dim]` for each table.

    Raises:
        tf.errors.InternalError: If a worker has failed, with its number and its error.
    """
    if not asked:
        return []
    plan = plan_of(asked)
    batch = PooledBatch(
        keys=[one.keys for one in asked],
        bags=[one.bags for one in asked],
        splits=[one.splits for one in asked if one.splits is not None],
        combiners=[one.combiner for one in asked],
        weights=[one.weights for one in asked],
        said=[tf.cast(one.said, tf.int64) for one in asked if one.said is not None],
    )
    if is_serving():
        found = [one.read(tf_ops.TableKeys(one.keys, said=one.said)) for one in asked]
        return served_bags(plan, batch, [one.embeddings for one in found], dtype=dtype)

    def serve(
        pools: Sequence[bool], message: tf.Tensor, splits: tf.Tensor
    ) -> tf_ops.CollectionRows:
        of_tables, sizes = tf_ops.collection_asked(plan, message, splits)
        found = [one.read(of_table) for one, of_table in zip(asked, of_tables, strict=True)]
        return tf_ops.collection_answer(found, sizes)

    tables = [one.table for one in asked]
    return pooled_rows(plan, batch, tables, on_gpu or serve, name, dtype=dtype)


def plan_of(asked: Sequence[Asked]) -> tf_ops.CollectionPlan:
    """Returns the plan of an exchange with one feature a table."""
    communicator = communicators.current()
    names = tuple(one.table.name for one in asked)
    nothing = (0,) * len(names)
    plan = tf_ops.CollectionPlan(
        table_names=names,
        dims=tuple(one.table.dim for one in asked),
        salts=nothing,
        key_limits=tuple(one.key_limit for one in asked),
        placements=tuple(tf_ops.BY_BUCKET if one.buckets else tf_ops.BY_MODULO for one in asked),
        holders=nothing,
        feature_names=names,
        feature_tables=tuple(range(len(names))),
        max_lengths=nothing,
        workers=communicator.size,
        rank=0,
        fingerprint=0,
        counts=tuple(one.table.counts_keys for one in asked),
        buckets=tuple(one.buckets for one in asked),
        says=tuple(one.said is not None for one in asked),
        marks_unused=False,
    )
    digest = hashlib.blake2b(repr(plan).encode(), digest_size=8).digest()
    fingerprint = int.from_bytes(digest, "little", signed=True)
    return dataclasses.replace(plan, rank=communicator.rank, fingerprint=fingerprint)
