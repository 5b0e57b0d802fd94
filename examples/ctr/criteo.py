"""Reads Criteo click logs: label, 13 counts, 26 hexadecimal categories; tab or comma separated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from ctr.batches import Batch, InputError, Split, share
from ctr.keys import MISSING, field_keys

DENSE = 13
FIELDS = 26
COLUMNS = 1 + DENSE + FIELDS


class Criteo:
    """Streams a file in its own order, which is by time; the last tenth of the rows is for testing.

    Only the lines of a worker's own share are parsed. A count x becomes `sign(x) * log(1 + |x|)`
    and a missing count 0. A missing category is a category of its own.
    """

    fields = FIELDS
    dense_width = DENSE

    def __init__(self, path: Path) -> None:
        self.name = f"Criteo, {path.name}"
        self._path = path
        with path.open(encoding="utf-8", errors="replace") as lines:
            first = next(lines)
            self._separator = "\t" if "\t" in first else ","
            self._header = first.split(self._separator)[0].isalpha()
            total = sum(1 for _ in lines) + (0 if self._header else 1)
        self._rows: dict[Split, int] = {"train": total - total // 10, "test": total // 10}
        if self._rows["test"] == 0:
            raise InputError(
                f"{path}: expected at least 10 rows, the last tenth being the test set. "
                f"Received: {total}. Give a larger file."
            )

    def rows(self, split: Split) -> int:
        """Returns the rows of a split over all workers."""
        return self._rows[split]

    def batches(
        self, split: Split, batch_size: int, rank: int = 0, size: int = 1, epoch: int = 0
    ) -> Iterator[Batch]:
        """Yields the batches of a split in the order of the file, the same in every epoch."""
        start = self._rows["train"] if split == "test" else 0
        stop = start + self._rows[split]
        skip = 1 if self._header else 0
        with self._path.open(encoding="utf-8", errors="replace") as file:
            lines = islice(file, skip + start, skip + stop)
            first_line = skip + start + 1
            while block := list(islice(lines, batch_size)):
                part = share(len(block), rank, size)
                yield self._parse(block[part], first_line + part.start, len(block))
                first_line += len(block)

    def _parse(self, lines: Sequence[str], first_line: int, global_rows: int) -> Batch:
        labels = np.empty(len(lines), np.float32)
        dense = np.empty((len(lines), DENSE), np.float32)
        ids = np.empty((len(lines), FIELDS), np.int64)
        for row, line in enumerate(lines):
            cells = line.rstrip("\r\n").split(self._separator)
            try:
                if len(cells) != COLUMNS:
                    raise ValueError(f"{COLUMNS} columns, received {len(cells)}")
                labels[row] = _label(cells[0])
                dense[row] = [_count(cell) for cell in cells[1 : 1 + DENSE]]
                ids[row] = [_category(cell) for cell in cells[1 + DENSE :]]
            except ValueError as error:
                raise InputError(
                    f"{self._path}, line {first_line + row}: expected {error}. "
                    "Do repair or remove the line."
                ) from None
        return Batch(dense, field_keys(ids), labels, global_rows)


def _label(cell: str) -> float:
    if cell not in ("0", "1"):
        raise ValueError(f"a label of 0 or 1, received {cell!r}")
    return float(cell)


def _count(cell: str) -> float:
    if not cell:
        return 0.0
    try:
        x = float(cell)
    except ValueError:
        x = math.nan
    if not math.isfinite(x):
        raise ValueError(f"a finite number or nothing in I1 to I{DENSE}, received {cell!r}")
    return math.copysign(math.log1p(abs(x)), x)


def _category(cell: str) -> int:
    if not cell:
        return MISSING
    # int() alone would also take signs, blanks and underscores.
    if len(cell) > 15 or not cell.isalnum():
        raise ValueError(_category_message(cell))
    try:
        return int(cell, 16)
    except ValueError:
        raise ValueError(_category_message(cell)) from None


def _category_message(cell: str) -> str:
    return f"at most 15 hexadecimal digits or nothing in C1 to C{FIELDS}, received {cell!r}"
