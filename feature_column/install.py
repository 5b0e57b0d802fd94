"""Puts columns, options and embedding variables where DeepRec's scripts look for them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import tensorflow as tf

from sok_embed.feature_column import (
    adaptive_categorical,
    embedding_columns,
    embedding_variable,
    evictions,
    filters,
    input_layers,
    options,
    storage_options,
    variable_categorical,
)

_COLUMNS: dict[str, Any] = {
    "categorical_column_with_adaptive_embedding": (
        adaptive_categorical.categorical_column_with_adaptive_embedding
    ),
    "sequence_categorical_column_with_adaptive_embedding": (
        adaptive_categorical.sequence_categorical_column_with_adaptive_embedding
    ),
    "categorical_column_with_embedding": (variable_categorical.categorical_column_with_embedding),
    "sequence_categorical_column_with_embedding": (
        variable_categorical.sequence_categorical_column_with_embedding
    ),
    "embedding_column": embedding_columns.embedding_column,
    "shared_embedding_columns": embedding_columns.shared_embedding_columns,
    "input_layer": input_layers.input_layer,
    "sequence_input_layer": input_layers.sequence_input_layer,
}
_TOP_LEVEL: dict[str, Any] = {
    value.__name__: value
    for value in (
        embedding_variable.get_embedding_variable,
        options.EmbeddingVariableOption,
        options.InitializerOption,
        filters.CounterFilter,
        filters.CBFFilter,
        evictions.GlobalStepEvict,
        evictions.L2WeightEvict,
        storage_options.StorageOption,
        storage_options.StorageType,
    )
}


def install() -> None:
    """Puts DeepRec's names into TensorFlow, so that a DeepRec script runs unchanged.

    `categorical_column_with_adaptive_embedding`, `categorical_column_with_embedding`,
    `embedding_column`, `input_layer`, `shared_embedding_columns` and the sequence functions come
    under `tf.feature_column` and `tf.compat.v1.feature_column`; over TensorFlow's own columns they
    do what TensorFlow's do. `get_embedding_variable` and the options, such as
    `EmbeddingVariableOption` and `CounterFilter`, come under `tf` and `tf.compat.v1`. The lookups
    of `tf.nn` take embedding variables without this call. Another call changes nothing.

    Example:
    >>> install()
    >>> column = tf.feature_column.categorical_column_with_adaptive_embedding("item", 100)
    >>> column.name
    'item'
    """
    for package in _tensorflows():
        for name, value in _COLUMNS.items():
            setattr(package.feature_column, name, value)
        for name, value in _TOP_LEVEL.items():
            if not hasattr(package, name):
                setattr(package, name, value)


def _tensorflows() -> list[ModuleType]:
    """Returns the modules that `tf` and `tf.compat.v1` may stand for."""
    found = [tf, tf.compat.v1]
    imported = sys.modules.get("tensorflow.compat.v1")
    return [*found, *([] if imported is None or imported in found else [imported])]
