"""What does each durability of a table on disk cost a call?

    python benchmarks/durability.py --folder /a/folder/on/the/disk

Updates of --batch rows of 16 floats by Adam, all of them in the cache: by one thread, and by eight,
of which each has a group of its own, so that their calls may be brought to the disk together. The
three durabilities take turns, and a case has the median of its rounds. What "sync" costs is what
the disk takes to say that it has a few kilobytes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from typing import Any

import numpy as np
from _common import report

DIM = 16
KEYS = 10_000
DURABILITIES = ("checkpoint", "update", "sync")


class Contender:
    """A storage of one durability, with a table for each thread."""

    def __init__(self, folder: str, durability: Any, threads: int) -> None:
        from sok_embed import kv

        self._storage = kv.Storage(f"{folder}/{durability}-{threads}", durability=durability)
        self._tables = [
            kv.Embedding(
                self._storage, kv.Optimizer("adam"), kv.Initializer("zeros"), DIM, group=group
            )
            for group in range(threads)
        ]

    def round(self, calls: int, batch: int) -> float:
        """Returns how many calls all threads have made in a second, each `calls` of them."""

        def work(table: Any, seed: int) -> None:
            random = np.random.default_rng(seed)
            gradients = np.ones((batch, DIM), np.float32)
            for _ in range(calls):
                table.apply_gradients(random.integers(0, KEYS, batch).astype(np.uint64), gradients)

        threads = [
            threading.Thread(target=work, args=(table, seed))
            for seed, table in enumerate(self._tables)
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return calls * len(threads) / (time.perf_counter() - began)

    def close(self) -> None:
        self._storage.close()


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=200, help="of a thread in a round")
    parser.add_argument("--batch", type=int, default=64, help="rows of a call")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--folder", help="where the storages are made; default: a temporary one")
    arguments = parser.parse_args()
    for threads in (1, 8):
        with tempfile.TemporaryDirectory(prefix="sok_embed_", dir=arguments.folder) as folder:
            contenders = {name: Contender(folder, name, threads) for name in DURABILITIES}
            rounds: dict[str, list[float]] = {name: [] for name in DURABILITIES}
            for _ in range(arguments.repeats):
                for name, contender in contenders.items():
                    rounds[name].append(contender.round(arguments.calls, arguments.batch))
            for name, contender in contenders.items():
                contender.close()
                rate = statistics.median(rounds[name])
                report(
                    {
                        "benchmark": "durability",
                        "threads": threads,
                        "durability": name,
                        "batch": arguments.batch,
                        "calls_per_second": round(rate, 1),
                    },
                    f"durability {name:10} {threads} threads: {rate:,.0f} calls/s",
                )


if __name__ == "__main__":
    main()
