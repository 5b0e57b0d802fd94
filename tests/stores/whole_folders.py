"""A process that writes a storage, flush by flush, and what each flush leaves.

As a program it loads the core by itself, without TensorFlow. Flush number i sets some keys to i,
and each fourth flush is one of many rows, which RocksDB takes over as files; the others are records
of its log. With `durability="update"` and "sync" each call between flushes counts as one, too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from bare_core import load_core

KEYS = 70_000  # the keys of more are kept in a file of the folder
DIM = 2
FEW, MANY = 40, 3_000
BATCH_BYTES = 16_384  # a flush of more is one of files


def keys_of(call: int) -> np.ndarray:
    """Returns the keys that a call sets to its number; the first one sets all: uint64 [n]."""
    if call == 1:
        return np.arange(KEYS, dtype=np.uint64)
    count = MANY if call % 4 == 0 else FEW
    return (np.arange(count, dtype=np.uint64) + np.uint64(call * 7919)) % np.uint64(KEYS)


def rows_after(calls: int) -> np.ndarray:
    """Returns the value of each key after so many calls, 0 before the first: float32 [KEYS]."""
    rows = np.zeros(KEYS, np.float32)
    for call in range(1, calls + 1):
        rows[keys_of(call)] = call
    return rows


class Writer:
    """A storage that is open for writing, and its one table."""

    def __init__(self, core, folder: str, durability: str) -> None:
        self.storage = core.Storage(
            folder,
            None,
            1 << 24,
            durability != "checkpoint",
            False,
            sync=durability == "sync",
            batch_bytes=BATCH_BYTES,
        )
        self.table = self.storage.open_table(
            json.dumps({"group": 3, "dim": DIM, "initializer": "constant", "initializer_a": 0.0})
        )

    def call(self, number: int) -> None:
        keys = keys_of(number)
        self.table.assign(keys, np.full(keys.size * DIM, number, np.float32))


def rows_in(core, folder: Path, read_only: bool) -> np.ndarray:
    """Opens a folder and returns the value of each key, 0 where it has no row: float32 [KEYS]."""
    storage = core.Storage(str(folder), None, 1 << 24, False, read_only)
    try:
        found = np.zeros((KEYS, DIM), np.float32)
        exists = np.zeros(KEYS, np.uint8)
        storage.read_rows(3, np.arange(KEYS, dtype=np.uint64), found.reshape(-1), exists)
        assert (found[:, 0] == found[:, 1]).all()
        found[exists == 0] = 0
        return found[:, 0]
    finally:
        storage.close()


def main(folder: str, durability: str, first: int, last: int, reopen: int) -> None:
    """Makes the calls [first, last]; with "checkpoint" a flush follows each one of them.

    Args:
        folder: Of the storage.
        durability: Of the storage.
        first: The number of the first call.
        last: The number of the last call.
        reopen: The storage is closed and opened again after so many calls; 0: never.
    """
    core = load_core()
    writer = Writer(core, folder, durability)
    for call in range(first, last + 1):
        writer.call(call)
        if durability == "checkpoint" or call % 10 == 4:
            writer.storage.flush()
        os.write(1, b"%d\n" % call)
        if reopen and call % reopen == 0:
            writer.storage.close()
            writer = Writer(core, folder, durability)
    if durability == "checkpoint":
        writer.call(last + 1)  # which no flush follows
    os.write(1, b"done\n")
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
