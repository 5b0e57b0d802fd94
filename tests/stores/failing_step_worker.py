"""A process in which each system call fails in turn in a call that has one step, all or nothing.

    python tests/stores/failing_step_worker.py CORE FOLDER KIND DURABILITY

Kinds: "load" takes in a dump that brings an optimizer and no row; "reset" opens a group with
another optimizer; "open" opens a new group. Whatever fails, the group is as before or as after, and
an error means before, unless it says that nobody can know. The call can be repeated.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from bare_core import load_core

DIM, KEYS = 4, np.arange(500, dtype=np.uint64)
# Each system call fails by itself, or each third one.
STRIDE = 1 if os.environ.get("SOK_TEST_LONG") else 3
RATE = [("learning_rate", 1.0)]
UNKNOWN = "whether the call has happened"

State = dict[int, tuple[Any, ...]]


class Steps:
    def __init__(self, core_path: str, folder: Path, kind: str, durability: str):
        self._core, self._kind, self._durability = load_core(core_path), kind, durability
        self._folder, self._dump = folder / "disk" / "rows", str(folder / "dump")
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        # An optimizer and no row.
        source = self._core.Storage(str(folder / "source"), None, 1 << 20, False, False)
        table = self._open(source, 3, "adagrad")
        self._train(table, KEYS[:1])
        table.remove(KEYS[:1])
        source.dump(self._dump)
        source.close()

    def _storage(self) -> Any:
        update = self._durability == "update"
        return self._core.Storage(str(self._folder), None, 1 << 20, update, False)

    def _open(self, storage: Any, group: int, rule: str, **options: bool) -> Any:
        spec = {"group": group, "dim": DIM, "initializer": "constant", "initializer_a": 0.0}
        hypers = RATE if rule else []
        return storage.open_table(json.dumps(spec), rule=rule, hypers=hypers, **options)

    def _train(self, table: Any, keys: np.ndarray) -> None:
        gradients = np.ones(keys.size * DIM, np.float32)
        table.update(keys, gradients, self._core.Optimizer("adagrad", RATE), False)

    def _call(self, storage: Any) -> Any:
        if self._kind == "load":
            return storage.load(self._dump)
        group, rule = (3, "sgd") if self._kind == "reset" else (4, "adagrad")
        return self._open(storage, group, rule, reset_slots=self._kind == "reset")

    @staticmethod
    def _state(storage: Any) -> State:
        """Returns what a storage says of its groups, and of one row."""
        row = storage.get(3, 5)
        told: State = {}
        for number, text in storage.groups():
            meta = json.loads(text)
            told[number] = (meta["rule"], meta["steps"], meta["rows"], meta["slots"])
        told[-1] = (row["update_num"], row["floats"].tobytes())
        return told

    def _reopened(self, storage: Any) -> State:
        """After the process was killed."""
        copy = self._folder.with_name("copy")
        for _ in range(100):  # a file that RocksDB removes meanwhile is as if it went before
            try:
                shutil.copytree(self._folder, copy)
                break
            except shutil.Error:
                shutil.rmtree(copy)
        opened = self._core.Storage(str(copy), None, 1 << 20, False, False)
        state = self._state(opened)
        opened.close()
        shutil.rmtree(copy)
        return state

    def fail(self, after: int, once: bool) -> bool:
        """Returns whether a system call has failed."""
        made = self._storage()
        table = self._open(made, 3, "" if self._kind == "load" else "adagrad")
        table.assign(KEYS, np.full(KEYS.size * DIM, 2, np.float32))
        if self._kind != "load":
            self._train(table, KEYS)
        made.close()
        storage = self._storage()
        before, error, opened = self._state(storage), "", None
        self._library.break_files(errno.EIO, ctypes.c_long(after), once, True, 7)
        try:
            opened = self._call(storage)
        except (self._core.StorageError, self._core.CorruptionError) as failure:
            error = str(failure)
        failed = self._library.mend_files() > 0
        life = f"after {after}, once {once}: {error!r}"
        if error and UNKNOWN in error:
            assert not once, life
        elif error:
            assert self._state(storage) == before, life
            assert self._reopened(storage) == before, life
            assert "rows are changed" not in error, life
        if error:
            opened = self._call(storage)
        told = self._state(storage)
        assert told != before, life
        if self._kind != "open" or self._durability == "update":
            assert self._reopened(storage) == told, life
        del opened
        storage.close()
        shutil.rmtree(self._folder)
        return failed


def main(core_path: str, folder: str, kind: str, durability: str) -> None:
    steps = Steps(core_path, Path(folder), kind, durability)
    for once in (True, False):
        for after in itertools.count(once % STRIDE, STRIDE):
            if not steps.fail(after, once):
                break
        print(f"{after} system calls, once {once}")


if __name__ == "__main__":
    main(*sys.argv[1:])
