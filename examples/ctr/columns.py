"""Reads click logs in Parquet and CSV files: a label, numbers, and ids of any kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import csv, dataset

import sok_embed
from ctr.batches import Batch, InputError, Split, rebatch, take

LABEL = "label"


class Columns:
    """Streams a file in its own order; the last tenth of its rows is for testing.

    Its columns are `label`, 0 or 1, numbers `I1`, `I2` and so on, and ids `C1`, `C2` and so on, as
    Criteo names them; others are left alone. A missing number is 0, a missing id the empty string.
    Ids are integers or strings. Their keys are those of `sok_embed.fingerprint`, by which an
    integer has the same key in Parquet and in CSV.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        with self._errors():
            self._file = _opened(path)
            total = self._file.count_rows()
        names = self._file.schema.names
        self._numbers, self._ids = _named("I", names), _named("C", names)
        self.dense_width, self.fields = len(self._numbers), len(self._ids)
        self._rows: dict[Split, int] = {"train": total - total // 10, "test": total // 10}
        if LABEL not in names or not self._ids or not self._rows["test"]:
            raise InputError(
                f"{path}: expected columns {LABEL}, C1, C2 … and I1, I2 …, and at least 10 rows. "
                f"Received: {', '.join(names)}; {total} rows. Rename the columns."
            )

    def rows(self, split: Split) -> int:
        """Returns the rows of a split over all workers."""
        return self._rows[split]

    def batches(
        self, split: Split, batch_size: int, rank: int = 0, size: int = 1, epoch: int = 0
    ) -> Iterator[Batch]:
        """Yields the batches of a split in the order of the file, the same in every epoch."""
        for batch in rebatch(self._chunks(split), batch_size):
            yield take(batch, rank, size)

    def keys_of(self, field: int, ids: Sequence[str]) -> NDArray[np.int64]:
        """Returns the key of each id of a field."""
        return np.asarray(sok_embed.fingerprint(np.array(ids, object)), np.int64)

    def _chunks(self, split: Split) -> Iterator[Batch]:
        first = self._rows["train"] if split == "test" else 0
        stop = first + self._rows[split]
        start = 0
        with self._errors():
            for table in self._file.to_batches(columns=[LABEL, *self._numbers, *self._ids]):
                part = table.slice(max(first - start, 0), max(stop - max(first, start), 0))
                start += len(table)
                if len(part):
                    yield self._batch(part)

    def _batch(self, table: Any) -> Batch:
        labels = self._floats(table, LABEL)
        if not np.isin(labels, (0, 1)).all():
            raise InputError(
                f"{self._path}: expected labels of 0 or 1. Received: "
                f"{labels[~np.isin(labels, (0, 1))][0]}. Repair or remove the row."
            )
        dense = [self._floats(table, name) for name in self._numbers]
        ids = [self._strings(table, name) for name in self._ids]
        keys = np.stack([self.keys_of(i, each) for i, each in enumerate(ids)], axis=1)
        rows = len(labels)
        return Batch(np.array(dense, np.float32).reshape(-1, rows).T, keys, labels, rows)

    def _floats(self, table: Any, name: str) -> NDArray[np.float32]:
        missing = float("nan") if name == LABEL else 0.0
        column = table.column(name).cast(pyarrow.float64()).fill_null(missing)
        values = np.asarray(column.to_numpy(zero_copy_only=False), np.float32)
        if np.isinf(values).any():
            raise InputError(
                f"{self._path}: expected finite numbers in {name}. Received: an infinite one. "
                "Repair or remove the row."
            )
        return values if name == LABEL else np.nan_to_num(values)

    def _strings(self, table: Any, name: str) -> Any:
        column = table.column(name)
        if pyarrow.types.is_floating(column.type):
            raise InputError(
                f"{self._path}: expected integers or strings in {name}. Received: {column.type}. "
                "Write ids as integers: floats cannot hold large ones."
            )
        return column.cast(pyarrow.string()).fill_null("").to_numpy(zero_copy_only=False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(
                f"{self._path}: expected a Parquet or CSV file. Received: {error}"
            ) from error


def _named(letter: str, names: Sequence[str]) -> list[str]:
    """Returns the names of a letter and a number, in the order of their numbers."""
    found = [name for name in names if re.fullmatch(f"{letter}[0-9]+", name)]
    return sorted(found, key=lambda name: int(name[1:]))


def _opened(path: Path) -> Any:
    if path.suffix == ".parquet":
        return dataset.dataset(path, format="parquet")
    names = dataset.dataset(path, format="csv").schema.names
    # Ids that are all digits on some day are strings nevertheless.
    types = {name: pyarrow.string() for name in _named("C", names)}
    types |= {name: pyarrow.float64() for name in [LABEL, *_named("I", names)]}
    options = csv.ConvertOptions(column_types=types)
    return dataset.dataset(path, format=dataset.CsvFileFormat(convert_options=options))
