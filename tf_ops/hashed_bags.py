"""Bags of rows of a table that is hashed into a one-dimensional weight, and their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed.tf_ops.native import ops

# A sparse gradient is taken where a step touches less than one slot in so many. There SGD and
# Adagrad of Keras are up to 5 times as fast with it, and Adam, which this function cannot know of,
# a third as fast; see docs/decisions/hashed-weights.md.
_SLOTS_PER_TOUCHED = 256
# How many entries a batch is taken to have where a graph is traced without knowing it.
_NOMINAL_ENTRIES = 65_536

_FLOATS = (tf.float32, tf.bfloat16, tf.float64)


class HashSpec(NamedTuple):
    """How the elements of a virtual table are placed in a weight.

    Element `(id, d)` is `sign(id, d) * weight[slot(id, d)]`, and `block_size` neighbouring
    elements have neighbouring slots.

    Attributes:
        hash: `"mixed"`, a 64-bit hash of seed, id and block; `"original"`, that of the PyTorch
            project HashedEmbeddingBag; `"modulo"`, `(id * dim + d) % size`, which is the plain
            table where the weight has room for it.
        seed: Of `"mixed"` and of the signs, any 64-bit integer.
        sign: Whether elements are multiplied by a hash of 1 or -1 (Weinberger et al. 2009).
        block_size: Elements a block.
    """

    hash: str = "mixed"
    seed: int = 0
    sign: bool = False
    block_size: int = 1


_MIXED = HashSpec()


def hashed_bag(
    weight: tf.Tensor | tf.Variable,
    ids: tf.Tensor,
    offsets: tf.Tensor | None = None,
    per_sample_weights: tf.Tensor | None = None,
    *,
    num_embeddings: int,
    embedding_dim: int,
    mode: str = "sum",
    spec: HashSpec = _MIXED,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    dtype: tf.DType | None = None,
    gradient: str = "auto",
) -> tf.Tensor:
    """Sums, averages or takes the greatest of the rows of each bag. Differentiable.

    Sums are in float32 (float64 for float64), in the order of the ids. The result and its
    gradients are the same in every run, bit for bit, with any number of threads.

    Args:
        weight: `[size]`, float32, bfloat16 or float64. From a variable with a sparse gradient only
            the slots of the batch are read.
        ids: int32 or int64, `[n]` with offsets; `[b, k]` without, for `b` bags of `k`.
        offsets: int32 or int64, `[b]`: where each bag begins in `ids`.
        per_sample_weights: The shape of `ids` and the dtype of the output: factors of the rows.
            With mode `"sum"` only. Differentiable.
        num_embeddings: Ids are below it.
        embedding_dim: The length of a row.
        mode: `"sum"`, `"mean"` or `"max"`. A bag without ids is zeros.
        spec: How rows are placed in the weight.
        padding_idx: The id that takes no part.
        include_last_offset: Whether `offsets` is `[b + 1]`, its last one the number of ids.
        dtype: Of the output. float64 goes with a weight of float64 only. `None`: the weight's.
        gradient: Of the weight: `"dense"`; `"sparse"`, a `tf.IndexedSlices` of distinct slots,
            ascending; `"auto"`, sparse where the batch touches a small part of the weight.

    Returns:
        `[b, embedding_dim]`.

    Raises:
        ValueError: For a `gradient` that is none of these, or dtypes that do not go together.
        tf.errors.InvalidArgumentError: For an id outside of `[0, num_embeddings)`, offsets that
            begin elsewhere than at 0, decrease or exceed the number of ids, a weight of size 0.
    """
    ids = tf.convert_to_tensor(ids)
    dtype = weight.dtype if dtype is None else tf.as_dtype(dtype)
    _check_dtypes(weight.dtype, dtype)
    sparse = _is_sparse(gradient, weight.shape[0], ids.shape, embedding_dim)
    scales = tf.zeros([], dtype) if per_sample_weights is None else per_sample_weights
    arguments = {
        "ids": ids,
        "offsets": tf.zeros([0], ids.dtype) if offsets is None else offsets,
        "scales": scales,
        "T": weight.dtype,
        "num_embeddings": num_embeddings,
        "embedding_dim": embedding_dim,
        "mode": mode,
        **_attributes(spec),
        "padding_idx": -1 if padding_idx is None else padding_idx,
        "include_last_offset": include_last_offset,
        "sparse_gradient": sparse,
    }
    # A variable that is updated sparsely is copied whenever it is read as a whole. The gradient of
    # factors needs the weight as it was: that is worth the copy.
    if sparse and per_sample_weights is None and _in_reach(weight):
        weight.sparse_read(tf.zeros([0], tf.int64))  # tells the gradient tape of the variable
        bags, _ = ops.sok_embed_resource_hashed_bag(weight=weight.handle, **arguments)
        return bags
    del arguments["T"]
    bags, _ = ops.sok_embed_hashed_bag(weight=tf.convert_to_tensor(weight), **arguments)
    return bags


def row_splits(rows: tf.Tensor, num_rows: tf.Tensor | int) -> tf.Tensor:
    """Where the entries of each row begin and end, for entries sorted by row.

    Args:
        rows: int64 `[n]`, non-decreasing, in `[0, num_rows)`: the first column of the indices of a
            `tf.SparseTensor`.
        num_rows: Scalar.

    Returns:
        int64 `[num_rows + 1]`.

    Raises:
        tf.errors.InvalidArgumentError: For rows that decrease or are out of range.
    """
    return ops.sok_embed_row_splits(rows=rows, num_rows=tf.cast(num_rows, tf.int64))


def hash_slots(
    ids: tf.Tensor, size: int, *, embedding_dim: int, spec: HashSpec = _MIXED
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the elements of rows lie in a weight, and their signs.

    Args:
        ids: int64 `[n]`.
        size: Of the weight.
        embedding_dim: The length of a row.
        spec: How rows are placed.

    Returns:
        int64 `[n, embedding_dim]`, slots in `[0, size)`, and int8 of the same shape, 1 or -1.
    """
    slots, signs = ops.sok_embed_hash_slots(
        ids=tf.cast(ids, tf.int64),
        size=tf.constant(size, tf.int64),
        embedding_dim=embedding_dim,
        **_attributes(spec),
    )
    return slots, signs


def _attributes(spec: HashSpec) -> dict[str, Any]:
    seed = (spec.seed + 2**63) % 2**64 - 2**63
    return {
        "hash": spec.hash,
        "seed": seed,
        "sign": spec.sign,
        "block_size": spec.block_size,
    }


def _check_dtypes(weight: tf.DType, output: tf.DType) -> None:
    if {weight, output} <= set(_FLOATS) and (weight == tf.float64) == (output == tf.float64):
        return
    raise ValueError(
        "Expected a weight and an output of float32 or bfloat16, or both of float64. Received: a "
        f"weight of {weight.name} and an output of {output.name}."
    )


def _is_sparse(gradient: str, size: int | None, ids: tf.TensorShape, dim: int) -> bool:
    if gradient in ("dense", "sparse"):
        return gradient == "sparse"
    if gradient != "auto":
        raise ValueError(
            f'Expected gradient to be "auto", "dense" or "sparse". Received: {gradient!r}.'
        )
    # Slices of several replicas are joined, and optimizers take equal slots one by one.
    if size is None or tf.distribute.get_strategy().num_replicas_in_sync > 1:
        return False
    entries = ids.num_elements() if ids.is_fully_defined() else _NOMINAL_ENTRIES
    return entries * dim * _SLOTS_PER_TOUCHED < size


def _in_reach(weight: Any) -> bool:
    """Whether the op can read a weight in place: a variable of this process' memory."""
    return (
        isinstance(weight, tf.Variable)
        and not isinstance(weight, tf.distribute.DistributedValues)
        and "GPU" not in weight.device
    )


@tf.RegisterGradient("SokEmbed>HashedBag")
@tf.RegisterGradient("SokEmbed>ResourceHashedBag")
def _hashed_bag_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[Any]:
    weight, ids, offsets, scales = op.inputs
    winners = op.outputs[1]
    names = (
        "T num_embeddings embedding_dim mode hash seed sign block_size padding_idx "
        "include_last_offset"
    )
    attributes = {name: op.get_attr(name) for name in names.split()}
    if weight.dtype == tf.resource:
        (size,) = tf.unstack(tf.raw_ops.VariableShape(input=weight, out_type=tf.int64), 1)
    else:
        size = tf.size(weight, tf.int64)
    arguments = {"upstream": upstream, "ids": ids, "offsets": offsets, "scales": scales}
    both = {**arguments, "winners": winners, "size": size, **attributes}
    if op.get_attr("sparse_gradient"):
        slots, sums = ops.sok_embed_hashed_bag_sparse_gradient(**both)
        of_weight: Any = tf.IndexedSlices(sums, slots, tf.reshape(size, [1]))
    else:
        of_weight = ops.sok_embed_hashed_bag_gradient(**both)
    of_scales = None
    if scales.shape.rank != 0:
        del attributes["T"]
        of_scales = ops.sok_embed_hashed_bag_scale_gradient(
            **arguments, weight=weight, **attributes
        )
    return [of_weight, None, None, of_scales]
