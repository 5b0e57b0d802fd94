"""A process in which an allocation fails in a call on a storage: as a whole or not at all.

    python tests/stores/failing_memory_worker.py CORE FOLDER DURABILITY KIND AFTER

Needs the library of failing_memory.c. Prints how many allocations there were, and what all rows are
after the call: `before`, `after`, or `stuck` where RocksDB cannot go on in this process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np
from bare_core import load_core
from table_model import GroupConfig

KEYS = np.arange(20_000, dtype=np.uint64)
GROUP = GroupConfig(0, 32)
BEFORE, AFTER = 1.0, 3.0  # what every element of every row is; 0: there is no row
LEAST_BYTES = 64 << 10
KINDS = ("load", "assign", "remove", "survey", "flush")


def assign(table: Any, value: float) -> None:
    table.assign(KEYS, np.full(KEYS.size * GROUP.dim, value, np.float32))


def value_of(table: Any) -> float:
    """Returns what all rows hold."""
    rows = np.empty((KEYS.size, GROUP.dim), np.float32)
    exists = np.empty(KEYS.size, np.uint8)
    table.lookup(KEYS, rows.reshape(-1), False, exists)
    rows[exists == 0] = 0
    values = np.unique(rows)
    assert values.size == 1, f"the rows are of {values}"
    return float(values[0])


def value_after(kind: str) -> float:
    return {"load": AFTER, "assign": AFTER, "remove": 0.0}.get(kind, BEFORE)


def main(core_path: str, folder: str, durability: str, kind: str, after: int) -> None:
    core = load_core(core_path)
    memory = ctypes.CDLL(os.environ["LD_PRELOAD"])
    through = durability == "update"
    storage = core.Storage(f"{folder}/rows", None, 1 << 20, through, False)
    table = GROUP.open_table(storage)
    assign(table, AFTER)
    storage.dump(f"{folder}/dump")
    assign(table, BEFORE)
    storage.flush()
    if kind in ("survey", "flush"):  # then RocksDB does not know the rows
        table.remove(KEYS)
        storage.flush()
        assign(table, BEFORE)
    call = {
        "load": lambda: storage.load(f"{folder}/dump"),
        "assign": lambda: assign(table, AFTER),
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
        there = value_of(table)
        expected = {value_after(kind)} | ({BEFORE} if failed is not None else set())
        assert there in expected, f"{there} after {failed!r}"
        storage.flush()
        assert value_of(table) == there
        if kind in ("survey", "flush"):
            table.remove(KEYS)
            assert value_of(table) == 0
            assign(table, there)
        storage.close()
    except core.StorageError as error:
        assert "memory ended within a write of RocksDB" in str(error), error
        print("stuck", flush=True)
        os._exit(0)
    print(there)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))
