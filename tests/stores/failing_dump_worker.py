"""Has each system call of a dump, and of its loading, fail in turn: no error calls that damage.

    python tests/stores/failing_dump_worker.py CORE FOLDER

Needs the library of faulty_files.c. Prints how many calls failed.
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
ALL_KINDS = 7


def main(core_path: str, folder: str) -> None:
    """Raises for an error that says that what a file holds is damaged."""
    core = load_core(core_path)
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    disk = Path(folder)
    rows = np.arange(KEYS.size * GROUP.dim, dtype=np.float32)
    storage = core.Storage(str(disk.parent / "rows"), None, 1 << 20, True, False)
    other = core.Storage(str(disk.parent / "other"), None, 1 << 20, True, False)
    table = GROUP.open_table(storage)
    table.assign(KEYS, rows)
    dump = str(disk / "dump")
    failed = 0
    for work in (lambda: storage.dump(dump), lambda: other.load(dump)):
        number = 0
        while True:
            library.break_files(errno.EIO, ctypes.c_long(number), True, True, ALL_KINDS)
            try:
                work()
            except core.CorruptionError as error:
                raise AssertionError(f"call {number}: {error}") from None
            except core.StorageError as error:
                assert "Input/output error" in str(error), error
                failed += 1
            if library.mend_files() == 0:
                break  # there are no more calls than that
            number += 1
    found = np.empty_like(rows)
    GROUP.open_table(other).lookup(KEYS, found, False, np.empty(KEYS.size, np.uint8))
    assert (found == rows).all()
    print(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
