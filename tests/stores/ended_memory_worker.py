"""Has memory end at any point of calls on a storage, each in a process of its own.

    python tests/stores/ended_memory_worker.py CORE FOLDER DURABILITY KIND TURN

TURN chooses the types of the rows. Needs the library of failing_memory.c. At each point one
allocation fails, or all from there to the end of the call. Ends with an error where that ended a
process, where a call raised when rows had changed and did not say so, or the other way round, or
where a later flush did not make them last.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from bare_core import load_core
from equal_rows import EqualRows

KEYS = np.arange(500, dtype=np.uint64)
BEFORE = 2.0  # what every element of every row is; 0: there is no row
AFTER = {"update": 1.0, "assign": 5.0, "remove": 0.0, "flush": BEFORE, "dump": BEFORE}
SECONDS = 20  # a call that takes longer hangs
NEVER = 1 << 40
STRIDE = 7 if os.environ.get("SOK_TEST_LONG") else 21


def main(core_path: str, folder: str, durability: str, kind: str, turn: int) -> None:
    core = load_core(core_path)
    memory = ctypes.CDLL(os.environ["LD_PRELOAD"])
    rows = EqualRows(3, 8, KEYS, turn)
    ones = rows.floats(1.0)
    path = f"{folder}/rows"

    def stored() -> float:
        storage = core.Storage(path, None, 1 << 20, False, True)
        return rows.value_of(rows.config.open_table(storage))

    def life(end: Callable[[Any], object]) -> int:
        """Returns how many allocations there were."""
        storage = core.Storage(path, None, 1 << 20, durability == "update", False)
        table = rows.config.open_table(storage)
        sgd = core.Optimizer("kv_sgd", [("gamma", 1.0)])
        rows.assign(table, 3.0)
        storage.flush()
        table.update(KEYS, ones, sgd, False)
        fives = rows.floats(AFTER["assign"])
        call = {
            "update": lambda: table.update(KEYS, ones, sgd, False),
            "assign": lambda: table.assign(KEYS, fives),
            "remove": lambda: table.remove(KEYS),
            "flush": storage.flush,
            "dump": lambda: storage.dump(f"{folder}/dump"),
        }[kind]
        failed = None
        end(memory)
        try:
            call()
        except (core.StorageError, MemoryError) as error:
            failed = error
        calls = int(memory.mend_memory())
        if "some of its rows are changed and others are not" in str(failed):
            os._exit(0)
        try:
            there = rows.value_of(table)
            if kind not in ("flush", "dump"):
                changed = failed is None or "the rows are changed and kept" in str(failed)
                assert there == (AFTER[kind] if changed else BEFORE), f"{there} after {failed!r}"
            assert there in {BEFORE, AFTER[kind]}, f"{there} after {failed!r}"
            storage.flush()
            storage.close()
        except core.StorageError as error:
            assert "memory ended within a write of RocksDB" in str(error), error
            os._exit(0)  # only what was flushed need be there
        assert stored() == there, f"{stored()} was stored of {there}, after {failed!r}"
        return calls

    def calls_in(end: Callable[[Any], object]) -> int:
        os.makedirs(folder)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            try:
                os.write(writing, str(life(end)).encode())
                os._exit(0)
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        assert os.waitpid(child, 0)[1] == 0, "see above"
        shutil.rmtree(folder)
        return int(said or 0)

    calls = calls_in(lambda m: m.fail_memory(ctypes.c_long(NEVER), ctypes.c_size_t(1)))
    points = [*range(0, calls - 12, STRIDE), *range(max(0, calls - 12), calls)]
    for after in points:
        for name in ("fail_memory", "end_memory"):
            print(name, after, "of", calls, flush=True)
            calls_in(
                lambda m, name=name, after=after: getattr(m, name)(
                    ctypes.c_long(after), ctypes.c_size_t(1)
                )
            )


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))
