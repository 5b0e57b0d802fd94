"""A process whose storage is closed for a while, as its disk fails, and others that want it.

    python tests/stores/closed_writer.py CORE FOLDER

No file may grow meanwhile, so that a flush fails, and the next one cannot open the database again.
Prints what another process is told that opens the folder then, and once the storage is closed.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from typing import Any

import numpy as np
from bare_core import load_core

KEYS = np.arange(100, dtype=np.uint64)
ANOTHER = """
import sys
sys.path.insert(0, sys.argv[3])
from bare_core import load_core
core = load_core(sys.argv[1])
try:
    storage = core.Storage(sys.argv[2], None, 1 << 20, False, False)
    print("opened")
    storage.close()
except core.StorageLockedError as error:
    print(f"locked: {error}")
"""


def let_files_grow(they_may: bool) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if they_may else 0, hard))


def another(core_path: str, folder: str) -> str:
    arguments = [sys.executable, "-c", ANOTHER, core_path, folder, sys.path[0]]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=1800)
    return result.stdout.strip()


def fails(call: Any) -> bool:
    try:
        call()
    except OSError:
        return True
    return False


def main() -> None:
    core_path, folder = sys.argv[1:]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    core = load_core(core_path)
    storage = core.Storage(folder, None, 1 << 20, False, False)
    table = storage.open_table(
        json.dumps({"dim": 1, "initializer": "constant", "initializer_a": 0.0})
    )
    table.assign(KEYS, np.ones(KEYS.size, np.float32))
    storage.flush()
    table.assign(KEYS, np.full(KEYS.size, 2, np.float32))
    let_files_grow(False)
    assert fails(storage.flush)
    assert fails(storage.flush)
    let_files_grow(True)
    print(another(core_path, folder))
    storage.flush()
    storage.close()
    print(another(core_path, folder))


if __name__ == "__main__":
    main()
