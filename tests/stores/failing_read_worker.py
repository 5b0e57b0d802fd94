"""Has single allocations fail in reads of a storage: each raises, or reads what is there.

    python tests/stores/failing_read_worker.py CORE FOLDER

Needs the library of failing_memory.c. Every read is of rows that no earlier one has read, so that
RocksDB makes entries in its caches; any one of its allocations fails. Prints how many reads raised.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from bare_core import load_core
from coded_rows import PLAIN, TYPES
from table_model import GroupConfig

DIM = 64
GROUPS = [GroupConfig(number, DIM, types=types) for number, types in enumerate([PLAIN, TYPES[0]])]
KEYS = np.arange(60_000, dtype=np.uint64)
READ_KEYS = 100  # they lie in two to seven blocks of a file
ONE_BYTE = ctypes.c_size_t(1)  # any allocation may fail
UNKNOWN = np.uint64(1 << 40)  # added to a key that has a row, that of one without


def rows_of(keys: np.ndarray, group: GroupConfig) -> np.ndarray:
    return group.rounding.nearest(np.repeat(keys.astype(np.float32)[:, None], DIM, 1))


class Reads:
    """Reads a table into arrays that are made before memory fails and compared after it."""

    def __init__(self, table: Any, group: GroupConfig, keys: np.ndarray) -> None:
        self.table, self.group, self.keys = table, group, keys
        self.rows = np.full((keys.size, DIM), np.nan, np.float32)
        self.flat_rows = self.rows.reshape(-1)
        self.exists = np.full(keys.size, 2, np.uint8)
        self.counts, self.times = np.zeros((2, keys.size), np.int64)

    def look_up(self) -> None:
        self.table.lookup(self.keys, self.flat_rows, False, self.exists)

    def metadata(self) -> None:
        self.table.metadata(self.keys, self.exists, self.counts, self.times)

    def check(self, name: str) -> None:
        expected = self.keys < UNKNOWN
        assert (self.exists == expected).all(), f"{self.keys[self.exists != expected]} differ"
        if name == "look_up":
            wanted = rows_of(self.keys[expected], self.group)
            assert (self.rows[expected] == wanted).all(), "other rows"


def batches() -> Iterator[np.ndarray]:
    for first in range(0, KEYS.size, READ_KEYS):
        known = KEYS[first : first + READ_KEYS]
        yield np.concatenate([known, known + UNKNOWN])


def main(core_path: str, folder: str) -> None:
    core = load_core(core_path)
    memory = ctypes.CDLL(os.environ["LD_PRELOAD"])
    storage = core.Storage(folder, None, 1 << 20, False, False)
    for group in GROUPS:
        group.open_table(storage).assign(KEYS, rows_of(KEYS, group).reshape(-1))
    storage.close()
    rng = np.random.default_rng(7)
    raised = 0
    for name, read_only in itertools.product(("look_up", "metadata"), (False, True)):
        storage = core.Storage(folder, None, 1 << 20, False, read_only)
        group = GROUPS[int(read_only)]
        table = group.open_table(storage)
        most = 1  # allocations of a read so far
        for keys in batches():
            reads = Reads(table, group, keys)
            read = getattr(reads, name)
            after = ctypes.c_long(rng.integers(most))
            failed = False
            memory.fail_memory(after, ONE_BYTE)
            try:
                read()
            except (core.StorageError, MemoryError):
                failed = True
            made = memory.mend_memory()
            most = max(most, made)
            raised += failed
            if failed:
                read()
            reads.check(name)
        for keys in batches():
            reads = Reads(table, group, keys)
            reads.look_up()
            reads.check("look_up")
        storage.close()
    print(raised)


if __name__ == "__main__":
    main(*sys.argv[1:3])
