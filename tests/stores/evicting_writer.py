"""A process whose disk fails as a full table makes room, with `durability="update"`.

    python tests/stores/evicting_writer.py CORE FOLDER CALL

No file may grow while the call is made. Prints the error, then the keys that have rows and how many
were evicted: once the disk is well again, and once the call was repeated.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any

import numpy as np
from bare_core import load_core


def let_files_grow(they_may: bool) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if they_may else 0, hard))


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def make(core: Any, table: Any, call: str) -> None:
    if call == "assign":
        table.assign(keys(3), np.full(1, 7, np.float32))
    elif call == "lookup":
        table.lookup(keys(3), np.empty(1, np.float32), True)
    else:
        sgd = core.Optimizer("sgd", [("learning_rate", 1.0)])
        table.update(keys(3), np.ones(1, np.float32), sgd, False)


def show(table: Any) -> None:
    exists = np.empty(3, np.uint8)
    table.metadata(keys(1, 2, 3), exists, np.empty(3, np.int64), np.empty(3, np.int64))
    print([int(key) for key in keys(1, 2, 3)[exists == 1]], table.stats()["evicted"])


def main() -> None:
    core_path, folder, call = sys.argv[1:]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    core = load_core(core_path)
    storage = core.Storage(folder, None, 1 << 20, True, False)
    table = storage.open_table(
        json.dumps(
            {
                "dim": 1,
                "initializer": "constant",
                "initializer_a": 0.0,
                "max_rows": 2,
                "eviction": "lru",
            }
        )
    )
    table.assign(keys(1), np.ones(1, np.float32))
    table.assign(keys(2), np.ones(1, np.float32))
    let_files_grow(False)
    try:
        make(core, table, call)
        error = "none"
    except OSError as raised:
        error = str(raised)
    let_files_grow(True)
    print(error)
    storage.flush()
    show(table)
    make(core, table, call)
    show(table)
    storage.close()


if __name__ == "__main__":
    main()
