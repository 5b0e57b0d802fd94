"""Splits records that do not fit into memory by a hash of their keys, and returns them by part."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed.tables.owners import mixed_owners

# The memory that a part takes, roughly.
PART_BYTES = 128 << 20
_MOST_PARTS = 1024  # each is a file; with more, parts are larger
_SALT = 0x5EED


class Partitions:
    """Records that are divided by a hash of their keys, and returned a part at a time.

    All records of a key are in one part; the field `key` of their dtype is an int64. Many records
    are kept in files, which have no more bytes than the records, and are removed at the end of the
    `with` block. `of_all_bytes` are those of all `Partitions` that are used at the same time.
    """

    def __init__(self, dtype: npt.DTypeLike, expected_bytes: int, of_all_bytes: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.number = min(_MOST_PARTS, max(1, -(-expected_bytes // PART_BYTES)))
        self._held: list[npt.NDArray[Any]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if max(expected_bytes, of_all_bytes) > PART_BYTES:
            self._folder = tempfile.TemporaryDirectory(prefix="sok-embed-")

    def __enter__(self) -> Partitions:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, records: npt.NDArray[Any]) -> None:
        """Adds records `[n]` to their parts."""
        if self._folder is None:
            self._held.append(records)
            return
        parts = mixed_owners(records["key"], _SALT, self.number)
        order = np.argsort(parts, kind="stable")
        ends = np.searchsorted(parts[order], np.arange(self.number + 1))
        for part in range(self.number):
            chosen = order[ends[part] : ends[part + 1]]
            if len(chosen):
                with open(self._path(part), "ab") as file:
                    file.write(records[chosen].tobytes())

    def part(self, number: int) -> npt.NDArray[Any]:
        """Returns the records of a part, in the order in which they were added."""
        if self._folder is None:
            return np.concatenate(self._held or [np.zeros(0, self.dtype)])
        if not os.path.exists(self._path(number)):
            return np.zeros(0, self.dtype)
        return np.fromfile(self._path(number), self.dtype)

    def _path(self, part: int) -> str:
        assert self._folder is not None
        return os.path.join(self._folder.name, f"part-{part:04d}")
