"""Lookups in which some keys share static rows and others have rows of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from sok_embed.tf_ops.native import on_cpu, ops
from sok_embed.tf_ops.pooled import trained_token
from sok_embed.tf_ops.served import ServedRows, as_int64, checked, is_serving
from sok_embed.tf_ops.tables import Lookup, deposit, has_marks, number_in_graph

_NO_BUCKETS = np.zeros([0], np.int64)


def static_buckets(ids: tf.Tensor, num_buckets: int) -> tf.Tensor:
    """Returns each id's static row: `tf.strings.to_hash_bucket_fast` of its decimal digits.

    Args:
        ids: int32, int64 or string, of any shape.
        num_buckets: Buckets are below it.

    Returns:
        int64, of the shape of `ids`.
    """
    if is_serving():
        digits = ids if ids.dtype == tf.string else tf.strings.as_string(ids)
        return tf.strings.to_hash_bucket_fast(digits, num_buckets)
    return ops.sok_embed_static_buckets(ids=ids, num_buckets=num_buckets)


def adaptive_mask_gather(
    table: tf.Tensor,
    static: Any,
    keys: tf.Tensor,
    buckets: tf.Tensor | None,
    mask: tf.Tensor,
    *,
    dim: int,
    make_rows: bool,
    anchor: tf.Tensor | None = None,
    dtype: tf.DType = tf.float32,
    copy_slots: bool = True,
    absent_value: float | None = None,
    counts: tf.Tensor | None = None,
    reports: bool = False,
    device: str | None = None,
) -> Lookup:
    """Reads own rows from a table and static rows from a variable into one tensor.

    The gradient of static rows goes to `static` as `tf.IndexedSlices`. The gradient of own rows is
    deposited in the table: see `deposit`.

    A key without a row gets one in this call, if `make_rows` says so and the table's admission lets
    it. The row starts as the key's static row, bit for bit. Otherwise the static row is read.

    Args:
        table: A handle.
        static: A float32 variable `[buckets, dim]`, or its handle.
        keys: int64, of any shape.
        buckets: int64, the static row of each key. `None`: `static_buckets` of the key, which is
            computed only for keys that read static rows.
        mask: int32: 1 reads the key's own row, 0 its static row.
        dim: The length of a row.
        make_rows: True if a key of mask 1 without a row gets one.
        anchor: The anchor, as in `lookup`. `None`: own rows have no gradient.
        dtype: The dtype of the result, `tf.float32` or `tf.bfloat16`.
        copy_slots: True if new rows copy the optimizer's slots of their static rows, once a commit
            has set these. Otherwise slots start at their initial values.
        absent_value: Each element of the result for a key that has no row and gets none. `None`:
            its static row is read.
        counts: The counts, as in `lookup`.
        reports: True if an error is put into the receipt, as in `lookup`.
        device: The name of the GPU, as TensorFlow has it, whose memory has the table's rows, the
            static rows and their slots: keys and embeddings are there too. `static` is a variable
            then. Not with `absent_value`, `counts`, `reports` or an admission. `None`: they are
            in the host's memory.

    Raises:
        TypeError: If `static` is neither a variable nor a handle.
        tf.errors.InvalidArgumentError: For a mask other than 0 and 1, a bucket out of range, keys,
            buckets and mask of different shapes, or static rows of another width.
        tf.errors.ResourceExhaustedError: If the table is full. It is left as it was.
    """
    if isinstance(static, keras.Variable):
        static = static.value
    if isinstance(table, ServedRows):
        if buckets is None:
            buckets = static_buckets(keys, static.shape[0])
        embeddings = _served(table, static, as_int64(keys), buckets, mask, absent_value)
        return Lookup(tf.cast(embeddings, dtype), None)
    handle = static
    if not tf.is_tensor(static) or static.dtype != tf.resource:
        if not hasattr(static, "sparse_read"):
            raise TypeError(
                f"Expected static to be a variable, or its handle. Received: {static!r}."
            )
        static.sparse_read(tf.zeros([0], tf.int64))  # shows the variable to the gradient tape
        handle = static.handle
    if device is not None:
        if buckets is None:
            buckets = static_buckets(keys, static.shape[0])
        routes = _OnGpu(keys, buckets, mask, static.shape[0], device)
        return _gather_on_gpu(table, handle, routes, dim, make_rows, anchor, dtype, copy_slots)
    embeddings, receipt, own, _ = ops.sok_embed_adaptive_mask_gather(
        table=table,
        static_rows=handle,
        keys=keys,
        buckets=_NO_BUCKETS if buckets is None else buckets,
        mask=mask,
        anchor=0.0 if anchor is None else anchor,
        dtype=dtype,
        dim=dim,
        make_rows=make_rows,
        copy_slots=copy_slots,
        hash_keys=buckets is None,
        own_gradient=anchor is not None,
        number=number_in_graph(),
        counts=[] if counts is None else [counts],
        reports=reports,
    )
    if absent_value is not None:
        absent = tf.constant(absent_value, dtype)
        embeddings = tf.where(own[..., tf.newaxis], embeddings, absent)
    return Lookup(embeddings, receipt)


class _OnGpu(NamedTuple):
    """The keys of a lookup on a GPU, their mask and their static rows, with the number of these."""

    keys: tf.Tensor
    buckets: tf.Tensor
    mask: tf.Tensor
    static_rows: int
    device: str


def _gather_on_gpu(
    table: tf.Tensor,
    static: tf.Tensor,
    asked: _OnGpu,
    dim: int,
    make_rows: bool,
    anchor: tf.Tensor | None,
    dtype: tf.DType,
    copy_slots: bool,
) -> Lookup:
    token = trained_token(table)
    with on_cpu():
        places = ops.sok_embed_own_places(
            token=token, buckets=asked.buckets, mask=asked.mask, static_rows=asked.static_rows
        )
    with tf.device(asked.device):
        embeddings, receipt, _ = ops.sok_embed_adaptive_mask_gather_on_gpu(
            token=token,
            static_rows=static,
            keys=as_int64(asked.keys),
            buckets=asked.buckets,
            places=places,
            anchor=0.0 if anchor is None else anchor,
            dtype=dtype,
            dim=dim,
            make_rows=make_rows,
            copy_slots=copy_slots,
            own_gradient=anchor is not None,
            number=number_in_graph(),
            num_static_rows=asked.static_rows,
        )
    if not tf.executing_eagerly():
        # A later commit waits for this op, since it takes the handle, as it waits for a lookup of a
        # table.
        with tf.control_dependencies([embeddings.op]):
            trained_token(table)
    return Lookup(embeddings, receipt)


@tf.RegisterGradient("SokEmbed>AdaptiveMaskGatherOnGpu")
def _gather_on_gpu_gradient(op: Any, upstream: tf.Tensor, *_: Any) -> list[Any]:
    token, static, _, buckets, _, anchor = op.inputs
    embeddings, receipt, own = op.outputs
    dim = op.get_attr("dim")
    with tf.device(embeddings.device):
        values, indices = ops.sok_embed_adaptive_static_gradient(
            own=own,
            buckets=buckets,
            gradients=upstream,
            tokens=[token],
            dim=dim,
            static_rows=op.get_attr("num_static_rows"),
        )
    slices = tf.IndexedSlices(values, indices, dense_shape=_shape_of(static))
    owned = None
    if op.get_attr("own_gradient"):
        owned = deposit(receipt, upstream, has_marks(anchor), embeddings.device)
    return [None, slices, None, None, None, owned]


def _served(
    table: ServedRows,
    static: tf.Variable,
    keys: tf.Tensor,
    buckets: tf.Tensor,
    mask: tf.Tensor,
    absent_value: float | None,
) -> tf.Tensor:
    """Returns what `adaptive_mask_gather` returns in a graph for serving, float32."""
    mask = checked(mask, (mask >= 0) & (mask <= 1), "Expected a mask of 0 and 1. Received:", mask)
    own_rows, exists = table.find(keys)
    own = tf.equal(mask, 1) & exists
    other = tf.gather(static, buckets) if absent_value is None else tf.constant(absent_value)
    return tf.where(own[..., tf.newaxis], own_rows, other)


@tf.RegisterGradient("SokEmbed>AdaptiveMaskGather")
def _adaptive_mask_gather_gradient(op: Any, upstream: tf.Tensor, *_: Any) -> list[Any]:
    _, static, _, buckets, _, anchor, *counts = op.inputs
    _, receipt, own, hashed = op.outputs
    if op.get_attr("hash_keys"):
        buckets = hashed
    dim = op.get_attr("dim")
    with on_cpu():
        values, indices = ops.sok_embed_adaptive_static_gradient(
            own=own, buckets=buckets, gradients=upstream, tokens=[], dim=dim
        )
    slices = tf.IndexedSlices(values, indices, dense_shape=_shape_of(static))
    owned = None
    if op.get_attr("own_gradient"):
        owned = deposit(receipt, upstream, has_marks(anchor))
    return [None, slices, None, None, None, owned, *[None] * len(counts)]


@tf.RegisterGradient("SokEmbed>AdaptiveStaticGradient")
def _static_gradient_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[Any]:
    own, buckets, gradients, *token = op.inputs
    rows = op.outputs[1]
    # The rows are distinct, and come first, so that they keep their numbers; a bucket that own rows
    # alone have is not among them.
    _, places = tf.unique(tf.concat([rows, tf.reshape(buckets, [-1])], 0))
    places, count = places[tf.size(rows) :], tf.size(rows)
    upstream = tf.pad(tf.convert_to_tensor(upstream), [[0, 1], [0, 0]])
    found = tf.reshape(tf.gather(upstream, tf.minimum(places, count)), tf.shape(gradients))
    of_gradients = tf.where(own[..., tf.newaxis], tf.zeros_like(found), found)
    return [None, None, tf.cast(of_gradients, gradients.dtype), *[None] * len(token)]


def _shape_of(static: tf.Tensor) -> tf.Tensor:
    # int32, as in the slices that TensorFlow makes for the other branch of a tf.cond.
    shape = tf.raw_ops.VariableShape(input=static, out_type=tf.int32)
    shape.set_shape([2])
    return shape


def bind_slots(
    table: tf.Tensor, slot_sources: Sequence[tf.Tensor], device: str | None = None
) -> tf.Tensor:
    """Sets the slots of a table's static rows, for use before the first commit sets them.

    Args:
        table: A handle.
        slot_sources: The slots, as in `commit`, at least one. Variables that have no value yet are
            skipped when a row is made.
        device: The name of the GPU whose memory has them. `None`: they are in the host's memory.

    Returns:
        A float32 zero.
    """
    with on_cpu() if device is None else tf.device(device):
        token = ops.sok_embed_slots_token(slot_sources=list(slot_sources))
    with on_cpu():
        return ops.sok_embed_bind_slots(table=table, token=token)


def evict(
    table: tf.Tensor,
    dim: int,
    *,
    max_age: int = 0,
    min_l2: float = 0.0,
    every: int = 1,
    after: tf.Tensor | float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Removes rows that were not updated for long, and rows that are nearly zero.

    It does so once in each step of the table that is a multiple of `every`.

    Args:
        table: A handle.
        dim: The length of a row.
        max_age: The ticks of the table's clock (seconds, or steps with `step_clock`) after its last
            update when a row is removed; 0: never.
        min_l2: Rows of a smaller Euclidean norm are removed.
        every: See above.
        after: A float32 that must have been computed before, such as the anchor of a commit.

    Returns:
        Keys int64 `[m]` and embeddings float32 `[m, dim]` of the rows that were removed.
    """
    keys, embeddings = ops.sok_embed_evict(
        table=table, after=after, dim=dim, max_age=max_age, min_l2=min_l2, every=every
    )
    return keys, embeddings
