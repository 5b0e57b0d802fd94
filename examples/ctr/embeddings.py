"""The two ways to turn keys into vectors: a hash table that grows, or a fixed vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import keras
import numpy as np
from numpy.typing import NDArray

from ctr.batches import Source

EmbeddingKind = Literal["hash", "static"]

# So many rows are read at a time while the static vocabulary is collected.
_BLOCK = 65_536


class HashRows:
    """Keys go into the table as they are; a key gets its row when training first meets it."""

    def __init__(self, dim: int) -> None:
        import sok_embed

        self.layer: Any = sok_embed.DynamicEmbedding(
            dim, embeddings_initializer="uniform", name="embedding"
        )

    def inputs(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns what the layer gets for a block of keys: the keys."""
        return keys

    def rows(self) -> int:
        """Returns the rows in the part of the table that this worker owns."""
        return int(self.layer.table.size())

    def table_bytes(self, optimizer: keras.optimizers.Optimizer) -> int:
        """Returns the bytes of the part of the table that this worker owns, slots included."""
        return int(self.layer.table.stats()["bytes"])


class StaticRows:
    """`keras.layers.Embedding` over the keys of the training set, known before training starts.

    The last `fields` rows stand for keys outside the vocabulary, one row a field. Every worker
    holds the whole table.
    """

    def __init__(self, dim: int, source: Source, seed: int) -> None:
        self._vocabulary = np.empty(0, np.int64)
        for keys in _training_keys(source):
            self._vocabulary = np.union1d(self._vocabulary, keys)
        self._dim = dim
        self._rows = len(self._vocabulary) + source.fields
        self.layer: Any = keras.layers.Embedding(
            self._rows, dim, keras.initializers.RandomUniform(seed=seed), name="embedding"
        )

    def inputs(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the row number of each key of a `[rows, fields]` block."""
        vocabulary = self._vocabulary
        position = np.searchsorted(vocabulary, keys)
        known = vocabulary[np.minimum(position, len(vocabulary) - 1)] == keys
        return np.where(known, position, len(vocabulary) + np.arange(keys.shape[1]))

    def rows(self) -> int:
        """Returns the rows of the table: the vocabulary and one a field for unknown keys."""
        return self._rows

    def table_bytes(self, optimizer: keras.optimizers.Optimizer) -> int:
        """Returns the bytes of the table and of the slots that the optimizer keeps beside it."""
        shape = (self._rows, self._dim)
        slots = sum(tuple(variable.shape) == shape for variable in optimizer.variables)
        return (1 + slots) * self._rows * self._dim * 4


EmbeddingRows = HashRows | StaticRows


def make_embedding(kind: EmbeddingKind, dim: int, source: Source, seed: int) -> EmbeddingRows:
    """Makes the embedding a run asked for."""
    return HashRows(dim) if kind == "hash" else StaticRows(dim, source, seed)


def _training_keys(source: Source) -> Iterator[NDArray[np.int64]]:
    for batch in source.batches("train", _BLOCK):
        yield np.unique(batch.keys)
