"""Files of rows of the tables of an export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sok_embed.serving import rows as rows_files
from sok_embed.serving.held_rows import HeldRows
from sok_embed.serving.rows import MissingRows
from sok_embed.tables.row_batches import Batch


class TableFiles:
    """Writes files of rows into a folder."""

    def __init__(self, folder: str, dtype: str) -> None:
        self._folder = folder
        self.dtype = dtype
        self._names: set[str] = set()

    @contextlib.contextmanager
    def set_aside(self, assets: str) -> Iterator[None]:
        """Makes TensorFlow copy empty files into a folder, which files of rows replace."""
        names = os.listdir(self._folder)
        aside = os.path.join(self._folder, "aside")
        os.mkdir(aside)
        for name in names:
            path = os.path.join(self._folder, name)
            os.rename(path, os.path.join(aside, name))
            open(path, "xb").close()
        yield
        for name in names:
            os.replace(os.path.join(aside, name), os.path.join(assets, name))

    def write(self, held: HeldRows, missing: str = "zeros", dtype: str = "") -> str:
        """Writes the rows of a table, and returns the path of the file.

        Keys that it lacks have vectors as `missing` says, `"initializer"` or `"zeros"`. Without a
        dtype rows have the type of the export.
        """
        path = self._path(held.name)
        rows_files.write(
            path,
            _within_limit(held),
            dim=held.dim,
            dtype=dtype or self.dtype,
            missing=start_of(held) if missing == "initializer" else "zeros",
            name=held.name,
            # Deltas take their rows from the same part, with the same bound.
            extra={"part": held.part, "min_count": str(held.min_count)},
        )
        return path

    def write_all(
        self, held: HeldRows, limit: int, missing: str
    ) -> tuple[str, npt.NDArray[np.bool_]]:
        """Writes the vectors of all keys below a limit.

        Returns:
            The path of the file, and which keys have a row, bool `[limit]`.
        """
        sparse = self.write(held, dtype="float32")
        path = self._path(held.name)
        exists = np.zeros([limit], np.bool_)

        def batches() -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
            size = held.batch_size
            for begin in range(0, limit, size):
                keys = np.arange(begin, min(begin + size, limit), dtype=np.int64)
                there = exists[keys] = opened.contains(keys)
                vectors = opened.lookup(keys)
                if missing == "initializer" and not there.all():
                    vectors[~there] = held.started(keys[~there])
                yield keys, vectors

        with rows_files.open(sparse) as opened:
            rows_files.write(path, batches(), dim=held.dim, dtype=self.dtype, name=held.name)
        os.remove(sparse)
        return path, exists

    def _path(self, table: str) -> str:
        """Returns a path for a file of a table, which no other has had."""
        plain = "".join(each if each.isalnum() or each in "._-" else "_" for each in table)
        name, number = plain, 1
        while name in self._names:
            number += 1
            name = f"{plain}-{number}"
        self._names.add(name)
        return os.path.join(self._folder, f"{name}.safetensors")


def start_of(held: HeldRows) -> MissingRows:
    """Returns the vectors that keys without a row have in training."""
    start = held.start
    if start.kind == "constant":  # rounded as the table rounds its rows
        return replace(start, a=float(held.started(np.zeros([1], np.int64))[0, 0]))
    return start


def _within_limit(held: HeldRows) -> Iterator[Batch]:
    """Yields the rows of a table; raises for a key that a table without a hash cannot have."""
    for keys, vectors in held.batches():
        if held.key_limit:
            wrong = keys[(keys < 0) | (keys >= held.key_limit)]
            if len(wrong):
                raise ValueError(
                    f"Table '{held.name}': expected keys in [0, {held.key_limit}), the range of "
                    f"the model's table. Received: key {wrong[0]}. Make the model with the "
                    "vocabulary of all workers that saved the checkpoint."
                )
        yield keys, vectors
