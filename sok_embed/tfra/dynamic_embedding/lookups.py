"""Defines the functions that look keys up in a `Variable`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sok_embed.arguments import shown
from sok_embed.tfra.dynamic_embedding.variable import Variable
from sok_embed.training.commit import Commit

__all__ = [
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "safe_embedding_lookup_sparse",
    "trainable_wrapper_filter",
]


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Looks keys up, as `tf.nn.embedding_lookup` does.

    Args:
        params: A `Variable`, or a list of one.
        ids: Keys of any shape, which may repeat.
        partition_strategy: Not used, nor is `validate_indices`.
        name: The name of the lookup, for `Variable.get_trainable_by_name`.
        validate_indices: Not used.
        max_norm: The norm to which longer vectors are scaled. `None`: vectors are not scaled.
        return_trainable: True to return the variable's trainable weight, too.

    Returns:
        `ids.shape + [dim]`; with `return_trainable` a pair with the weight, by which a loss is
        differentiated and which the optimizer gets. It is the same weight for all lookups of a
        variable.

    Raises:
        TypeError: For `params` that are not a `Variable`.
        ValueError: For several variables, and for keys that are not integers or strings.
    """
    variable = _variable(params)
    variable.note_lookup(name)
    vectors = variable(tf.convert_to_tensor(ids), max_norm=max_norm)
    return (vectors, variable.anchor) if return_trainable else vectors


# Every lookup reads equal keys once.
embedding_lookup_unique = embedding_lookup
"""The same as `embedding_lookup`: equal keys are read once anyway."""


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any,
    partition_strategy: Any = None,
    name: str | None = "embedding_lookup_sparse",
    combiner: str | None = "mean",
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Looks bags of keys up, as `tf.nn.embedding_lookup_sparse` does.

    Args:
        params: A `Variable`, or a list of one.
        sp_ids: A sparse tensor of keys `[B, L]`, or a ragged one `[B, None]`.
        sp_weights: A tensor of floats with the same indices. `None`: each key counts 1.
        partition_strategy: Not used.
        name: The name of the lookup.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`. `None`: `"mean"`.
        max_norm: The norm that longer vectors are scaled to before they are combined.
        return_trainable: True to return the variable's trainable weight, too.

    Returns:
        `[B, dim]`, zeros for bags without keys; with `return_trainable` a pair with the weight.

    Raises:
        TypeError: For `params` that are not a `Variable`, and a dense tensor of keys.
        ValueError: For another combiner.
    """
    variable = _variable(params)
    combiner = combiner or "mean"
    if combiner not in ("sum", "mean", "sqrtn"):
        raise ValueError(f"Expected sum, mean or sqrtn as combiner. Received: {shown(combiner)}.")
    if not isinstance(sp_ids, tf.SparseTensor | tf.RaggedTensor):
        raise TypeError(
            f"Expected a sparse or a ragged tensor of keys. Received: {type(sp_ids).__name__}. Use "
            "embedding_lookup for a dense one."
        )
    variable.note_lookup(name)
    vectors = variable(sp_ids, weights=sp_weights, combiner=combiner, max_norm=max_norm)
    return (vectors, variable.anchor) if return_trainable else vectors


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str | None = "mean",
    default_id: int | None = None,
    name: str | None = "safe_embedding_lookup_sparse",
    partition_strategy: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """Looks bags of keys up, of which some may be empty.

    Negative keys have rows like all keys. Keys whose weight is not above 0 are left out, unless the
    combiner is `"sum"`.

    Args:
        embedding_weights: A `Variable`, or a list of one.
        sparse_ids: A sparse tensor of keys `[..., L]`.
        sparse_weights: A sparse tensor of floats with the same indices. `None`: each key counts 1.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`. `None`: `"mean"`.
        default_id: The key whose vector an empty bag has. `None`: an empty bag has zeros.
        name: The name of the lookup.
        partition_strategy: Not used.
        max_norm: The norm that longer vectors are scaled to before they are combined.
        return_trainable: True to return the variable's trainable weight, too.

    Returns:
        `[..., dim]`; with `return_trainable` a pair with the weight.

    Raises:
        TypeError: For weights that are not a `Variable`, and keys that are not a sparse tensor.
        ValueError: For another combiner.
    """
    variable = _variable(embedding_weights)
    if not isinstance(sparse_ids, tf.SparseTensor):
        raise TypeError(
            f"Expected a sparse tensor of keys. Received: {type(sparse_ids).__name__}. Make it one "
            "by tf.sparse.from_dense, or by to_sparse() of a ragged one."
        )
    shape = sparse_ids.dense_shape
    bags = [tf.reduce_prod(shape[:-1]), shape[-1]]
    ids = tf.sparse.reshape(sparse_ids, bags)
    weights = sparse_weights
    if weights is not None:
        weights = tf.SparseTensor(ids.indices, weights.values, ids.dense_shape)
        if combiner != "sum":
            valid = weights.values > 0
            ids, weights = tf.sparse.retain(ids, valid), tf.sparse.retain(weights, valid)
    if default_id is not None:
        ids, _ = tf.sparse.fill_empty_rows(ids, tf.constant(default_id, ids.dtype))
        if weights is not None:
            one = tf.ones([], weights.dtype)
            weights, _ = tf.sparse.fill_empty_rows(weights, one)
    vectors, anchor = embedding_lookup_sparse(
        variable, ids, weights, name=name, combiner=combiner, max_norm=max_norm,
        return_trainable=True,
    )  # fmt: skip
    vectors = tf.reshape(vectors, tf.concat([shape[:-1], [variable.dim]], 0))
    if sparse_ids.shape.rank is not None:
        vectors.set_shape([*sparse_ids.shape[:-1], variable.dim])
    return (vectors, anchor) if return_trainable else vectors


def trainable_wrapper_filter(variable: Any) -> bool:
    """Returns whether a trainable weight stands for rows."""
    return isinstance(getattr(variable, "constraint", None), Commit)


def _variable(params: Any) -> Variable:
    if isinstance(params, list | tuple):
        if len(params) != 1:
            raise ValueError(f"Expected one variable. Received: {len(params)}.")
        (params,) = params
    if not isinstance(params, Variable):
        raise TypeError(
            f"Expected a Variable of sok_embed.tfra.dynamic_embedding. Received: {shown(params)}."
        )
    return params
