"""A process that makes the calls of storage_work until somebody kills it.

It says `begin N` before a call and `done N SECONDS` after it.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from bare_core import load_core
from storage_work import CACHE_BYTES, Call, call_at, groups_of, time_at
from table_model import key_at

# A flush of less goes through RocksDB's log; a few calls change more.
BATCH_BYTES = 1 << 18


class Worker:
    """A storage and its tables. The seed decides their types, and how many rows may be spilled."""

    def __init__(
        self, core: ModuleType, folder: Path, durability: str, ttl: int, seed: int
    ) -> None:
        self._core = core
        self._folder = folder
        self._through = durability == "update"
        self._ttl = ttl
        self._spill_rows = (None, 0, 1_000)[seed // 4 % 3]
        self._groups = groups_of(seed)
        self._optimizers = {g: self._core.Optimizer(g.rule, g.hypers) for g in self._groups}
        self.storage: Any = None
        self._ahead = ThreadPoolExecutor(1)
        self._read: Future[None] | None = None

    def open(self, now: int) -> None:
        folder = str(self._folder / "rows")
        self.storage, self._tables = None, {}
        self.storage = self._core.Storage(
            folder,
            self._ttl,
            CACHE_BYTES,
            self._through,
            False,
            spill_rows=self._spill_rows,
            batch_bytes=BATCH_BYTES,
        )
        self.storage.set_now(now)
        self._tables = {group: group.open_table(self.storage) for group in self._groups}

    def make(self, call: Call) -> np.ndarray | None:
        """Makes a call. Returns the vectors of a lookup."""
        storage, table = self.storage, self._tables[call.group]
        storage.set_now(call.now)
        keys = key_at(call.positions)
        file = str(self._folder / f"dump-{call.file}")
        if call.kind == "look_up":
            vectors = np.empty(call.numbers.shape, np.float32)
            table.lookup(keys, vectors.reshape(-1), True)
            return vectors
        elif call.kind == "update":
            optimizer = self._optimizers[call.group]
            table.update(keys, call.numbers.ravel(), optimizer, call.in_turn)
        elif call.kind == "assign":
            table.assign(keys, call.numbers.ravel())
        elif call.kind == "remove":
            table.remove(keys)
        elif call.kind == "survey":
            storage.survey(call.group.number)  # has what was not flushed written to RocksDB
        elif call.kind == "dump":
            storage.dump(file)
        elif call.kind == "load" and os.path.exists(file):
            storage.load(file)
        elif call.kind in ("flush", "flush_beside", "load"):
            storage.flush(call.kind != "flush_beside")
        elif call.kind == "compact":
            storage.compact()
        elif call.kind == "checkpoint":
            storage.checkpoint(str(self._folder / f"checkpoint-{call.number}"))
        elif call.kind == "reopen":
            self.close()
            self.open(call.now)
        return None

    def read_ahead(self, call: Call) -> None:
        """Begins to read the rows of a call that comes later, unless another read is under way.

        Other calls, and the end of the storage, do not wait for it.
        """
        if self._read is not None and not self._read.done():
            return
        if self._read is not None:
            self._read.result()  # raises its error
        self._read = self._ahead.submit(self._read_rows, self._tables[call.group], call)

    @staticmethod
    def _read_rows(table: Any, call: Call) -> None:
        try:
            table.prefetch(key_at(call.positions))
        except RuntimeError as error:
            if "closed" not in str(error):
                raise

    def close(self) -> None:
        self.storage.close()


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def main(
    core_path: str, folder: str, durability: str, ttl: int, seed: int, first: int, last: int
) -> None:
    """Makes calls [first, last), and closes as call `last`."""
    worker = Worker(load_core(core_path), Path(folder), durability, ttl, seed)
    say("opening")
    worker.open(time_at(first))
    say("opened")
    for number in range(first, last + 1):
        say(f"begin {number}")
        begun = time.perf_counter()
        if number < last:
            worker.read_ahead(call_at(seed, number + 1))
            worker.make(call_at(seed, number))
        else:
            worker.close()
        say(f"done {number} {time.perf_counter() - begun:.6f}")


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
