"""Lookups of many bags in tables whose rows are in the memory of a GPU, which pools them.

A step goes `SokEmbed>LookupPooled` -> `SokEmbed>CollectionOutput` for each output. Gradients
go the same way back, to `SokEmbed>Deposit`, one deposit for all tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed.tf_ops.collections import (
    BAG_A_KEY,
    BAG_BY_SPLITS,
    BY_KEY,
    COMBINERS,
    CollectionPlan,
    CollectionTables,
    outputs_of,
)
from sok_embed.tf_ops.native import on_cpu, ops
from sok_embed.tf_ops.served import as_int64
from sok_embed.tf_ops.tables import deposit, has_marks, number_in_graph


class PooledFeature(NamedTuple):
    """The keys of a feature in a batch, and how they are pooled.

    Attributes:
        number: The number of the feature in the plan.
        keys: int32, int64 or uint64 of any shape.
        bags: `BAG_A_KEY`, `BAG_A_ROW` or `BAG_BY_SPLITS`, as for `collection_request`.
        splits: int64 row splits, with `BAG_BY_SPLITS`.
        combiner: `"sum"`, `"mean"`, `"sqrtn"` or `"max"`, as for `collection_pool`.
        weights: float32, one a key, or `None`.
    """

    number: int
    keys: tf.Tensor
    bags: int
    splits: tf.Tensor | None
    combiner: str
    weights: tf.Tensor | None


def lookup_pooled_on_gpu(
    tables: tf.Tensor | CollectionTables,
    plan: CollectionPlan,
    features: Sequence[PooledFeature],
    device: str,
    *,
    make_rows: bool,
    trainable: Sequence[bool],
    anchor: tf.Tensor | None,
    concat: bool = False,
    dtype: tf.DType = tf.float32,
) -> list[tf.Tensor]:
    """Makes a vector for each bag, as `collection_pool` does, in the memory of a GPU.

    Keys, weights, vectors and gradients stay there. The gradient of the vectors goes to `anchor`
    and is deposited on the way, like the gradient of `lookup`; weights have gradients too. A
    feature whose vectors are not used leaves no gradient.

    Args:
        tables: The handle of one table, or the handles of a collection.
        plan: The plan of all tables and features of one worker.
        features: The features that are looked up. The rows of their tables are on the device; the
            tables have neither an admission nor an eviction.
        device: The name of the GPU, as TensorFlow has it.
        make_rows: True if a key without a row gets one, in tables that are trained.
        trainable: True for each table that is trained. The other tables drop gradients.
        anchor: float32, a vector of `ANCHOR_SIZE` or a scalar. `None`: rows have no gradient.
        concat: True for one vector an example, of all of these features in their order.
        dtype: `tf.float32` or `tf.bfloat16`; sums are in float32.

    Returns:
        `[bags, dim]` for each of the features; with `concat` one, of `[bags, sum of dims]`.

    Raises:
        tf.errors.InvalidArgumentError: As `collection_request` and `collection_pool`. To check
            this, keys of tables with a limit, and splits, are read on the host.
        tf.errors.ResourceExhaustedError: If a table is full. Other tables may have made rows by
            then.
    """
    keys = [as_int64(each.keys) for each in features]
    numbers = range(len(features))
    splits = [each.splits for each in features if each.bags == BAG_BY_SPLITS]
    of_tables = [plan.feature_tables[each.number] for each in features]
    checked = [number for number in numbers if plan.key_limits[of_tables[number]]]
    weighted = [number for number in numbers if features[number].weights is not None]
    token = trained_token(tables)
    widths = [plan.dims[table] for table in of_tables]
    with tf.device(device):
        vectors, receipt = ops.sok_embed_lookup_pooled(
            token=token,
            keys=keys,
            splits=splits,
            host_splits=splits,
            checked_keys=[keys[number] for number in checked],
            anchor=0.0 if anchor is None else anchor,
            weights=[features[number].weights for number in weighted],
            feature_names=[plan.feature_names[each.number] for each in features],
            feature_tables=of_tables,
            bags=[each.bags for each in features],
            combiners=[COMBINERS.index(each.combiner) for each in features],
            max_lengths=[plan.max_lengths[each.number] for each in features],
            dims=list(plan.dims),
            key_limits=list(plan.key_limits),
            trainable=list(trainable),
            weighted=weighted,
            checked=checked,
            make_rows=make_rows,
            trains=anchor is not None,
            concat=concat,
            dtype=dtype,
            number=number_in_graph(),
        )
    if not tf.executing_eagerly():
        # So that a later commit waits for the lookup, as in `lookup`.
        with tf.control_dependencies([vectors.op]):
            trained_token(tables)
    return outputs_of(vectors, receipt, [sum(widths)] if concat else widths, dtype, device)


def lookup_on_gpu(
    table: tf.Tensor,
    keys: tf.Tensor,
    dim: int,
    make_rows: bool,
    device: str,
    *,
    anchor: tf.Tensor | None = None,
    dtype: tf.DType = tf.float32,
) -> tf.Tensor:
    """Reads the embeddings of keys, as `lookup` does on the host, in the memory of a GPU.

    Args:
        table: A handle, of a table that has neither an admission nor an eviction.
        keys: The keys, of any shape.
        dim: The length of a row of this table.
        make_rows: True if a key without a row gets one.
        device: The name of the GPU, as TensorFlow has it, whose memory has the table's rows.
        anchor: The anchor, as for `lookup`.
        dtype: `tf.float32` or `tf.bfloat16`.

    Returns:
        `keys.shape + [dim]`, on the device.

    Raises:
        tf.errors.ResourceExhaustedError: If the table is full.
    """
    plan = CollectionPlan(
        table_names=("",),
        dims=(dim,),
        salts=(0,),
        key_limits=(0,),
        placements=(BY_KEY,),
        holders=(0,),
        feature_names=("keys",),
        feature_tables=(0,),
        max_lengths=(0,),
        workers=1,
        rank=0,
        fingerprint=0,
    )
    (rows,) = lookup_pooled_on_gpu(
        table,
        plan,
        [PooledFeature(0, keys, BAG_A_KEY, None, "sum", None)],
        device,
        make_rows=make_rows,
        trainable=[True],
        anchor=anchor,
        dtype=dtype,
    )
    if keys.shape.rank == 1:
        return rows
    with tf.device(device):
        found = tf.reshape(rows, tf.concat([tf.shape(keys), [dim]], 0))
    found.set_shape([*keys.shape, dim])
    return found


def trained_token(tables: tf.Tensor | CollectionTables, reports: bool = False) -> tf.Tensor:
    """Returns a token for ops on a GPU, instead of the handles of tables that one commit trains.

    With `reports` an error is not raised, since other workers wait: the token holds it.
    """
    alone = not isinstance(tables, CollectionTables)
    queue: list[tf.Tensor] = [] if alone else [tables.queue]
    handles: list[tf.Tensor] = [tables] if alone else list(tables.tables)
    with on_cpu():
        return ops.sok_embed_trained_token(queue=queue, tables=handles, reports=reports)


def pooled_gradients(
    upstream: tf.Tensor, receipt: tf.Tensor, device: str, weighted: Sequence[int] = ()
) -> list[tf.Tensor]:
    """Returns gradients of a lookup that pools on a GPU, where it ran.

    They are those of the weights of the features in `weighted`. Without any they are the gradients
    of the rows that workers have sent, as one message.
    """
    with tf.device(device):
        of_rows, of_weights = ops.sok_embed_pooled_gradients(
            gradients=upstream,
            receipt=receipt,
            num_messages=0 if weighted else 1,
            num_weights=len(weighted),
            weighted=list(weighted),
        )
    return [*of_rows, *of_weights]


@tf.RegisterGradient("SokEmbed>LookupPooled")
def _lookup_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[tf.Tensor | None]:
    weighted = op.get_attr("weighted")
    anchor = op.inputs[len(op.inputs) - len(weighted) - 1]
    device = op.outputs[0].device
    of_weights = pooled_gradients(upstream, op.outputs[1], device, weighted) if weighted else []
    of_anchor = None
    if op.get_attr("trains"):
        of_anchor = deposit(op.outputs[1], upstream, has_marks(anchor), device)
    return [*[None] * (len(op.inputs) - len(weighted) - 1), of_anchor, *of_weights]
