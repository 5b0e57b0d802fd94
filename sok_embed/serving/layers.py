"""Rows of an exported model with the changes of its deltas; no TensorFlow."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.serving import rows as rows_files
from sok_embed.serving.delta_files import Base, Batches, TableChanges, read_delta

# The most layers of changes that a table has over its base.
MOST_LAYERS = 4


class Layer:
    """The changes of a table by one or more deltas, in files that are removed with this object."""

    def __init__(self, changes: TableChanges) -> None:
        self.rows, self.gone = changes
        files = [each.path for each in changes if each is not None]
        self.count = sum(len(each) for each in changes if each is not None)
        self._end = weakref.finalize(self, _remove, files)


class TableState:
    """A table at one version: its file, and the layers of changes over it, the oldest first."""

    def __init__(self, base: rows_files.RowsFile, layers: tuple[Layer, ...] = ()) -> None:
        self.base = base
        self.layers = layers

    def with_layer(self, layer: Layer, scratch: str) -> TableState:
        """Returns the table with one more layer, or with layers that were merged with it.

        A layer has more than twice the rows of the next one, so that each row is merged only a few
        times, with any number of deltas.
        """
        layers = [*self.layers, layer]
        while len(layers) > 1 and (
            len(layers) > MOST_LAYERS or 2 * layers[-1].count >= layers[-2].count
        ):
            upper, lower = layers.pop(), layers.pop()
            layers.append(_merged(lower, upper, self.base.dim, scratch))
        return TableState(self.base, tuple(layers))

    def contains(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Returns which keys have a row."""
        there = self.base.contains(keys)
        for layer in self.layers:
            if layer.gone is not None:
                there &= ~layer.gone.contains(keys)
            if layer.rows is not None:
                there |= layer.rows.contains(keys)
        return there

    def lookup(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        """Returns the rows of keys, float32 `[n, dim]`; rows of keys without one are undefined."""
        found = self.base.lookup(keys)
        for layer in self.layers:
            if layer.rows is not None:
                there = layer.rows.contains(keys)
                found[there] = layer.rows.lookup(keys[there])
        return found

    def keys(self, size: int = 1 << 20) -> Iterator[npt.NDArray[np.uint64]]:
        """Yields all keys with a row, some at a time; some of them more than once."""
        files = [self.base, *(layer.rows for layer in self.layers if layer.rows is not None)]
        for file in files:
            keys = file.keys()
            for begin in range(0, len(keys), size):
                part = keys[begin : begin + size]
                yield part[self.contains(part)]


class State(NamedTuple):
    """An exported model at one version."""

    number: int  # the number of the last delta; 0: the export itself
    digest: str  # the digest of the last delta; `""`: none
    step: int  # the step of the training; -1: unknown
    tables: tuple[TableState, ...]  # the tables, in the order of the base
    # The bytes of all dense weights, by name; `None`: the weights of the export.
    weights: dict[str, bytes] | None

    def has_files(self) -> bool:
        """Returns whether the files of all layers still exist."""
        return all(
            os.path.exists(file.path)
            for table in self.tables
            for layer in table.layers
            for file in (layer.rows, layer.gone)
            if file is not None
        )


def first_state(base: Base) -> State:
    """Returns an export as it was written."""
    return State(0, "", -1, tuple(TableState(table.rows) for table in base.tables), None)


def next_state(base: Base, state: State, scratch: str) -> State:
    """Returns the version after another one; raises what `read_delta` raises."""
    delta = read_delta(base, state.number + 1, state.digest, scratch)
    tables = [
        table if changes == (None, None) else table.with_layer(Layer(changes), scratch)
        for table, changes in zip(state.tables, delta.tables, strict=True)
    ]
    return State(delta.number, delta.digest, delta.step, tuple(tables), delta.weights)


def _merged(lower: Layer, upper: Layer, dim: int, scratch: str) -> Layer:
    """Merges two layers.

    The merged rows are float32, even if those of the layers are not: rounding twice would change
    them.
    """

    def rows() -> Batches:
        if upper.rows is not None:
            yield from upper.rows.batches()
        if lower.rows is not None:
            for keys, vectors in lower.rows.batches():
                stays = np.ones(keys.shape, np.bool_)
                for above in (upper.rows, upper.gone):
                    if above is not None:
                        stays &= ~above.contains(keys)
                yield keys[stays], vectors[stays]

    new_rows = _written(scratch, rows(), dim, "float32")
    gone = [each.gone.keys() for each in (lower, upper) if each.gone is not None]
    if not gone:
        return Layer(TableChanges(new_rows, None))
    keys = np.unique(np.concatenate(gone))
    if new_rows is not None:
        keys = keys[~new_rows.contains(keys)]
    zeros = np.zeros([len(keys), 1], np.float32)
    return Layer(TableChanges(new_rows, _written(scratch, iter([(keys, zeros)]), 1, "float16")))


def _written(scratch: str, batches: Any, dim: int, dtype: str) -> rows_files.RowsFile | None:
    path = os.path.join(scratch, f"{secrets.token_hex(8)}.safetensors")
    written = rows_files.write(path, batches, dim=dim, dtype=dtype)
    if written.rows == 0:
        os.remove(path)
        return None
    return rows_files.open(path)


def _remove(paths: list[str]) -> None:
    for path in paths:
        try:
            os.remove(path)
        except FileNotFoundError:
            pass  # the scratch folder was removed before
