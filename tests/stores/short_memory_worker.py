"""Has memory end in calls on a storage, each in a process of its own, and checks what is there.

    python tests/stores/short_memory_worker.py CORE FOLDER DURABILITY KIND TURN

TURN chooses the types of the rows. KIND `load`: one allocation of any size fails, now and then and
among the last ones; needs the library of failing_memory.c. KIND `assign`: the system has no more
than some memory. Ends with an error where a call has happened in part, has not ended, or differs
from what a kill leaves.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from bare_core import load_core
from equal_rows import EqualRows

BEFORE, AFTER = 1.0, 3.0  # what every element of every row is; 0: there is no row
SECONDS = 20  # a call that takes longer hangs
NEVER = 1 << 40
STRIDE = 1 if os.environ.get("SOK_TEST_LONG") else 3
LIMIT_STEP = STRIDE << 20  # bytes


def in_child(call: Callable[[], float]) -> float | None:
    """Returns what a call returns in a process of its own; None if RocksDB ended the process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            os.write(writing, str(call()).encode())
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    # RocksDB's destructors must not throw, and some of them ask for memory.
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGABRT, signal.SIGSEGV):
        return None
    assert status != signal.SIGALRM, f"the call did not end within {SECONDS} s"
    assert status == 0, "see above"
    return float(said)


def main(core_path: str, folder: str, durability: str, kind: str, turn: int) -> None:
    core = load_core(core_path)
    through = durability == "update"
    keys = np.arange(3_000 if kind == "load" else 60_000, dtype=np.uint64)
    rows = EqualRows(0, 32, keys, turn)
    path = f"{folder}/rows"
    os.makedirs(folder)

    def life(call: Callable[[Any, Any], None], before: float) -> float:
        """Returns what the rows are after a call, and after a kill; -1: nothing can go on."""
        storage = core.Storage(path, None, 1 << 20, through, False)
        table = rows.config.open_table(storage)
        if kind == "load":
            rows.assign(table, AFTER)
            storage.dump(f"{folder}/dump")
        if before != 0:
            rows.assign(table, before)
        storage.flush()
        rows.value_of(table)
        failed = None
        try:
            call(storage, table)
        except (core.StorageError, MemoryError) as error:
            failed = error
        try:
            there = rows.value_of(table)
            assert there in {AFTER, before}, f"{there} after {failed!r}"
            assert (there == AFTER) == (failed is None), f"{there} after {failed!r}"
            if through or failed is not None:
                shutil.copytree(path, f"{folder}/killed")
                storage_then = core.Storage(f"{folder}/killed", None, 1 << 20, False, True)
                then = rows.value_of(rows.config.open_table(storage_then))
                storage_then.close()
                assert then == there, f"{then} after a kill, {there} before it, after {failed!r}"
            storage.flush()
            storage.close()
        except core.StorageError as error:
            assert "memory ended within a write of RocksDB" in str(error), error
            return -1
        return there

    def attempt(call: Callable[[Any, Any], None], before: float) -> float | None:
        there = in_child(lambda: life(call, before))

        def found() -> float:
            storage = core.Storage(path, None, 1 << 20, False, True)
            return rows.value_of(rows.config.open_table(storage))

        left = in_child(found)
        assert left in ({AFTER, before} if there in (None, -1) else {there}), f"{left}, {there}"
        shutil.rmtree(folder)
        os.makedirs(folder)
        return there

    if kind == "load":
        memory = ctypes.CDLL(os.environ["LD_PRELOAD"])

        def load(storage: Any, after: int) -> int:
            memory.fail_memory(ctypes.c_long(after), ctypes.c_size_t(1))
            try:
                storage.load(f"{folder}/dump")
            finally:
                calls = memory.mend_memory()
            return int(calls)

        counted = os.pipe()
        attempt(lambda s, _: os.write(counted[1], b"%d" % load(s, NEVER)) and None, BEFORE)
        calls = int(os.read(counted[0], 20))
        early = range(calls // 3, calls - 40, calls // 20)
        for after in [*early, *range(calls - 40, calls, STRIDE)]:
            print("after", after, flush=True)
            attempt(lambda s, _, after=after: load(s, after) and None, BEFORE)
        return

    def short(table: Any, more: int) -> None:
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + more
        values = rows.floats(AFTER)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            table.assign(keys, values)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

    for more in range(8 << 20, 40 << 20, LIMIT_STEP):
        print("bytes", more, flush=True)
        if attempt(lambda _, t, more=more: short(t, more), 0.0) == AFTER:
            break


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))
