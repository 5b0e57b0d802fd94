"""Feature columns and variables of TF1 graphs whose ids have rows of their own, some or all."""

import sok_embed.feature_column.nn_lookups  # noqa: F401  # registers itself with TensorFlow
from sok_embed.feature_column.adaptive_categorical import (
    categorical_column_with_adaptive_embedding,
    sequence_categorical_column_with_adaptive_embedding,
)
from sok_embed.feature_column.dense_features import DenseFeatures, SequenceFeatures
from sok_embed.feature_column.embedding_columns import embedding_column, shared_embedding_columns
from sok_embed.feature_column.embedding_variable import EmbeddingVariable, get_embedding_variable
from sok_embed.feature_column.evictions import GlobalStepEvict, L2WeightEvict
from sok_embed.feature_column.filters import CBFFilter, CounterFilter
from sok_embed.feature_column.graph_state import own_rows
from sok_embed.feature_column.input_layers import input_layer, sequence_input_layer
from sok_embed.feature_column.install import install
from sok_embed.feature_column.options import EmbeddingVariableOption, InitializerOption
from sok_embed.feature_column.storage_options import StorageOption, StorageType
from sok_embed.feature_column.variable_categorical import (
    categorical_column_with_embedding,
    sequence_categorical_column_with_embedding,
)

__all__ = [
    "CBFFilter",
    "CounterFilter",
    "DenseFeatures",
    "EmbeddingVariable",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "SequenceFeatures",
    "StorageOption",
    "StorageType",
    "categorical_column_with_adaptive_embedding",
    "categorical_column_with_embedding",
    "embedding_column",
    "get_embedding_variable",
    "input_layer",
    "install",
    "own_rows",
    "sequence_categorical_column_with_adaptive_embedding",
    "sequence_categorical_column_with_embedding",
    "sequence_input_layer",
    "shared_embedding_columns",
]
