"""The forms of inputs of layers: dense, ragged or sparse, symbolic or not."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed.tf_ops.served import checked


class Form(NamedTuple):
    """The properties of a tensor that are known before its values.

    Attributes:
        kind: `"dense"`, `"ragged"` or `"sparse"`.
        shape: `None`: of unknown rank.
    """

    kind: str
    shape: tuple[int | None, ...] | None
    dtype: str

    @classmethod
    def of(cls, tensor: Any) -> Form:
        """Returns the form of a tensor, an array or a symbolic tensor."""
        is_ragged = isinstance(tensor, tf.RaggedTensor) or getattr(tensor, "ragged", False)
        is_sparse = isinstance(tensor, tf.SparseTensor) or getattr(tensor, "sparse", False)
        kind = "ragged" if is_ragged else "sparse" if is_sparse else "dense"
        shape = tf.TensorShape(tensor.shape)
        return cls(
            kind,
            None if shape.rank is None else tuple(shape.as_list()),
            tf.as_dtype(tensor.dtype).name,
        )


def flat_values(ids: Any) -> tf.Tensor:
    """Returns the ids as a dense tensor; ids of ragged and sparse tensors come in row order."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.flat_values
    return ids.values if isinstance(ids, tf.SparseTensor) else ids


def _equal(some: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns whether two tensors `[n, …]` are the same, which may have other lengths."""
    both = tf.minimum(tf.shape(some)[0], tf.shape(others)[0])
    same = tf.equal(tf.cast(some[:both], tf.int64), tf.cast(others[:both], tf.int64))
    return tf.equal(tf.shape(some)[0], tf.shape(others)[0]) & tf.reduce_all(same)


def values_beside(name: str, tensor: Any, ids: tf.RaggedTensor | tf.SparseTensor) -> Any:
    """Returns the flat values of a tensor that must lie as the ids do.

    A flat tensor is returned as it is.

    Raises:
        ValueError: For ragged values of another ragged rank.
        tf.errors.InvalidArgumentError: If row splits or indices differ.
    """
    if not isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
        return tensor
    # A ragged tensor has row splits, of either integer type; a sparse one has indices.
    if isinstance(tensor, tf.RaggedTensor):
        if tensor.ragged_rank != ids.ragged_rank:
            raise ValueError(
                f"Expected {name} with {ids.ragged_rank} ragged dimensions, as the input. "
                f"Received: {tensor.ragged_rank}."
            )
        places, values = "row_splits", tensor.flat_values
        pairs = zip(tensor.nested_row_splits, ids.nested_row_splits, strict=True)
    else:
        places, values = "indices", tensor.values
        pairs = zip([tensor.indices], [ids.indices], strict=True)
    for own, others in pairs:
        if own is not others:
            message = f"Expected {name} with the {places} of the input. Received:"
            values = checked(values, _equal(own, others), message, own)
    return values


def check_beside(what: str, name: str, values: Any, ids: Any) -> None:
    """Checks that values have the form of ids. Values of ragged and sparse ids may be flat.

    Raises:
        ValueError: For values of another kind or shape.
    """
    form, own = Form.of(values), Form.of(ids)
    flat = form.kind == "dense" and form.shape is not None and len(form.shape) == 1
    alike = form.kind == own.kind and tf.TensorShape(form.shape).is_compatible_with(own.shape)
    if not alike and not (flat and own.kind != "dense"):
        also = "" if own.kind == "dense" else ", or [n]"
        raise ValueError(
            f"{what}: expected {name} as the input, {own.kind} of shape {shape_text(own.shape)}"
            f"{also}. Received: {form.kind} of shape {shape_text(form.shape)}."
        )


def shape_text(shape: Any) -> str:
    """Returns a shape as messages show it."""
    if shape is None:
        return "of unknown rank"
    return f"[{', '.join('None' if size is None else str(size) for size in shape)}]"
