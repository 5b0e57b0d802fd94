"""Has each system call of a checkpoint fail in turn: nothing is left, and another one can be made.

    python tests/stores/failing_checkpoint_worker.py CORE FOLDER writer|reader

The folder has one below, "copies", where the checkpoints go. Needs the library of faulty_files.c.
Prints how many checkpoints failed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path

import numpy as np
from bare_core import load_core
from table_model import GroupConfig

GROUP = GroupConfig(0, 4)
KEYS = np.arange(100, dtype=np.uint64)
ALL_KINDS = 7


def main(core_path: str, folder: str, who: str) -> None:
    """Raises for what a failed checkpoint has left, and for one that has not got the rows."""
    core = load_core(core_path)
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    path, copies = str(Path(folder) / "rows"), Path(folder) / "copies"
    copies.mkdir()
    rows = np.arange(KEYS.size * GROUP.dim, dtype=np.float32)
    storage = core.Storage(path, None, 1 << 20, True, False)
    GROUP.open_table(storage).assign(KEYS, rows)
    if who == "reader":
        # As a killed writer leaves it: the rows are in the journal alone.
        killed = str(Path(folder) / "killed")
        shutil.copytree(path, killed)
        storage.close()
        storage = core.Storage(killed, None, 1 << 20, False, True)
    failed, number, unharmed = 0, 0, 0
    while unharmed < 10:  # how many calls there are differs, as RocksDB mends what has failed
        library.break_files(errno.EIO, ctypes.c_long(number), True, False, ALL_KINDS)
        error = None
        try:
            storage.checkpoint(str(copies / "copy"))
        except OSError as raised:
            error = str(raised)
        harmed = library.mend_files()
        if error is None:
            copy = core.Storage(str(copies / "copy"), None, 1 << 20, False, False)
            found = np.empty_like(rows)
            GROUP.open_table(copy).lookup(KEYS, found, False, np.empty(KEYS.size, np.uint8))
            assert (found == rows).all(), f"other rows after call {number} failed"
            copy.close()
            shutil.rmtree(copies / "copy")
        else:
            failed += 1
            assert "has its name already" not in error, error
        assert not os.listdir(copies), (
            f"call {number} failed and left {os.listdir(copies)}: {error}"
        )
        unharmed = 0 if harmed else unharmed + 1
        number += 1
    storage.close()
    print(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
