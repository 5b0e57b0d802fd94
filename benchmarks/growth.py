"""How long does the longest step take while a table grows, and does it tell its memory?

    python benchmarks/growth.py --keys 20000000

Every step inserts a batch of new keys. Prints the median step, the 99th percentile, the longest
one and its ratio to the median, of wall time and of processor time, which neighbours on the machine
move less. Then removes nine keys of ten, the oldest first. All along, the bytes of `stats()` are
compared with the growth of the resident memory of the process. Targets: the longest step at most 5
times the median, bytes within 5 %.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Keys, options, report
from memory import resident_bytes

import sok_embed as sok
from sok_embed.initializers import row_initializer

TARGET_RATIO = 5.0
TARGET_BYTES = 0.05
LEAST_KEYS = 500_000  # with fewer, a few megabytes of anything else in the process decide


def keys_at(first: int, count: int) -> Keys:
    """Returns different keys for different places, `[count]`, without a list of all before."""
    places = np.arange(first, first + count, dtype=np.uint64)
    return (places * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def figures(seconds: list[float]) -> dict[str, float]:
    """Returns milliseconds of the median, 99th percentile and longest step; longest / median."""
    median, late, longest = np.percentile(np.asarray(seconds) * 1e3, [50, 99, 100])
    return {
        "median_ms": round(median, 3),
        "p99_ms": round(late, 3),
        "longest_ms": round(longest, 3),
        "ratio": round(longest / median, 2),
    }


def run(dim: int, arguments: Any) -> bool:
    """Measures one case; returns whether it meets the targets."""
    batch = arguments.batch
    steps = arguments.keys // batch
    rows = np.ones([batch, dim], np.float32)

    def new_table() -> sok.Table:
        return sok.Table(dim, row_initializer("zeros", dim))

    warm = new_table()  # the memory that a step takes of TensorFlow's is not the table's
    for _ in range(3):
        warm.assign(keys_at(0, batch), rows)
        warm.remove(keys_at(0, batch))
    table = new_table()
    gc.collect()
    start = resident_bytes()
    furthest = 0.0

    def all_steps(step: Callable[[Keys], object], count: int) -> dict[str, dict[str, float]]:
        nonlocal furthest
        wall, processor = [], []
        for i in range(count):
            keys = keys_at(i * batch, batch)
            began, used = time.perf_counter(), time.process_time()
            step(keys)
            wall.append(time.perf_counter() - began)
            processor.append(time.process_time() - used)
            if table.stats()["rows"] >= LEAST_KEYS:
                off = table.stats()["bytes"] / (resident_bytes() - start) - 1
                furthest = max(furthest, off, key=abs)
        return {"wall": figures(wall), "processor": figures(processor)}

    growing = all_steps(lambda keys: table.assign(keys, rows), steps)
    grown = table.stats()
    removing = all_steps(table.remove, steps * 9 // 10)
    left = table.stats()
    assert grown["rows"] == steps * batch, grown
    assert left["rows"] == (steps - steps * 9 // 10) * batch, left
    report(
        {
            "benchmark": "growth",
            "dim": dim,
            "keys": grown["rows"],
            "batch": batch,
            "growing": growing,
            "removing": removing,
            "bytes_grown": grown["bytes"],
            "bytes_left": left["bytes"],
            "furthest_from_resident": round(furthest, 4),
            "targets": {"ratio": TARGET_RATIO, "bytes": TARGET_BYTES},
        },
        f"growth dim {dim:3}: "
        + "; ".join(
            f"{name} {of['median_ms']:.1f} ms, longest {of['longest_ms']:.1f} = {of['ratio']:.1f} x"
            for name, of in growing.items()
        )
        + f"; target {TARGET_RATIO:.0f} x; bytes off by {furthest:+.1%}; "
        f"{grown['bytes'] / 1e6:.0f} MB grown, {left['bytes'] / 1e6:.0f} MB left",
    )
    return growing["processor"]["ratio"] <= TARGET_RATIO and abs(furthest) <= TARGET_BYTES


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = options(__doc__.splitlines()[0])
    parser.set_defaults(dim=[16], keys=20_000_000)
    arguments = parser.parse_args()
    met = [run(dim, arguments) for dim in arguments.dim]
    sys.exit(arguments.check and not all(met))


if __name__ == "__main__":
    main()
