"""Cuts the clicks of a day into parts, and leaves users out who are to be forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.batches import Batch, InputError, Source, Split, rebatch, steps, take
from ctr.generated import Generated

_BLOCK = 65_536
_FORMATS = (".csv", ".parquet")


class Part(Source, Protocol):
    """A source whose ids have names, by which a list names users."""

    def keys_of(self, field: int, ids: Sequence[str]) -> NDArray[np.int64]:
        """Returns the key of each id of a field."""


class Day:
    """A source whose epochs are the parts of a day, each with rows of its own to train on.

    The rows for testing are those of all parts. Rows of users who are to be forgotten are left out
    of both.

    Args:
        name: The name of the day.
        parts: The parts, in the order of time.
        user: The field whose ids are users; a negative number counts from the last one.
        forgotten: The ids of the users who are to be forgotten.
    """

    def __init__(
        self, name: str, parts: Sequence[Part], user: int, forgotten: Sequence[str]
    ) -> None:
        first = parts[0]
        self.name = name
        self.fields, self.dense_width = first.fields, first.dense_width
        for part in parts:
            if (part.fields, part.dense_width) != (self.fields, self.dense_width):
                raise InputError(
                    f"{part.name}: expected {self.fields} columns of ids and {self.dense_width} of "
                    f"numbers, as {first.name} has. Received: {part.fields} and "
                    f"{part.dense_width}. Repair or remove the file."
                )
        if not -self.fields <= user < self.fields:
            raise InputError(
                f"--user: expected the number of one of {self.fields} fields, from 0 on. Received: "
                f"{user}."
            )
        self._parts = parts
        self.user = user % self.fields
        self.forgotten = first.keys_of(self.user, forgotten)

    def __len__(self) -> int:
        return len(self._parts)

    def rows(self, split: Split) -> int:
        """Returns the rows of a split in all parts, with those that are left out."""
        return sum(part.rows(split) for part in self._parts)

    def steps(self, batch_size: int) -> int:
        """Returns the steps of the day, if no row is left out."""
        return sum(steps(part.rows("train"), batch_size) for part in self._parts)

    def batches(
        self, split: Split, batch_size: int, rank: int = 0, size: int = 1, epoch: int = 0
    ) -> Iterator[Batch]:
        """Yields the batches to train on of the part number `epoch`, or those of all to test on."""
        parts = self._parts if split == "test" else [self._parts[epoch]]
        for batch in rebatch(self._left(parts, split), batch_size):
            yield take(batch, rank, size)

    def _left(self, parts: Sequence[Part], split: Split) -> Iterator[Batch]:
        for part in parts:
            for batch in part.batches(split, _BLOCK):
                left = ~np.isin(batch.keys[:, self.user], self.forgotten)
                labels = batch.labels[left]
                yield Batch(batch.dense[left], batch.keys[left], labels, len(labels))


def generated_parts(number: int, samples: int, parts: int, seed: int) -> list[Part]:
    """Returns the parts of a day of generated clicks, in a stream that goes on from day to day."""
    rows = max(1, samples // parts)
    stride = Generated(rows, seed).rows("test") + rows
    return [Generated(rows, seed, start=stride * (number * parts + part)) for part in range(parts)]


def parts_in(folder: Path) -> list[Part]:
    """Returns the Parquet and CSV files in the folder of a day, in the order of their names."""
    found = (
        [path for path in folder.iterdir() if path.suffix in _FORMATS] if folder.is_dir() else []
    )
    if not found:
        raise InputError(
            f"--data: expected a folder {folder} with a Parquet or CSV file for each part of the "
            "day. Received: none. Check the day and the path."
        )
    try:
        from ctr.columns import Columns
    except ImportError as error:
        raise InputError(
            f"Expected pyarrow, to read {found[0]}. Received: {error}. Install it with "
            "`pip install 'sok-embed[parquet]'`."
        ) from error
    return [Columns(path) for path in sorted(found)]
