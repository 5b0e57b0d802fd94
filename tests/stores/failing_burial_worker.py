"""A process in which the database does not let go of rows that have expired.

    python tests/stores/failing_burial_worker.py CORE FOLDER WAY

They lie in the cache, a count has left them out, and then the disk fails. Ways give them another
life: "assign", "look_up" and "update". However that ends, the table knows how many rows it has.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from bare_core import load_core

DIM, TTL, MOST = 4, 100, 600
EXPIRING = np.arange(500, dtype=np.uint64)
OTHERS = EXPIRING + 1000
ONES = np.ones(EXPIRING.size * DIM, np.float32)


def revive(core: Any, table: Any, way: str) -> None:
    """Gives the rows that have expired another life."""
    if way == "assign":
        table.assign(EXPIRING, ONES)
    elif way == "look_up":
        table.lookup(EXPIRING, np.empty(EXPIRING.size * DIM, np.float32), True)
    else:
        table.update(EXPIRING, ONES, core.Optimizer("sgd", [("learning_rate", 1.0)]), False)


def fail(core: Any, library: Any, folder: Path, way: str, after: int) -> bool:
    """Breaks the disk after so many system calls of a flush. Returns whether one has failed."""
    storage = core.Storage(str(folder), TTL, 1 << 24, False, False)
    storage.set_now(1000)
    table = storage.open_table(
        json.dumps(
            {
                "group": 3,
                "dim": DIM,
                "initializer": "constant",
                "initializer_a": 0.0,
                "max_rows": MOST,
            }
        ),
        rule="sgd",
        hypers=[("learning_rate", 1.0)],
    )
    table.assign(EXPIRING, ONES)
    storage.flush()
    storage.set_now(1000 + 2 * TTL)
    table.assign(OTHERS[:1], ONES[:DIM])
    storage.compact()
    table.assign(OTHERS[:1], ONES[:DIM])
    assert table.size() == 1, table.size()
    library.break_files(errno.ENOSPC, ctypes.c_long(after), False, True, 7)
    told = []
    calls = (storage.flush, lambda: revive(core, table, way), lambda: table.assign(OTHERS, ONES))
    for call in calls:
        try:
            call()
        except core.StorageError as failure:
            told.append(str(failure))
    failed: bool = library.mend_files() > 0
    time.sleep(1.1)  # until the storage tries the disk again
    storage.flush()
    size, rows = table.size(), storage.survey(3)["rows"]
    assert size == rows <= MOST, (after, size, rows, told)
    table.remove(EXPIRING)
    table.remove(OTHERS)
    assert table.size() == 0, (after, table.size(), told)
    storage.close()
    shutil.rmtree(folder)
    return failed


def main(core_path: str, folder: str, way: str) -> None:
    core = load_core(core_path)
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for after in itertools.count(0, 3):
        if not fail(core, library, Path(folder) / "disk" / "rows", way, after):
            break
    print(f"{after} system calls")


if __name__ == "__main__":
    main(*sys.argv[1:])
