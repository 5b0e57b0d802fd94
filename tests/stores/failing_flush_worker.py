"""Has a flush fail behind its names in the MANIFEST; the process ends, and the folder opens.

    python tests/stores/failing_flush_worker.py CORE FOLDER

Needs the library of faulty_files.c. Prints how many places of a flush failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bare_core import load_core
from table_model import GroupConfig

GROUP = GroupConfig(0, 64)
KEYS = np.arange(1000, dtype=np.uint64)
SYNCS = 2  # of the kinds of calls
HANG_S = 60


def rows_of(value: float) -> np.ndarray:
    return np.full(KEYS.size * GROUP.dim, value, np.float32)


def assign(storage: Any, value: float) -> None:
    """Gives all rows a value. RocksDB takes them at once, so that a flush makes a file of them."""
    GROUP.open_table(storage).assign(KEYS, rows_of(value))
    storage.survey(GROUP.number)


def flush_fails(core: Any, storage: Any) -> bool:
    try:
        storage.flush()
    except core.StorageError:
        return True
    return False


def found(core: Any, path: str) -> set[float]:
    """Opens a storage and returns the values of its rows."""
    storage = core.Storage(path, None, 1 << 20, True, False)
    rows = np.empty(KEYS.size * GROUP.dim, np.float32)
    GROUP.open_table(storage).lookup(KEYS, rows, False, np.empty(KEYS.size, np.uint8))
    storage.close()
    return set(rows.tolist())


def in_child(work: Callable[[], bool]) -> bool:
    """Calls a function in a process that ends at once then. This one has no thread of RocksDB's."""
    if os.fork() == 0:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        answer = 2
        with contextlib.suppress(Exception):
            answer = int(work())
        os._exit(answer)
    answer = os.waitstatus_to_exitcode(os.wait()[1])
    assert answer in (0, 1), answer
    return answer == 1


def main(core_path: str, outside: str) -> None:
    """Raises for a folder that does not open after a flush that has failed in one place."""
    core = load_core(core_path)
    for after in itertools.count():
        folder = str(Path(outside) / str(after))

        def fails(folder: str = folder, after: int = after) -> bool:
            storage = core.Storage(folder, None, 1 << 20, True, False)
            assign(storage, 1)
            storage.flush()
            assign(storage, 2)
            library = ctypes.CDLL(os.environ["LD_PRELOAD"])
            library.choose_files(b"MANIFEST-*")
            library.break_files(errno.EIO, ctypes.c_long(after), False, False, SYNCS)
            return flush_fails(core, storage)

        failed = in_child(fails)
        assert in_child(lambda folder=folder: found(core, folder) in ({1.0}, {2.0})), after
        if not failed:
            break
    print(after)


if __name__ == "__main__":
    main(*sys.argv[1:])
