"""One embedding for each row of ids, from those of its entries."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.keras_bridge.private_state import mask_of
from sok_embed.lookups.input_forms import Form, shape_text

COMBINERS = ("sum", "mean", "sqrtn")


def check_ids(layer: str, combiner: str | None, ids: Form) -> None:
    """Raises ValueError for ids of a form that no embedding can be made of.

    Args:
        layer: The name of the layer.
        combiner: Of the layer.
        ids: What is known of them.
    """
    rank = None if ids.shape is None else len(ids.shape)
    if ids.kind == "sparse" and combiner is None:
        raise ValueError(
            f"Layer '{layer}': expected a dense or a ragged tensor without a combiner. "
            "Received: a sparse one. Give the layer a combiner, or make it ragged with "
            "tf.RaggedTensor.from_sparse."
        )
    if ids.kind == "sparse" and rank != 2:
        raise ValueError(
            f"Layer '{layer}': expected a sparse tensor [B, N]. Received: shape "
            f"{shape_text(ids.shape)}."
        )
    if rank == 0 and combiner is not None:
        raise ValueError(
            f"Layer '{layer}': expected keys of shape [..., n], with a combiner. Received: "
            "shape []."
        )


def refuse_padding_mask(layer: str, ids: Any) -> None:
    """Raises ValueError for ids that Keras has attached a mask to, in a layer with a combiner."""
    if mask_of(ids) is not None:
        raise ValueError(
            f"Layer '{layer}': expected inputs without a Keras mask, with a combiner. "
            "Received: some with one. Leave padding out: pass a ragged or a sparse tensor."
        )


def output_spec(
    ids: Any, shape: tuple[int | None, ...], dtype: str, combiner: str | None
) -> keras.KerasTensor:
    """The output of a symbolic call, ragged where ids are ragged before their pooled axis.

    Args:
        ids: Symbolic.
        shape: Of the output.
        dtype: Of the output.
        combiner: Of the layer.
    """
    ragged_rank = getattr(ids, "ragged_rank", None)
    ragged = Form.of(ids).kind == "ragged"
    if ragged and combiner is not None:
        ragged_rank = ragged_rank or 1
        if len(shape) - 1 <= ragged_rank:  # the pooled axis is ragged itself
            ragged_rank -= 1
        ragged = ragged_rank > 0
    return keras.KerasTensor(shape, dtype=dtype, ragged=ragged, ragged_rank=ragged_rank)


def rows_of(ids: Any) -> tf.Tensor | None:
    """Returns where the innermost rows of ragged and sparse ids begin and end, or `None`.

    Raises:
        tf.errors.InvalidArgumentError: For a sparse tensor whose rows are in no order.
    """
    if isinstance(ids, tf.RaggedTensor) and ids.flat_values.shape.rank == 1:
        return ids.nested_row_splits[-1]
    if isinstance(ids, tf.SparseTensor):
        return tf_ops.row_splits(ids.indices[:, 0], ids.dense_shape[0])
    return None


def combine(embeddings: tf.Tensor, ids: Any, splits: tf.Tensor | None, combiner: str) -> Any:
    """Reduces over the last axis of ids: their sum, or that by the number of entries or its root.

    Args:
        embeddings: float32, of the flat values of the ids and `[dim]`.
        ids: Dense `[..., n]`; ragged; or sparse `[B, n]`.
        splits: `rows_of` the ids.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.

    Returns:
        float32: the shape of the ids without its last axis, and `[dim]`. Zeros for rows without
        entries.
    """
    if splits is None:
        combined = _combine_axis(embeddings, combiner)
        is_ragged = isinstance(ids, tf.RaggedTensor)
        return ids.with_flat_values(combined) if is_ragged else combined
    combined = combine_rows(embeddings, splits, combiner)
    if isinstance(ids, tf.RaggedTensor) and ids.ragged_rank > 1:
        outer = ids.nested_row_splits[:-1]
        return tf.RaggedTensor.from_nested_row_splits(combined, outer, validate=False)
    combined.set_shape([ids.shape[0], embeddings.shape[-1]])
    return combined


def _combine_axis(embeddings: tf.Tensor, combiner: str) -> tf.Tensor:
    entries = tf.shape(embeddings)[-2]
    return _divided(tf.reduce_sum(embeddings, -2), entries, combiner)


def combine_rows(embeddings: tf.Tensor, splits: tf.Tensor, combiner: str) -> tf.Tensor:
    """Reduces rows of embeddings `[n, dim]`, from one split to the next: `[splits - 1, dim]`."""
    entries = splits[1:] - splits[:-1]
    rows = tf.size(entries)
    places = tf.repeat(tf.range(rows), entries)
    sums = tf.math.unsorted_segment_sum(embeddings, places, rows)
    return _divided(sums, entries[:, tf.newaxis], combiner)


def _divided(sums: tf.Tensor, entries: tf.Tensor, combiner: str) -> tf.Tensor:
    if combiner == "sum":
        return sums
    divisor = tf.cast(tf.maximum(entries, 1), sums.dtype)
    return sums / (divisor if combiner == "mean" else tf.sqrt(divisor))
