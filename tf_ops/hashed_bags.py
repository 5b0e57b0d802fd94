"""Bags of rows of a table that is hashed into a one-dimensional weight, and their gradients."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from sok_embed.tf_ops import stock_bags, stock_hashed_bags
from sok_embed.tf_ops.native import ops
from sok_embed.tf_ops.served import is_serving

# A step that touches less than this share of the weight has a sparse gradient. With it Keras' SGD
# and Adagrad were 1.3 to 5 times as fast, and Adam, which the op cannot recognize, a third as fast;
# see docs/decisions/hashed-weights.md.
_SPARSE_BELOW = 1 / 256
# If a graph is traced without knowing the size of batches, they are assumed to have so many rows,
# each with the number of ids in the trace, or so many ids.
_NOMINAL_ROWS = 512
_NOMINAL_ENTRIES = 8_192

_NO_OFFSETS = np.zeros([0], np.int64)

_FLOATS = (tf.float32, tf.bfloat16, tf.float16, tf.float64)


class HashSpec(NamedTuple):
    """The map from the elements of a virtual table to positions in a weight.

    Element `(id, d)` is `sign(id, d) * weight[position(id, d)]`, and `block_size` neighbouring
    elements have neighbouring positions.

    Attributes:
        hash: `"mixed"`, a 64-bit hash of seed, id and block; `"original"`, that of the PyTorch
            project HashedEmbeddingBag; `"modulo"`, `(id * dim + d) % size`, which is the plain
            table where the weight has room for it.
        seed: The seed of `"mixed"` and of the signs, any 64-bit integer.
        sign: True if elements are multiplied by a hash of 1 or -1 (Weinberger et al. 2009).
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
    sparse_below: float = _SPARSE_BELOW,
) -> tf.Tensor:
    """Returns the sum, mean or maximum of the rows of each bag. Differentiable.

    Sums are in float32 (float64 for float64), in the order of the ids. The result and its
    gradients are the same in every run, bit for bit, with any number of threads.

    Args:
        weight: `[size]`, float32, bfloat16, float16 or float64. From a variable with a sparse
            gradient only the positions of the batch are read.
        ids: int32 or int64, `[n]` with offsets; `[b, k]` without, for `b` bags of `k`.
        offsets: int32 or int64, `[b]`: where each bag begins in `ids`.
        per_sample_weights: The shape of `ids` and the dtype of the output: factors of the rows.
            With mode `"sum"` only. Differentiable.
        num_embeddings: Ids are below it.
        embedding_dim: The length of a row.
        mode: `"sum"`, `"mean"` or `"max"`. A bag without ids is zeros.
        spec: The map from rows to positions in the weight.
        padding_idx: The id that takes no part.
        include_last_offset: True if `offsets` is `[b + 1]`, its last element the number of ids.
        dtype: The dtype of the output. float64 goes with a weight of float64 only. `None`: the
            weight's.
        gradient: The form of the weight's gradient: `"dense"`; `"sparse"`, a `tf.IndexedSlices` of
            distinct positions, ascending; `"auto"`, sparse where the batch touches a small part of
            the weight, and the gradient is taken in the function that makes the call.
        sparse_below: The share of the weight below which `"auto"` takes a sparse gradient.

    Returns:
        `[b, embedding_dim]`.

    Raises:
        ValueError: For a `gradient` that is none of these, or dtypes that do not go together.
        tf.errors.InvalidArgumentError: For an id outside of `[0, num_embeddings)`, offsets that
            begin elsewhere than at 0, decrease or exceed the number of ids, a weight of size 0.
            With the weight on a GPU the bag of such an id or offset is NaN, and the next call there
            raises.
        tf.errors.UnavailableError: For a weight on a GPU without a driver or NVRTC.
    """
    weight = _as_weight(weight)
    ids = tf.convert_to_tensor(ids)
    dtype = weight.dtype if dtype is None else tf.as_dtype(dtype)
    _check_dtypes(weight.dtype, dtype)
    if padding_idx is not None and not 0 <= padding_idx < num_embeddings:
        raise ValueError(f"Expected padding_idx in [0, {num_embeddings}). Received: {padding_idx}.")
    if is_serving():
        return stock_hashed_bags.hashed_bag(
            weight,
            ids,
            offsets,
            None if per_sample_weights is None else _as_scales(per_sample_weights, dtype),
            num_embeddings=num_embeddings,
            embedding_dim=embedding_dim,
            mode=mode,
            spec=spec,
            padding_idx=padding_idx,
            include_last_offset=include_last_offset,
            dtype=dtype,
        )
    scaled = per_sample_weights is not None
    size = weight.shape[0]
    if gradient == "auto" and not _touches_few(size, ids.shape, embedding_dim, sparse_below):
        gradient = "dense"
    arguments = {
        "ids": ids,
        "offsets": _NO_OFFSETS if offsets is None else offsets,
        "scales": _as_scales(per_sample_weights, dtype),
        "num_embeddings": num_embeddings,
        "embedding_dim": embedding_dim,
        "mode": mode,
        **_attributes(spec),
        "padding_idx": -1 if padding_idx is None else padding_idx,
        "include_last_offset": include_last_offset,
        "scaled": scaled,
        "gradient": _checked(gradient),
        "wide_shape": size is None or size >= 2**31,
    }
    # A variable that is updated sparsely is copied whenever it is read as a whole. The gradient of
    # factors needs the weight of the forward pass, and so the copy.
    if gradient != "dense" and not scaled and _in_reach(weight):
        weight.sparse_read(tf.zeros([0], tf.int64))  # shows the variable to the gradient tape
        with _beside(weight):
            bags, _ = ops.sok_embed_resource_hashed_bag(
                weight=weight.handle, T=weight.dtype, **arguments
            )
    else:
        with _beside(weight):
            bags, _ = ops.sok_embed_hashed_bag(weight=tf.convert_to_tensor(weight), **arguments)
    return bags


def row_splits(rows: tf.Tensor, num_rows: tf.Tensor | int) -> tf.Tensor:
    """Returns the row splits of entries that are sorted by row.

    Args:
        rows: int64 `[n]`, non-decreasing, in `[0, num_rows)`: the first column of the indices of a
            `tf.SparseTensor`.
        num_rows: Scalar.

    Returns:
        int64 `[num_rows + 1]`.

    Raises:
        tf.errors.InvalidArgumentError: For rows that decrease or are out of range.
    """
    if is_serving():
        return stock_bags.row_splits(rows, tf.cast(num_rows, tf.int64))
    return ops.sok_embed_row_splits(rows=rows, num_rows=tf.cast(num_rows, tf.int64))


def hash_positions(
    ids: tf.Tensor, size: int, *, embedding_dim: int, spec: HashSpec = _MIXED
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the positions of the elements of rows in a weight, and their signs.

    Args:
        ids: int64 `[n]`.
        size: The size of the weight.
        embedding_dim: The length of a row.
        spec: The map from rows to positions.

    Returns:
        int64 `[n, embedding_dim]`, positions in `[0, size)`, and int8 of the same shape, 1 or -1.
    """
    positions, signs = ops.sok_embed_hash_positions(
        ids=tf.cast(ids, tf.int64),
        size=tf.constant(size, tf.int64),
        embedding_dim=embedding_dim,
        **_attributes(spec),
    )
    return positions, signs


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
        "Expected a weight and an output of float32, bfloat16 or float16, or both of float64. "
        f"Received: a weight of {weight.name} and an output of {output.name}."
    )


def _checked(gradient: str) -> str:
    if gradient in ("auto", "dense", "sparse"):
        return gradient
    raise ValueError(
        f'Expected gradient to be "auto", "dense" or "sparse". Received: {gradient!r}.'
    )


def _as_weight(weight: Any) -> Any:
    """Returns a tensor or a variable of TensorFlow."""
    if isinstance(weight, keras.Variable):
        return weight.value
    is_tensor = tf.is_tensor(weight) or isinstance(weight, tf.Variable)
    return weight if is_tensor else tf.convert_to_tensor(weight)


def _as_scales(scales: Any, dtype: tf.DType) -> Any:
    """Returns factors in the dtype of the output."""
    if scales is None:
        return np.zeros([], dtype.as_numpy_dtype)
    scales = tf.convert_to_tensor(scales)
    if not scales.dtype.is_floating:
        raise ValueError(
            f"Expected per_sample_weights to be floats. Received: {scales.dtype.name}. Cast them."
        )
    return tf.cast(scales, dtype)


def _touches_few(size: int | None, ids: tf.TensorShape, dim: int, share: float) -> bool:
    """Returns whether a batch touches less than a share of the weight, on one replica.

    Slices of several replicas are joined, and optimizers take equal positions one by one.
    """
    if size is None or tf.distribute.get_strategy().num_replicas_in_sync > 1:
        return False
    return _entries(ids) * dim < share * size


def _entries(ids: tf.TensorShape) -> int:
    """Returns how many ids a batch has, or is assumed to have if the graph does not know."""
    if ids.is_fully_defined():
        return int(ids.num_elements())
    if ids.rank == 2 and ids[1] is not None:
        return _NOMINAL_ROWS * int(ids[1])
    return _NOMINAL_ENTRIES


def _in_reach(weight: Any) -> bool:
    """Returns whether the op can read a weight in place: a variable of this process' memory."""
    return (
        isinstance(weight, tf.Variable)
        and not isinstance(weight, tf.distribute.DistributedValues)
        and _device_of(weight).device_type in (None, "CPU", "GPU")
    )


def _device_of(tensor: Any) -> tf.DeviceSpec:
    return tf.DeviceSpec.from_string(tensor.device or "")


def _beside(tensor: Any) -> Any:
    """Returns the scope of a tensor's device, so that the tensor is not copied.

    Without it the op would be on the CPU, or in a function on the device where that is called.
    """
    device = _device_of(tensor)
    if device.device_type not in ("GPU" if tf.executing_eagerly() else "CPU GPU").split():
        return contextlib.nullcontext()
    return tf.device(device.replace(job=None, replica=None, task=None))


_ATTRIBUTES = (
    "T num_embeddings embedding_dim mode hash seed sign block_size padding_idx "
    "include_last_offset scaled"
).split()


@tf.RegisterGradient("SokEmbed>HashedBag")
@tf.RegisterGradient("SokEmbed>ResourceHashedBag")
def _hashed_bag_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[Any]:
    weight, ids, offsets, scales = op.inputs
    attributes = {name: op.get_attr(name) for name in _ATTRIBUTES}
    if weight.dtype == tf.resource:
        (size,) = tf.unstack(tf.raw_ops.VariableShape(input=weight, out_type=tf.int64), 1)
    else:
        size = tf.size(weight, tf.int64)
    arguments = {"upstream": upstream, "ids": ids, "offsets": offsets, "scales": scales}
    whole = {**arguments, "winners": op.outputs[1], "size": size, **attributes}
    if _gives_slices(op):
        with _beside(op.outputs[0]):
            positions, sums = ops.sok_embed_hashed_bag_sparse_gradient(**whole)
        # Indices are int32 if they fit, as in slices of TensorFlow's own ops, to which these may be
        # added.
        shape = tf.cast(size, tf.int64 if op.get_attr("wide_shape") else tf.int32)
        of_weight: Any = tf.IndexedSlices(sums, positions, tf.reshape(shape, [1]))
    else:
        with _beside(op.outputs[0]):
            of_weight = ops.sok_embed_hashed_bag_gradient(**whole)
    of_scales = None
    if attributes.pop("scaled"):
        del attributes["T"]
        with _beside(op.outputs[0]):
            of_scales = ops.sok_embed_hashed_bag_scale_gradient(
                **arguments, weight=weight, scaled=True, **attributes
            )
    return [of_weight, None, None, of_scales]


@tf.RegisterGradient("SokEmbed>HashedBagGradient")
def _dense_gradient_gradient(op: Any, tangent: tf.Tensor) -> list[Any]:
    return _second_gradient(op, tangent)


@tf.RegisterGradient("SokEmbed>HashedBagSparseGradient")
def _sparse_gradient_gradient(op: Any, _: Any, tangent: tf.Tensor) -> list[Any]:
    positions, size = op.outputs[0], op.inputs[5]
    return _second_gradient(op, tf.scatter_nd(positions[:, None], tangent, size[None]))


def _second_gradient(op: Any, tangent: tf.Tensor) -> list[Any]:
    """Differentiates the weight's gradient by a forward pass: it is linear in the upstream one."""
    upstream, ids, offsets, scales, _, _ = op.inputs
    attributes = {name: op.get_attr(name) for name in _ATTRIBUTES}
    del attributes["T"]
    if tf.compat.as_str(attributes["mode"]) == "max":
        raise ValueError(
            "Expected the mode sum or mean for a second derivative of a hashed bag. Received: max."
        )
    inputs = {"ids": ids, "offsets": offsets, "scales": scales, "weight": tangent}
    of_scales = None
    with _beside(op.outputs[0]):
        of_upstream, _ = ops.sok_embed_hashed_bag(
            **inputs, **attributes, gradient="dense", wide_shape=False
        )
        if attributes["scaled"]:
            of_scales = ops.sok_embed_hashed_bag_scale_gradient(
                upstream=upstream, **inputs, **attributes
            )
    return [of_upstream, None, None, of_scales, None, None]


def _gives_slices(op: Any) -> bool:
    """Returns whether the gradient must be sparse.

    A function that was traced before may be called several times in a step, and slices of several
    calls are only appended to each other. So "auto" means slices only in the function that made the
    op, where there is one call.
    """
    gradient = tf.compat.as_str(op.get_attr("gradient"))
    if gradient != "auto":
        return gradient == "sparse"
    return tf.executing_eagerly() or op.outputs[0].graph is tf.compat.v1.get_default_graph()
