"""A process in which one system call after another fails as it replaces all rows of a table.

    python tests/stores/failing_restorer.py FOLDER DURABILITY PLACES

Needs the library and the environment of `broken_disk.faulty`. A restore that fails leaves the old
rows or the new ones, as a whole; so does the folder once it is opened again.
"""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from broken_disk_worker import FaultyDisk
from killed_restorer import CACHE_BYTES, DIM, contents_of, export_of

from sok_embed import DynamicEmbedding, kv

NEVER = 1 << 40


def number_there(table: Any) -> int:
    """Returns which restore a table holds the rows of, to the last bit."""
    export = table.export(slots=True)
    number = int(export.steps)
    wanted = export_of(1, number)
    order, wanted_order = np.argsort(export.keys), np.argsort(wanted.keys)
    for name in ("keys", "embeddings", "slots", "update_nums"):
        found = getattr(export, name)[order]
        assert np.array_equal(found, getattr(wanted, name)[wanted_order]), f"{number}: {name}"
    assert len(table) == wanted.keys.size
    return number


def open_table(folder: Path, durability: str) -> tuple[kv.Storage, Any]:
    storage = kv.Storage(str(folder), durability=durability, cache_bytes=CACHE_BYTES)
    layer = DynamicEmbedding(DIM, storage=storage)
    layer.build((None, 1))
    return storage, layer.table


def fail(folder: Path, durability: str, after: int, once: bool) -> int:
    """Has the system call fail that comes after so many others, or all from there on, too.

    Returns:
        How many calls there were.
    """
    disk = FaultyDisk()
    storage, table = open_table(folder, durability)
    table.restore(export_of(1, 1))
    storage.flush()
    disk.break_down_after(after, errno.EIO, once)
    allowed = {2}
    try:
        table.restore(export_of(1, 2))
    except (tf.errors.OpError, OSError) as error:
        print(f"after {after}: {error}", flush=True)
        allowed = {1, 2}
    calls = disk.count()
    disk.mend()
    there = number_there(table)
    assert there in allowed, f"after {after}: restore {there}, of {allowed}"
    # What was there before must not come back.
    removed = contents_of(1, there)[0]
    table.remove(removed)
    assert len(table) == 0
    assert table.export()[0].size == 0
    table.restore(export_of(1, 3))
    storage.close()
    del table
    storage, table = open_table(folder, durability)
    assert number_there(table) == 3, f"after {after}"
    storage.close()
    shutil.rmtree(folder)
    return calls


def main(folder: str, durability: str, places: int) -> None:
    calls = fail(Path(folder), durability, NEVER, once=True)
    # Towards the end of a restore more depends on each call.
    for after in sorted({int(calls * (i / places) ** 0.5) for i in range(1, places)}):
        for once in (True, False):
            fail(Path(folder), durability, after, once)
    print(f"{calls} system calls in a restore")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
