"""A process that replaces all rows of a table, again and again, until somebody kills it.

As a module it foretells what the table holds after each of its restores.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

DIM = 64
FLUSH_AFTER = 3  # restores
CACHE_BYTES = 1 << 20  # a third of the rows


def contents_of(seed: int, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a restore's keys [n], floats [n, 2 * DIM] with slots, and update counts [n]."""
    random = np.random.default_rng([seed, number])
    n = int(random.integers(1_000, 6_000))
    keys = random.choice(10_000, n, replace=False).astype(np.int64) - 5_000
    floats = (np.arange(2 * DIM) + 1_000 * keys[:, None] + number / 1024).astype(np.float32)
    return keys, floats, np.full(n, number)


def export_of(seed: int, number: int) -> Any:
    """Returns the same as a table takes it."""
    from sok_embed import tf_ops

    keys, floats, updates = contents_of(seed, number)
    return tf_ops.Export(
        keys=keys,
        embeddings=floats[:, :DIM],
        slots=floats[:, DIM:],
        update_nums=updates,
        update_times=updates,
        slot_start=np.zeros(DIM, np.float32),
        rule="momentum",
        steps=np.int64(number),
        step_clock=np.int64(-1),
        admission=np.zeros(0, np.uint8),
    )


def main(folder: str, durability: str, seed: int, first: int) -> None:
    """Restores from number `first` on."""
    from sok_embed import DynamicEmbedding, kv

    def say(what: str, number: int = 0) -> None:
        os.write(1, f"{what} {number}\n".encode())

    storage = kv.Storage(folder, durability=durability, cache_bytes=CACHE_BYTES)
    layer = DynamicEmbedding(DIM, storage=storage)
    layer.build((None, 1))
    say("opened")
    for number in range(first, first + 1_000):
        export = export_of(seed, number)
        say("begin", number)
        layer.table.restore(export)
        say("done", number)
        if number % FLUSH_AFTER == 0:
            say("flushing", number)
            storage.flush()
            say("flushed", number)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
