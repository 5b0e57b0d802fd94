"""Embedding columns over categorical ones, adaptive or not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from sok_embed.arguments import shown
from sok_embed.feature_column.categorical import own_rows_column_in
from sok_embed.feature_column.initializers import same_initializer
from sok_embed.feature_column.rows_of_column import (
    AdaptiveEmbeddingColumn,
    AdaptiveSharedEmbeddingColumn,
)


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
) -> Any:
    """Makes `tf.feature_column.embedding_column`, also over adaptive columns.

    Over a column of TensorFlow it returns what TensorFlow does. Over one of
    `categorical_column_with_adaptive_embedding`, weighted or a sequence too, it returns a column
    for `input_layer`, `sequence_input_layer`, `DenseFeatures` and `SequenceFeatures`.

    Example:
    >>> from sok_embed.feature_column import categorical_column_with_adaptive_embedding
    >>> column = categorical_column_with_adaptive_embedding("item", 100, tf.int64)
    >>> embedding_column(column, 8).name
    'item_embedding'

    Args:
        categorical_column: The categorical column: of TensorFlow, or adaptive.
        dimension: The length of a row.
        combiner: `"mean"`, `"sqrtn"` or `"sum"` of the rows of an example.
        initializer: The initializer of the static rows. `None`: that of the column's
            `InitializerOption`, else a truncated normal of standard deviation `1 /
            sqrt(dimension)`.
        ckpt_to_load_from: A checkpoint that static rows start from.
        tensor_name_in_ckpt: The name of the static rows in the checkpoint.
        max_norm: The longest row; longer ones are scaled down before they are combined.
        trainable: `False`: rows stay as they are, and keys get none of their own.
        use_safe_embedding_lookup: True for safe lookups, as in TensorFlow.

    Returns:
        A dense column.

    Raises:
        ValueError: As TensorFlow raises, and for two different initializers.
    """
    adaptive = own_rows_column_in(categorical_column)
    if adaptive is not None:
        initializer = one_initializer(adaptive, initializer)
    column = fc_v2.embedding_column(
        categorical_column,
        dimension,
        combiner,
        initializer,
        ckpt_to_load_from,
        tensor_name_in_ckpt,
        max_norm,
        trainable,
        use_safe_embedding_lookup,
    )
    if adaptive is None:
        return column
    _check_combiner(adaptive.name, combiner)
    _check_checkpoint(adaptive, ckpt_to_load_from)
    return AdaptiveEmbeddingColumn(**column._asdict(), shared_name=None)


def shared_embedding_columns(
    categorical_columns: Sequence[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
) -> list[Any]:
    """Makes `tf.compat.v1.feature_column.shared_embedding_columns`, also over adaptive columns.

    The columns have their rows in common, static ones and own ones. Unlike TensorFlow's, this works
    outside of a graph too, for the layers of `sok_embed.feature_column`.

    Example:
    >>> from sok_embed.feature_column import categorical_column_with_adaptive_embedding
    >>> keys = ("seen", "bought")
    >>> items = [categorical_column_with_adaptive_embedding(key, 100, tf.int64) for key in keys]
    >>> [column.name for column in shared_embedding_columns(items, 8)]
    ['seen_shared_embedding', 'bought_shared_embedding']

    Args:
        categorical_columns: The columns, of one kind and with the same arguments but for `key`.
            Some may be weighted, or sequences.
        dimension: The length of a row, as for `embedding_column`; so are the other arguments.
        combiner: See `embedding_column`.
        initializer: See `embedding_column`.
        shared_embedding_collection_name: The name of the shared rows. `None`: the columns' names.
        ckpt_to_load_from: See `embedding_column`.
        tensor_name_in_ckpt: See `embedding_column`.
        max_norm: See `embedding_column`.
        trainable: See `embedding_column`.
        use_safe_embedding_lookup: See `embedding_column`.

    Returns:
        A dense column for each.

    Raises:
        ValueError: As TensorFlow raises, and for adaptive columns that differ in more than `key`.
    """
    categorical_columns = list(categorical_columns)
    adaptives = [own_rows_column_in(column) for column in categorical_columns]
    first = adaptives[0] if adaptives else None
    if first is not None:
        for other in adaptives[1:]:
            if other is not None and other._replace(key=first.key) != first:
                raise ValueError(
                    "Expected columns that differ in their key only, to share rows. Received: "
                    f"{first} and {other}."
                )
        initializer = one_initializer(first, initializer)
        _check_combiner(first.name, combiner)
        _check_checkpoint(first, ckpt_to_load_from)
    # TensorFlow checks the arguments, and wants to be in a graph for that.
    with tf.Graph().as_default() if tf.executing_eagerly() else contextlib.nullcontext():
        columns = fc_v2.shared_embedding_columns(
            categorical_columns,
            dimension,
            combiner,
            initializer,
            shared_embedding_collection_name,
            ckpt_to_load_from,
            tensor_name_in_ckpt,
            max_norm,
            trainable,
            use_safe_embedding_lookup,
        )
    if first is None and not tf.executing_eagerly():
        return columns
    named = [column._asdict() for column in columns]
    return [
        AdaptiveSharedEmbeddingColumn(
            shared_name=fields.pop("shared_embedding_collection_name"), **fields
        )
        for fields in named
    ]


def one_initializer(adaptive: Any, initializer: Any) -> Any:
    """Returns the initializer, the argument's or the option's; raises ValueError if they differ."""
    option = adaptive.ev_option.initializer
    if initializer is None or option is None:
        return option if initializer is None else initializer
    if not same_initializer(initializer, option):
        raise ValueError(
            f"Column '{adaptive.name}': expected one initializer. Received: {shown(initializer)} "
            f"as an argument and {shown(option)} by InitializerOption."
        )
    return initializer


def _check_checkpoint(column: Any, path: str | None) -> None:
    if path is not None and not column.shares_static_rows:
        raise ValueError(
            f"Column '{column.name}': expected no ckpt_to_load_from: each id has a row of its own, "
            f"and there are no static rows to load. Received: {shown(path)}. Restore rows with "
            "tf.compat.v1.train.Saver."
        )


def _check_combiner(column: str, combiner: str) -> None:
    if combiner not in ("mean", "sqrtn", "sum"):
        raise ValueError(
            f"Column '{column}': expected combiner to be 'mean', 'sqrtn' or 'sum'. Received: "
            f"{shown(combiner)}."
        )
