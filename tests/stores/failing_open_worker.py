"""Has single reads fail while a storage is opened: the error is one of the disk.

    python tests/stores/failing_open_worker.py CORE FOLDER

Needs the library of faulty_files.c. Prints how many openings failed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

import numpy as np
from bare_core import load_core
from table_model import GroupConfig

GROUP = GroupConfig(0, 64)
KEYS = np.arange(100, dtype=np.uint64)
READS_ALONE = 0  # of the kinds of calls


def main(core_path: str, folder: str) -> None:
    """Raises for an opening that fails in another way, or that has not got the rows."""
    core = load_core(core_path)
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    path = str(Path(folder) / "rows")
    rows = np.arange(KEYS.size * GROUP.dim, dtype=np.float32)
    storage = core.Storage(path, None, 1 << 20, True, False)
    GROUP.open_table(storage).assign(KEYS, rows)
    storage.close()
    failed, number = 0, 0
    while True:
        library.break_files(errno.EIO, ctypes.c_long(number), True, True, READS_ALONE)
        storage = None
        try:
            storage = core.Storage(path, None, 1 << 20, True, False)
        except core.StorageError:
            failed += 1
        if library.mend_files() == 0:
            break  # there are no more reads than that
        number += 1
        if storage is None:
            storage = core.Storage(path, None, 1 << 20, True, False)
        found = np.empty_like(rows)
        GROUP.open_table(storage).lookup(KEYS, found, False, np.empty(KEYS.size, np.uint8))
        assert (found == rows).all(), f"other rows after read {number} failed"
        storage.close()
    print(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
