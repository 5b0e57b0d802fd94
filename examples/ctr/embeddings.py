"""Turns keys into vectors in two ways: by hash tables that grow, or by a fixed vocabulary."""

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
    """A table for each field. Keys are not changed, and get rows when training first meets them."""

    def __init__(self, dim: int, fields: int, eviction: Any = None) -> None:
        import sok_embed

        self._fields = fields
        self._embedding = sok_embed.DistributedEmbedding(
            [
                sok_embed.FeatureConfig(
                    f"field_{field}",
                    sok_embed.TableConfig(f"field_{field}", None, dim, eviction=eviction),
                )
                for field in range(fields)
            ],
            output="stack",
            name="embedding",
        )

    def layer(self, keys: Any) -> Any:
        """Looks keys `[rows, fields]` up; returns vectors `[rows, fields, dim]`."""
        return self._embedding(keras.ops.unstack(keys, self._fields, axis=1))

    def inputs(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the input of the layer for a block of keys: the keys."""
        return keys

    def rows(self) -> int:
        """Returns the rows in the part of the tables that this worker owns."""
        return sum(table.size() for table in self._embedding.tables.values())

    def remove(self, field: int, keys: NDArray[np.int64]) -> None:
        """Removes the rows of keys of a field; all workers must call it."""
        table = self._embedding.tables[f"field_{field}"]
        owners = table.owners_of(keys)
        table.remove(keys if owners is None else keys[owners == table.owner])

    def table_bytes(self, optimizer: keras.optimizers.Optimizer) -> int:
        """Returns the bytes of the part of the tables that this worker owns, slots included."""
        return sum(int(table.stats()["bytes"]) for table in self._embedding.tables.values())


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
        """Returns the rows of the table: the vocabulary, and one of each field for unknown keys."""
        return self._rows

    def table_bytes(self, optimizer: keras.optimizers.Optimizer) -> int:
        """Returns the bytes of the table and of the slots that the optimizer keeps beside it."""
        shape = (self._rows, self._dim)
        slots = sum(tuple(variable.shape) == shape for variable in optimizer.variables)
        return (1 + slots) * self._rows * self._dim * 4


EmbeddingRows = HashRows | StaticRows


def make_embedding(kind: EmbeddingKind, dim: int, source: Source, seed: int) -> EmbeddingRows:
    """Makes the embedding that the options of a run name."""
    return HashRows(dim, source.fields) if kind == "hash" else StaticRows(dim, source, seed)


def _training_keys(source: Source) -> Iterator[NDArray[np.int64]]:
    for batch in source.batches("train", _BLOCK):
        yield np.unique(batch.keys)
