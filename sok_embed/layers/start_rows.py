"""Initial vectors of a layer's rows, which were trained somewhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed.tables.table import Table
from sok_embed.tables.tensors import as_keys

_EXPECTED = (
    "Expected weights to be a pair (keys, embeddings), or the path of an .npz file with arrays of "
    "these names"
)


@dataclass(frozen=True)
class StartRows:
    """Rows that a table gets before it is trained.

    Attributes:
        keys: int64 `[n]`, distinct.
        embeddings: float32 `[n, dim]`.
    """

    keys: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float32]

    def check_fits(self, table: Table, max_rows: int | None) -> None:
        """Raises ValueError for a table that has rows, and if a worker would get too many."""
        rows = table.size()
        if rows:
            raise ValueError(
                f"Table '{table.name}': expected no rows, with weights= to start from. Received: "
                f"{rows} rows. Leave weights= out to go on with these; to put vectors over them, "
                "use layer.table.assign(keys, embeddings)."
            )
        # All workers are given the same keys, so all of them raise the error.
        most = max(int(np.sum(of_worker)) for of_worker in self._by_worker(table))
        if max_rows is not None and most > max_rows:
            of_worker = "" if table.owners == 1 else " for one of the workers"
            raise ValueError(
                f"Table '{table.name}': expected weights= of at most max_rows={max_rows} keys a "
                f"worker. Received: {most}{of_worker}. Leave rows out, or raise max_rows."
            )

    def put_into(self, table: Table, max_rows: int | None) -> None:
        """Puts the rows that belong to its worker into a table without rows."""
        self.check_fits(table, max_rows)
        own = self._by_worker(table)[table.owner]
        table.assign(self.keys[own], self.embeddings[own])

    def _by_worker(self, table: Table) -> list[npt.NDArray[np.bool_]]:
        """Returns for each worker which of the keys it holds."""
        owners = table.owners_of(self.keys)
        if owners is None:
            return [np.ones(len(self.keys), np.bool_)] * table.owners
        return [owners == worker for worker in range(table.owners)]


def start_rows(weights: Any, dim: int) -> StartRows:
    """Reads the argument `weights` of a layer.

    Args:
        weights: `(keys, embeddings)`: distinct integers `[n]` and floats `[n, dim]`; the path of
            an `.npz` file with arrays of these names; or floats `[n, dim]` of the keys 0 to n - 1,
            also as the only element of a list.
        dim: The length of a row.

    Raises:
        ValueError: For anything else.
        OSError: For a file that cannot be read.
    """
    if isinstance(weights, (str, os.PathLike)):
        weights = _read(weights)
    if isinstance(weights, list) and len(weights) == 1:
        (weights,) = weights  # as the weights of a Keras layer are
    if getattr(weights, "ndim", None) == 2:
        weights = (np.arange(len(weights)), weights)
    if not isinstance(weights, (tuple, list)) or len(weights) != 2:
        received = type(weights).__name__
        if isinstance(weights, (tuple, list)):
            received += f" of {len(weights)}"
        raise ValueError(
            f"{_EXPECTED}; or those of keras.layers.Embedding, floats [n, {dim}] of the keys 0 to "
            f"n - 1. Received: a {received}."
        )
    try:
        keys: npt.NDArray[np.int64] = as_keys(weights[0]).numpy()
    except ValueError as error:
        raise ValueError(f"The keys of weights=: {error}") from None
    embeddings = weights[1].numpy() if tf.is_tensor(weights[1]) else np.asarray(weights[1])
    if keys.ndim != 1 or embeddings.shape != (len(keys), dim):
        raise ValueError(
            f"{_EXPECTED}, of shapes [n] and [n, {dim}]. Received: shapes {list(keys.shape)} and "
            f"{list(embeddings.shape)}."
        )
    if not tf.as_dtype(embeddings.dtype).is_floating:
        raise ValueError(
            f"Expected the embeddings of weights= to be floats. Received: {embeddings.dtype.name}. "
            "Cast them."
        )
    distinct, counts = np.unique(keys, return_counts=True)
    if len(distinct) < len(keys):
        raise ValueError(
            "Expected each key of weights= once. Received: key "
            f"{distinct[counts > 1][0]} more than once. Leave all but one of its rows out."
        )
    return StartRows(keys, embeddings.astype(np.float32))


def _read(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    file = np.load(path, allow_pickle=False)
    names = list(getattr(file, "files", []))
    if "keys" not in names or "embeddings" not in names:
        found = ", ".join(names) or "none"
        raise ValueError(f"{_EXPECTED}. Received: {os.fspath(path)!r}, with the arrays: {found}.")
    with file:
        return file["keys"], file["embeddings"]
