"""Makes the lookups of `tf.nn` accept embedding variables.

TensorFlow dispatches to these functions by the type of an argument. Its own functions are not
changed.
"""

from __future__ import annotations

from typing import Any, List, Union  # noqa: UP035  # as TensorFlow's dispatcher reads them

import tensorflow as tf

from sok_embed.arguments import shown
from sok_embed.feature_column.embedding_variable import EmbeddingVariable
from sok_embed.lookups.input_forms import values_beside

# A list has the parts of a partitioned variable.
_Variables = Union[EmbeddingVariable, List[EmbeddingVariable]]  # noqa: UP006, UP007


@tf.experimental.dispatch_for_api(tf.compat.v1.nn.embedding_lookup, {"params": _Variables})
def _embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Any:
    return _embedding_lookup_v2(params, ids, max_norm, name)


@tf.experimental.dispatch_for_api(tf.nn.embedding_lookup, {"params": _Variables})
def _embedding_lookup_v2(
    params: Any, ids: Any, max_norm: float | None = None, name: str | None = None
) -> Any:
    variable = _single(params)
    if isinstance(ids, tf.RaggedTensor):
        rows = _embedding_lookup_v2(variable, ids.flat_values, max_norm, name)
        return ids.with_flat_values(rows)
    rows = variable.sparse_read(ids, name)
    return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[-1])


@tf.experimental.dispatch_for_api(tf.compat.v1.nn.embedding_lookup_sparse, {"params": _Variables})
def _embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    allow_fast_lookup: bool = False,
) -> tf.Tensor:
    return _embedding_lookup_sparse_v2(params, sp_ids, sp_weights, combiner, max_norm, name)


@tf.experimental.dispatch_for_api(tf.nn.embedding_lookup_sparse, {"params": _Variables})
def _embedding_lookup_sparse_v2(
    params: Any,
    sp_ids: Any,
    sp_weights: Any,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> tf.Tensor:
    ids, weights = _sparse(sp_ids, sp_weights)
    with tf.name_scope(name or "embedding_lookup_sparse"):
        return _single(params).combine(ids, weights, combiner or "mean", max_norm, safe=False)


@tf.experimental.dispatch_for_api(
    tf.compat.v1.nn.safe_embedding_lookup_sparse, {"embedding_weights": _Variables}
)
def _safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: Any = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
    allow_fast_lookup: bool = False,
) -> tf.Tensor:
    return _safe_embedding_lookup_sparse_v2(
        embedding_weights, sparse_ids, sparse_weights, combiner, default_id, max_norm, name
    )


@tf.experimental.dispatch_for_api(
    tf.nn.safe_embedding_lookup_sparse, {"embedding_weights": _Variables}
)
def _safe_embedding_lookup_sparse_v2(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: Any = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> tf.Tensor:
    variable = _single(embedding_weights)
    ids, weights = _sparse(sparse_ids, sparse_weights)
    with tf.name_scope(name or "safe_embedding_lookup_sparse"):
        if ids.dtype.is_integer:
            ids, weights = _retain(ids.values >= 0, ids, weights)
        if default_id is not None:
            if weights is not None and combiner != "sum":
                ids, weights = _retain(weights.values > 0, ids, weights)
            ids, weights = _filled(variable, ids, weights, default_id)
        return variable.combine(ids, weights, combiner, max_norm, safe=True)


def _single(variables: Any) -> EmbeddingVariable:
    """Returns the variable of which a list has the parts."""
    if isinstance(variables, EmbeddingVariable):
        return variables
    if len(variables) == 1:
        return variables[0]
    raise ValueError(
        f"Expected one embedding variable. Received: {len(variables)} variables. A variable with a "
        "partitioner is one table, with hidden parts: look up in it alone."
    )


def _sparse(ids: Any, weights: Any) -> tuple[tf.SparseTensor, tf.SparseTensor | None]:
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_sparse()
    if isinstance(weights, tf.RaggedTensor):
        weights = weights.to_sparse()
    for what, tensor in (("ids", ids), ("weights", weights)):
        if not isinstance(tensor, tf.SparseTensor) and not (what == "weights" and tensor is None):
            raise TypeError(f"Expected {what} to be a SparseTensor. Received: {shown(tensor)}.")
    if weights is not None:
        weights = ids.with_values(values_beside("weights", weights, ids))
    return ids, weights


def _retain(kept: tf.Tensor, ids: tf.SparseTensor, weights: tf.SparseTensor | None) -> Any:
    return tf.sparse.retain(ids, kept), None if weights is None else tf.sparse.retain(weights, kept)


def _filled(
    variable: EmbeddingVariable,
    ids: tf.SparseTensor,
    weights: tf.SparseTensor | None,
    default_id: Any,
) -> Any:
    """Returns the ids, with the default of weight 1 in examples that have none."""
    if ids.shape.rank != 2:
        raise ValueError(
            f"Embedding variable '{variable.name}': expected ids of shape [batch, n] with a "
            f"default_id. Received: shape {ids.shape}."
        )
    filled, _ = tf.sparse.fill_empty_rows(ids, tf.cast(default_id, ids.dtype))
    if weights is not None:
        weights, _ = tf.sparse.fill_empty_rows(weights, 1.0)
    return filled, weights
