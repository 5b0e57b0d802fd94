"""A process in which an allocation fails in a call on a storage: as a whole or not at all.

    python tests/stores/failing_memory_worker.py CORE FOLDER DURABILITY KIND TURN AFTER

TURN chooses the types of the rows. Needs the library of failing_memory.c. Prints how many
allocations there were, and what all rows are after the call: `before`, `after`, or `stuck` where
RocksDB cannot go on in this process.
"""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np
from bare_core import load_core
from equal_rows import EqualRows

KEYS = np.arange(20_000, dtype=np.uint64)
BEFORE, AFTER = 1.0, 3.0  # what every element of every row is; 0: there is no row
LEAST_BYTES = 64 << 10
KINDS = ("load", "assign", "remove", "survey", "flush")


def rows_of(turn: int) -> EqualRows:
    return EqualRows(0, 32, KEYS, turn)


def value_after(kind: str) -> float:
    return {"load": AFTER, "assign": AFTER, "remove": 0.0}.get(kind, BEFORE)


def main(core_path: str, folder: str, durability: str, kind: str, turn: int, after: int) -> None:
    rows = rows_of(turn)
    core = load_core(core_path)
    memory = ctypes.CDLL(os.environ["LD_PRELOAD"])
    through = durability == "update"
    storage = core.Storage(f"{folder}/rows", None, 1 << 20, through, False)
    table = rows.config.open_table(storage)
    rows.assign(table, AFTER)
    storage.dump(f"{folder}/dump")
    rows.assign(table, BEFORE)
    storage.flush()
    if kind in ("survey", "flush"):  # then RocksDB does not know the rows
        table.remove(KEYS)
        storage.flush()
        rows.assign(table, BEFORE)
    call = {
        "load": lambda: storage.load(f"{folder}/dump"),
        "assign": lambda: rows.assign(table, AFTER),
        "remove": lambda: table.remove(KEYS),
        "survey": lambda: storage.survey(0),
        "flush": storage.flush,
    }[kind]
    failed = None
    memory.fail_memory(ctypes.c_long(after), ctypes.c_size_t(LEAST_BYTES))
    try:
        call()
    except (core.StorageError, MemoryError) as error:
        failed = error
    print(memory.mend_memory())
    try:
        there = rows.value_of(table)
        expected = {value_after(kind)} | ({BEFORE} if failed is not None else set())
        assert there in expected, f"{there} after {failed!r}"
        storage.flush()
        assert rows.value_of(table) == there
        if kind in ("survey", "flush"):
            table.remove(KEYS)
            assert rows.value_of(table) == 0
            rows.assign(table, there)
        storage.close()
    except core.StorageError as error:
        assert "memory ended within a write of RocksDB" in str(error), error
        print("stuck", flush=True)
        os._exit(0)
    print(there)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6]))
