"""Ops on tables that are looked up and trained together: one lookup and one deposit for all.

A step calls `collection_request` -> (keys to their owners) -> `collection_serve` -> (rows back) ->
`collection_pool` -> `collection_output`. With one worker nothing is sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed.tf_ops.native import on_cpu, ops
from sok_embed.tf_ops.tables import Lookup, deposit, has_marks, number_in_graph

BAG_A_KEY = 0
"""Each key of a feature is a bag."""
BAG_A_ROW = 1
"""All keys at one index of the first dimension are a bag."""
BAG_BY_SPLITS = 2
"""Row splits divide the keys into bags."""

COMBINERS = ("sum", "mean", "sqrtn", "max")

BY_KEY = 0
"""The rows of a table are spread over the workers by a hash of the key."""
ON_WORKER = 1
"""All rows are on one worker."""
ON_ALL = 2
"""All rows are on every worker."""
BY_MODULO = 3
"""Rows are spread by the key itself."""
BY_BUCKET = 4
"""Rows are spread by the bucket of the key, of `adaptive_buckets`."""


@dataclass(frozen=True)
class CollectionPlan:
    """The configuration that all calls of a collection have in common.

    Attributes:
        table_names: The name of each table, for messages.
        dims: The length of a row of each.
        salts: int64 for each table. With them equal keys of two tables have different owners.
        key_limits: Keys of a table are below it; 0: any key.
        placements: `BY_KEY`, `ON_WORKER`, `ON_ALL`, `BY_MODULO` or `BY_BUCKET`, of each table.
        holders: The worker of each table that is `ON_WORKER`; else 0.
        feature_names: The name of each feature, for messages.
        feature_tables: The number of the table in which each feature looks its keys up.
        max_lengths: The most keys that a bag of each feature may have; 0: any number.
        workers: The number of workers that share the rows.
        rank: The number of this worker.
        fingerprint: int64 of the configuration, which must be the same on every worker.
        counts: True for each table that has an admission, which counts how often each key stands in
            a batch. Empty: no table has one.
        buckets: The number of buckets of each table that is `BY_BUCKET`, and 0 for other tables.
            Empty: no table is.
        says: True for each table for which a number is sent with each key, such as the route of a
            key in an adaptive table. Empty: for no table.
        marks_unused: True if gradients of rows for which no used feature has asked are marked, for
            `collection_serve`. False: they are zeros.
    """

    table_names: tuple[str, ...]
    dims: tuple[int, ...]
    salts: tuple[int, ...]
    key_limits: tuple[int, ...]
    placements: tuple[int, ...]
    holders: tuple[int, ...]
    feature_names: tuple[str, ...]
    feature_tables: tuple[int, ...]
    max_lengths: tuple[int, ...]
    workers: int
    rank: int
    fingerprint: int
    counts: tuple[bool, ...] = ()
    buckets: tuple[int, ...] = ()
    says: tuple[bool, ...] = ()
    marks_unused: bool = True

    def pools(self, bags: Sequence[int], weights: Sequence[tf.Tensor | None]) -> tuple[bool, ...]:
        """Returns for each table whether its holder receives bags of keys and sends vectors back.

        Otherwise the holder sends rows of distinct keys. That is needed for weights, whose
        gradients depend on rows, and is less to send if each bag is one key.

        Args:
            bags: The bags, as for `collection_request`.
            weights: The weights, as for `collection_pool`.
        """
        weighted, bagged = set(), set()
        for table, kind, given in zip(self.feature_tables, bags, weights, strict=True):
            if given is not None:
                weighted.add(table)
            if kind != BAG_A_KEY:
                bagged.add(table)
        return tuple(
            placement == ON_WORKER and table in bagged - weighted
            for table, placement in enumerate(self.placements)
        )

    @property
    def feature_dims(self) -> tuple[int, ...]:
        """The length of a vector of each feature."""
        return tuple(self.dims[table] for table in self.feature_tables)


class CollectionTables(NamedTuple):
    """The handles of a collection.

    Attributes:
        queue: The handle of the queue of waiting gradients, from `anonymous_collection_queue`,
            which stands for the tables.
        tables: The handle of each table.
    """

    queue: tf.Tensor
    tables: Sequence[tf.Tensor]


def anonymous_collection_queue(name: str, tables: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes a queue for the gradients of a collection, which lives as long as its handles.

    Args:
        name: The name for messages.
        tables: The handle of each table. The queue keeps the tables alive.
    """
    with on_cpu():
        return ops.sok_embed_anonymous_collection_queue(tables=list(tables), collection_name=name)


class CollectionRequest(NamedTuple):
    """The request of a worker to the others.

    Attributes:
        message: int64 `[words]`, a segment for each worker.
        splits: int32 `[workers]`, words of each segment.
        asked: A scalar variant for `collection_pool`, of this process alone.
        gradient_splits: int32 `[workers]`, floats for each worker in the gradient of the rows. Rows
            of tables that are `ON_ALL` come from this worker, but their gradients go to all
            workers.
    """

    message: tf.Tensor
    splits: tf.Tensor
    asked: tf.Tensor
    gradient_splits: tf.Tensor


def collection_request(
    plan: CollectionPlan,
    keys: Sequence[tf.Tensor],
    bags: Sequence[int],
    splits: Sequence[tf.Tensor],
    *,
    combiners: Sequence[str],
    pools: Sequence[bool],
    trains: bool = True,
    said: Sequence[tf.Tensor] = (),
    ahead: int = 0,
    on_disk: Sequence[bool] = (),
) -> CollectionRequest:
    """Finds the distinct keys of each table over all features that share it.

    What was found ahead, of the same keys, is taken as it is.

    Args:
        plan: The plan of the collection.
        keys: The keys of each feature, int32, int64 or uint64 of any shape.
        bags: The form of each feature's bags: `BAG_A_KEY`, `BAG_A_ROW` or `BAG_BY_SPLITS`.
        splits: int64 row splits, of the features with `BAG_BY_SPLITS`, in their order.
        combiners: The combiners, as for `collection_pool`.
        pools: The result of `plan.pools`.
        trains: True if rows get gradients; if not, keys of tables that are `ON_ALL` are not sent.
        said: int64, one number for each key, of the features whose tables have `says`, in their
            order. For equal keys of a table the greatest number is sent.
        ahead: Not 0: the result is kept for the step that asks with the same keys, beside those of
            so many calls of this op. 0: the call is that of a step.
        on_disk: True for each table whose owners hear of keys that will be asked for, as far as
            these were found ahead. Empty: for none.

    Raises:
        tf.errors.InvalidArgumentError: For a key that is not below the limit of its table, for
            splits that do not fit the keys, and for a bag of too many keys. With several workers
            `collection_serve` raises it, on all of them.
    """
    return CollectionRequest(
        *ops.sok_embed_collection_request(
            keys=list(keys),
            splits=list(splits),
            said=list(said),
            bags=list(bags),
            feature_names=list(plan.feature_names),
            feature_tables=list(plan.feature_tables),
            max_lengths=list(plan.max_lengths),
            table_names=list(plan.table_names),
            dims=list(plan.dims),
            salts=list(plan.salts),
            key_limits=list(plan.key_limits),
            placements=list(plan.placements),
            holders=list(plan.holders),
            buckets=list(plan.buckets),
            pools=list(pools),
            combiners=[COMBINERS.index(combiner) for combiner in combiners],
            counts=list(plan.counts),
            says=list(plan.says),
            trains=trains,
            marks_unused=plan.marks_unused,
            workers=plan.workers,
            rank=plan.rank,
            fingerprint=_fingerprint(plan, pools),
            ahead=ahead,
            on_disk=list(on_disk),
        )
    )


def collection_own_keys(asked: tf.Tensor, tables: int) -> list[tf.Tensor]:
    """Returns the keys of a request that this worker owns, int64 `[n]` for each of so many tables.

    Args:
        asked: A variant of `collection_request`.
        tables: The number of tables.
    """
    return list(ops.sok_embed_collection_own_keys(asked=asked, num_tables=tables))


def collection_to_come(message: tf.Tensor, splits: tf.Tensor, tables: int) -> list[tf.Tensor]:
    """Returns the keys that other workers will ask for later, int64 `[n]` for each table.

    Args:
        message: int64, segments of `collection_request` from every worker.
        splits: int32 `[workers]`, words of each.
        tables: The number of tables.
    """
    return list(
        ops.sok_embed_collection_to_come(message=message, message_splits=splits, num_tables=tables)
    )


def _fingerprint(plan: CollectionPlan, pools: Sequence[bool]) -> int:
    """Returns the fingerprint of the plan and of `pools`, which must be the same on all workers."""
    if not any(pools):
        return plan.fingerprint
    said = f"{plan.fingerprint} {[int(each) for each in pools]}".encode()
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little", signed=True)


class CollectionRows(NamedTuple):
    """Rows that workers have asked for.

    Attributes:
        message: float32 `[floats]`, a segment for each worker, with rows in the order of its
            request. If this worker has failed, each segment has the text of the error, and another
            size than the rows.
        splits: int32 `[workers]`, floats of each segment.
    """

    message: tf.Tensor
    splits: tf.Tensor


def collection_serve(
    collection: CollectionTables,
    plan: CollectionPlan,
    pools: Sequence[bool],
    message: tf.Tensor,
    splits: tf.Tensor,
    make_rows: bool,
    trainable: Sequence[bool],
    anchor: tf.Tensor | None,
    *,
    packed: bool = False,
    counted: bool = False,
) -> CollectionRows:
    """Reads the rows that all workers have asked this one for.

    The gradient of the rows goes to `anchor`, and is deposited on its way, as in `lookup`.

    Args:
        collection: Handles.
        plan: The plan of the collection.
        pools: The `pools` of the request.
        message: int64, segments of `collection_request` from every worker.
        splits: int32 `[workers]`, words of each.
        make_rows: True if a key without a row gets one.
        trainable: True for each table that is trained. Others make no rows, and drop gradients.
        anchor: float32, a vector of `ANCHOR_SIZE` or a scalar. `None`: there is no gradient.
        packed: True if rows are rounded to bfloat16, so that two numbers share a float.
        counted: True if another lookup has counted the keys, so that no admission counts them here.

    Raises:
        tf.errors.InternalError: If a worker could not make its request, with its error.
        tf.errors.FailedPreconditionError: If workers have different plans.
        tf.errors.ResourceExhaustedError: If a table is full. With several workers
            `collection_pool` raises an `InternalError` with that text, on the workers that asked.
    """
    rows, row_splits, _ = ops.sok_embed_collection_serve(
        queue=collection.queue,
        tables=[],
        message=message,
        message_splits=splits,
        anchor=0.0 if anchor is None else anchor,
        make_rows=make_rows,
        trainable=list(trainable),
        placements=list(plan.placements),
        pools=list(pools),
        rank=plan.rank,
        packed=packed,
        counted=counted,
        number=number_in_graph(),
    )
    return CollectionRows(rows, row_splits)


@tf.RegisterGradient("SokEmbed>CollectionServe")
def _serve_gradient(op: Any, upstream: tf.Tensor, *_: Any) -> list[tf.Tensor | None]:
    anchor_gradient = deposit(op.outputs[2], upstream, marks=has_marks(op.inputs[-1]))
    return [None] * (len(op.inputs) - 1) + [anchor_gradient]


class TableKeys(NamedTuple):
    """Keys to look up in one table, in the order of the workers that ask for them.

    Attributes:
        keys: int64 of any shape.
        counts: int64 of the shape of the keys, how often each stands in the batch of its worker.
            `None`: the table does not count keys, or each stands there once.
        said: Integers of the shape of the keys, the number that is sent with each. `None`: there
            are none.
        reports: True if an error of the lookup is put into its receipt, as for `lookup`.
    """

    keys: tf.Tensor
    counts: tf.Tensor | None = None
    said: tf.Tensor | None = None
    reports: bool = False


def collection_asked(
    plan: CollectionPlan, message: tf.Tensor, splits: tf.Tensor
) -> tuple[list[TableKeys], tf.Tensor]:
    """Reads the keys that workers have asked this one for, for a lookup of each table by an op.

    Args:
        plan: The plan, as for `collection_request`. Rows of all tables are spread over workers.
        message: int64, segments of `collection_request` from every worker.
        splits: int32 `[workers]`, words of each.

    Returns:
        The keys of each table, and int32 `[workers, tables]`, floats of their rows for each worker.

    Raises:
        tf.errors.InternalError: If a worker could not make its request, with its error.
        tf.errors.FailedPreconditionError: If workers have different plans.
    """
    tables = len(plan.dims)
    counts = list(plan.counts) or [False] * tables
    says = list(plan.says) or [False] * tables
    keys, counted, said, sizes, _, _ = ops.sok_embed_collection_asked(
        message=message,
        message_splits=splits,
        num_tables=tables,
        dims=list(plan.dims),
        counts_keys=counts,
        says=says,
        num_splits=0,
        num_asked=0,
    )
    asked = [
        TableKeys(
            keys[i],
            counted[i] if counts[i] else None,
            said[i] if says[i] else None,
            reports=plan.workers > 1,
        )
        for i in range(tables)
    ]
    return asked, tf.ensure_shape(sizes, [plan.workers, tables])


def collection_answer(found: Sequence[Lookup], sizes: tf.Tensor) -> CollectionRows:
    """Makes the message of the rows that workers have asked for. Differentiable in the embeddings.

    Args:
        found: The lookup of the keys of each table, of float32. The receipt of a failed lookup with
            `reports` has the error, and `collection_pool` raises it on all workers.
        sizes: The sizes that `collection_asked` returned.
    """
    workers, tables = sizes.shape
    rows = [tf.reshape(one.embeddings, [-1]) for one in found]
    if tables > 1:
        by_table = [tf.split(rows[i], sizes[:, i], num=workers) for i in range(tables)]
        rows = [tf.concat([piece for to_one in zip(*by_table, strict=True) for piece in to_one], 0)]
    splits = tf.reduce_sum(sizes, 1)
    return CollectionRows(
        *ops.sok_embed_collection_answer(
            rows=rows[0], row_splits=splits, receipts=[one.receipt for one in found]
        )
    )


@tf.RegisterGradient("SokEmbed>CollectionAnswer")
def _answer_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[tf.Tensor | None]:
    return [upstream, *[None] * (len(op.inputs) - 1)]


def collection_pool(
    plan: CollectionPlan,
    rows: CollectionRows,
    asked: tf.Tensor,
    combiners: Sequence[str],
    weights: Sequence[tf.Tensor | None],
    *,
    concat: bool = False,
    packed: bool = False,
    dtype: tf.DType = tf.float32,
) -> list[tf.Tensor]:
    """Pools rows to one vector for each bag. Differentiable in `rows` and `weights`.

    With x the rows of a bag's keys and w their weights, 1 without any: `"sum"` is sum(w x),
    `"mean"` is sum(w x) / sum(w), `"sqrtn"` is sum(w x) / sqrt(sum(w ** 2)), and `"max"` is the
    greatest of x, place by place, whose gradient goes to the first row that has it. A bag without
    keys, or with a divisor of 0, is zeros.

    Args:
        plan: The plan of the collection.
        rows: The rows that have come back from every worker.
        asked: The `asked` of the request.
        combiners: The combiner of each feature.
        weights: float32 of each feature, one a key; `None`: there are none.
        concat: True if all vectors of an example are one, in the order of the features.
        packed: True if rows are packed, as for `collection_serve`.
        dtype: `tf.float32` or `tf.bfloat16`.

    Returns:
        `[bags, dim]` for each feature; with `concat` one, of `[bags, sum of dims]`. A feature whose
        output is not used leaves no gradient.

    Raises:
        tf.errors.InvalidArgumentError: For weights of another number than keys; with `concat`, for
            features with different numbers of bags.
        tf.errors.InternalError: If a worker could not read the rows, with its error.
    """
    weighted = [number for number, given in enumerate(weights) if given is not None]
    vectors = ops.sok_embed_collection_pool(
        rows=rows.message,
        row_splits=rows.splits,
        asked=asked,
        weights=[weights[number] for number in weighted],
        weighted=weighted,
        combiners=[COMBINERS.index(combiner) for combiner in combiners],
        concat=concat,
        packed=packed,
        dtype=dtype,
    )
    widths = [sum(plan.feature_dims)] if concat else plan.feature_dims
    return outputs_of(vectors, asked, widths, dtype)


def outputs_of(
    vectors: tf.Tensor,
    asked: tf.Tensor,
    widths: Sequence[int],
    dtype: tf.DType,
    device: str | None = None,
) -> list[tf.Tensor]:
    """Splits the result of a pooling lookup into its outputs.

    Args:
        vectors: The vectors of all outputs, a scalar variant.
        asked: The request of the lookup or, on a GPU, its receipt, likewise.
        widths: The floats of a vector of each output.
        dtype: The dtype of the vectors.
        device: The name of the GPU on which they are. `None`: they are on the host.
    """
    with on_cpu() if device is None else tf.device(device):
        return [
            ops.sok_embed_collection_output(
                vectors=vectors, asked=[asked], dtype=dtype, index=index, width=width
            )
            for index, width in enumerate(widths)
        ]


@tf.RegisterGradient("SokEmbed>CollectionOutput")
def _output_gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    # Gradients are computed where the lookup ran.
    with tf.device(op.outputs[0].device):
        gradients = ops.sok_embed_collection_output_gradient(
            gradient=upstream, asked=op.inputs[-1], index=op.get_attr("index")
        )
    return [gradients, *[None] * (len(op.inputs) - 1)]


@tf.RegisterGradient("SokEmbed>CollectionPool")
def _pool_gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    rows, row_splits, asked, *weights = op.inputs
    if not weights and COMBINERS.index("max") not in op.get_attr("combiners"):
        rows = tf.zeros([0])  # not needed, so the rows of the forward pass may be freed
    of_rows, of_weights = ops.sok_embed_collection_pool_gradient(
        gradients=upstream,
        rows=rows,
        row_splits=row_splits,
        asked=asked,
        weights=weights,
        weighted=op.get_attr("weighted"),
        combiners=op.get_attr("combiners"),
        concat=op.get_attr("concat"),
        packed=op.get_attr("packed"),
        dtype=op.get_attr("dtype"),
    )
    return [of_rows, None, None, *of_weights]
