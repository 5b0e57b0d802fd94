"""Takes back what `sok_embed.feature_column.install()` has put into TensorFlow."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf
import tensorflow.compat.v1 as tf1

COLUMNS = [
    "categorical_column_with_adaptive_embedding",
    "categorical_column_with_embedding",
    "embedding_column",
    "input_layer",
    "sequence_categorical_column_with_adaptive_embedding",
    "sequence_categorical_column_with_embedding",
    "sequence_input_layer",
    "shared_embedding_columns",
]
OPTIONS = [
    "CBFFilter",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "get_embedding_variable",
    "InitializerOption",
    "L2WeightEvict",
    "StorageOption",
    "StorageType",
]
_ABSENT = object()


@contextmanager
def taken_back() -> Iterator[None]:
    """TensorFlow is afterwards as it was before."""
    places = [(p.feature_column, n) for p in (tf, tf1) for n in COLUMNS]
    places += [(p, n) for p in (tf, tf1) for n in OPTIONS]
    before = [(place, name, getattr(place, name, _ABSENT)) for place, name in places]
    try:
        yield
    finally:
        for place, name, value in before:
            if value is not _ABSENT:
                setattr(place, name, value)
            elif hasattr(place, name):
                delattr(place, name)
