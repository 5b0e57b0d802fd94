"""The ops of `collections` where rows of several workers lie in the memory of their GPUs.

A step calls `collection_request` -> (keys to their owners) -> `collection_serve_on_gpu` -> (rows
back) -> `collection_pool_on_gpu`. Messages are those of the ops on the host, so a worker with a GPU
and one without understand each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sok_embed.tf_ops.collections import (
    COMBINERS,
    CollectionPlan,
    CollectionRows,
    CollectionTables,
    outputs_of,
)
from sok_embed.tf_ops.native import on_cpu, ops
from sok_embed.tf_ops.pooled import pooled_gradients, trained_token
from sok_embed.tf_ops.tables import deposit, has_marks, number_in_graph


def collection_serve_on_gpu(
    tables: tf.Tensor | CollectionTables,
    plan: CollectionPlan,
    pools: Sequence[bool],
    message: tf.Tensor,
    splits: tf.Tensor,
    device: str,
    *,
    make_rows: bool,
    trainable: Sequence[bool],
    anchor: tf.Tensor | None,
) -> CollectionRows:
    """Reads the rows that all workers have asked this one for, in the memory of a GPU.

    Gradients of the rows are deposited there on their way to `anchor`.

    Args:
        tables: The handle of one table, or the handles of a collection. Tables that are read must
            have their rows on the device, and neither an admission nor an eviction.
        plan: The plan, as for `collection_serve`.
        pools: The `pools` of the request.
        message: int64, segments of `collection_request` from every worker.
        splits: int32 `[workers]`, words of each.
        device: The name of the GPU, as TensorFlow has it.
        make_rows: True if a key without a row gets one.
        trainable: True for each table that is trained.
        anchor: float32, a vector of `ANCHOR_SIZE` or a scalar. `None`: rows get no gradient.

    Returns:
        The message on the device, and its splits.

    Raises:
        tf.errors.InternalError: As `collection_serve`. If the rows cannot be read,
            `collection_pool_on_gpu` raises it, on the workers that asked.
        tf.errors.FailedPreconditionError: If workers have different plans.
    """
    tables_of_plan = len(plan.dims)
    with on_cpu():
        keys, _, _, _, of_bags, (asked,) = ops.sok_embed_collection_asked(
            message=message,
            message_splits=splits,
            num_tables=tables_of_plan,
            dims=list(plan.dims),
            counts_keys=[False] * tables_of_plan,
            says=[False] * tables_of_plan,
            num_splits=tables_of_plan,
            num_asked=1,
            placements=list(plan.placements),
            pools=list(pools),
            rank=plan.rank,
        )
    token = trained_token(tables, reports=True)
    with tf.device(device):
        rows, row_splits, _ = ops.sok_embed_collection_serve_on_gpu(
            token=token,
            asked=asked,
            keys=keys,
            splits=of_bags,
            anchor=0.0 if anchor is None else anchor,
            make_rows=make_rows,
            trainable=list(trainable),
            workers=plan.workers,
            number=number_in_graph(),
        )
    if not tf.executing_eagerly():
        # This makes a later commit wait for the lookup, as in `lookup`.
        with tf.control_dependencies([rows.op]):
            trained_token(tables, reports=True)
    return CollectionRows(rows, row_splits)


@tf.RegisterGradient("SokEmbed>CollectionServeOnGpu")
def _serve_gradient(op: Any, upstream: tf.Tensor, *_: Any) -> list[tf.Tensor | None]:
    marks, device = has_marks(op.inputs[-1]), op.outputs[0].device
    anchor_gradient = deposit(op.outputs[2], upstream, marks, device)
    return [None] * (len(op.inputs) - 1) + [anchor_gradient]


def collection_pool_on_gpu(
    tables: tf.Tensor | CollectionTables,
    plan: CollectionPlan,
    rows: CollectionRows,
    asked: tf.Tensor,
    bags: Sequence[int],
    splits: Sequence[tf.Tensor],
    combiners: Sequence[str],
    weights: Sequence[tf.Tensor | None],
    device: str,
    *,
    concat: bool = False,
    dtype: tf.DType = tf.float32,
) -> list[tf.Tensor]:
    """Pools rows in the memory of a GPU, as `collection_pool` does on the host.

    Args:
        tables: The tables, as for `collection_serve_on_gpu`.
        plan: The plan of the collection.
        rows: The rows that have come back from every worker.
        asked: The `asked` of the request.
        bags: The form of each feature's bags, as for `collection_request`.
        splits: int64 row splits, as for `collection_request`.
        combiners: The combiner of each feature.
        weights: float32 of each feature, one a key; `None`: there are none.
        device: The name of the GPU, as TensorFlow has it.
        concat: True if all vectors of an example are one, in the order of the features.
        dtype: `tf.float32` or `tf.bfloat16`.

    Returns:
        The vectors that `collection_pool` returns, on the device.

    Raises:
        tf.errors.InvalidArgumentError: As `collection_pool`.
        tf.errors.InternalError: If a worker could not read the rows, with its error.
    """
    weighted = [number for number, given in enumerate(weights) if given is not None]
    with on_cpu():
        numbers = ops.sok_embed_collection_row_numbers(asked=asked, num_tables=len(plan.dims))
    token = trained_token(tables, reports=True)
    with tf.device(device):
        vectors, receipt = ops.sok_embed_collection_pool_on_gpu(
            token=token,
            rows=rows.message,
            row_splits=rows.splits,
            asked=asked,
            numbers=numbers,
            splits=list(splits),
            weights=[weights[number] for number in weighted],
            bags=list(bags),
            combiners=[COMBINERS.index(combiner) for combiner in combiners],
            weighted=weighted,
            concat=concat,
            dtype=dtype,
        )
    widths = [sum(plan.feature_dims)] if concat else plan.feature_dims
    return outputs_of(vectors, receipt, widths, dtype, device)


@tf.RegisterGradient("SokEmbed>CollectionPoolOnGpu")
def _pool_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[tf.Tensor | None]:
    receipt, weighted, device = op.outputs[1], op.get_attr("weighted"), op.outputs[0].device
    of_weights = pooled_gradients(upstream, receipt, device, weighted) if weighted else []
    nothing = [None] * (len(op.inputs) - len(weighted) - 2)
    return [None, *pooled_gradients(upstream, receipt, device), *nothing, *of_weights]
