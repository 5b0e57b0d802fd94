"""How many rows of a table on disk must be read from disk, beside other rules for its cache?

    pip install cachetools==8.0.2 theine==2.0.0    # for the other rules
    python benchmarks/cache_policy.py

Draws keys by Zipf's law with the exponent 1.05 over --keys rows, and replaces a part of them by
keys that never come again. Each batch is looked up and updated in a storage whose cache has room
for a fiftieth of the rows. The same distinct keys of each batch go through caches in Python with as
many places, of which the least recently used row leaves (cachetools), or the one that W-TinyLFU
chooses (theine). Prints which part of the distinct keys by Zipf's law was not in the cache, in the
second half of the draws. Target: at most 0.95 of what the first of these caches misses.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from _common import report
from disk_scale import keys_of, zipf_places

from sok_embed import kv

DIM = 16
ROW_BYTES = 2 * 4 * DIM + 18  # values, Adagrad's accumulator, and the cache's own bytes
TARGET = 0.95
FIRST_NEW = 1 << 40
Places = npt.NDArray[np.uint64]


def batches(arguments: argparse.Namespace, new: float) -> Iterator[tuple[bool, Places]]:
    """Draws the distinct places of each batch, and says whether its misses count.

    Args:
        arguments: The options of the command line.
        new: The part of the places that no batch has had before, from FIRST_NEW.
    """
    rng = np.random.default_rng(arguments.seed)
    next_new = FIRST_NEW
    steps = arguments.draws // arguments.batch
    for step in range(steps):
        places = zipf_places(arguments.keys, arguments.batch, rng)
        is_new = rng.random(arguments.batch) < new
        places[is_new] = np.arange(next_new, next_new + is_new.sum(), dtype=np.uint64)
        next_new += int(is_new.sum())
        yield step >= steps // 2, np.unique(places)


def of_storage(arguments: argparse.Namespace, new: float) -> tuple[float, int]:
    """Returns the part of the keys that a storage's cache missed, and the rows in that cache."""
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        kv.Storage(f"{folder}/rows", cache_bytes=arguments.cache_mib << 20, ttl=0) as storage,
    ):
        adagrad = kv.Optimizer("adagrad", gamma=0.01)
        embedding = kv.Embedding(storage, adagrad, kv.Initializer("zeros"), DIM)
        gradients = np.full([arguments.batch, DIM], 0.01, np.float32)
        vectors = np.empty_like(gradients)
        for first in range(0, arguments.keys, arguments.batch):
            end = min(first + arguments.batch, arguments.keys)
            keys = keys_of(np.arange(first, end, dtype=np.uint64))
            embedding.lookup(keys, vectors[: len(keys)])
            embedding.apply_gradients(keys, gradients[: len(keys)])
        storage.flush()
        asked = found = 0
        for counts, places in batches(arguments, new):
            keys = keys_of(places)
            before = embedding.stats()["cache_hits"]
            embedding.lookup(keys, vectors[: len(keys)])
            if counts:
                asked += int((places < FIRST_NEW).sum())
                found += embedding.stats()["cache_hits"] - before
            embedding.apply_gradients(keys, gradients[: len(keys)])
        return 1 - found / asked, storage.stats()["cached_row_bytes"] // ROW_BYTES


def of_rival(arguments: argparse.Namespace, new: float, use: Callable[[int], bool]) -> float:
    """Returns the part that another cache missed; `use` returns whether it had a key."""
    asked = missed = 0
    for counts, places in batches(arguments, new):
        for place in places.tolist():
            had = use(place)
            if counts and place < FIRST_NEW:
                asked += 1
                missed += not had
    return missed / asked


def lru(rows: int) -> Callable[[int], bool]:
    """Returns the use of a cache whose least recently used row leaves."""
    from cachetools import LRUCache

    cache: LRUCache[int, bool] = LRUCache(rows)

    def use(place: int) -> bool:
        had = cache.get(place, False)
        cache[place] = True
        return had

    return use


def w_tiny_lfu(rows: int) -> Callable[[int], bool]:
    """Returns the use of a cache by W-TinyLFU."""
    from theine import Cache

    cache: Cache[int, bool] = Cache(rows)

    def use(place: int) -> bool:
        had: bool = cache.get(place)[1]
        if not had:
            cache.set(place, True)
        return had

    return use


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=2_000_000, help="rows in the table")
    parser.add_argument("--draws", type=int, default=8_000_000)
    parser.add_argument("--batch", type=int, default=8_192)
    parser.add_argument(
        "--new", type=float, nargs="+", default=[0.0, 0.5], help="parts of the keys"
    )
    parser.add_argument("--cache-mib", type=int, default=24, help="cache_bytes, in MiB")
    parser.add_argument("--folder", help="where the rows go; default: the temporary folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="exit with status 1 above the target")
    arguments = parser.parse_args()
    rivals = {"cachetools": lru, "theine": w_tiny_lfu}
    worst = 0.0
    for new in arguments.new:
        missed, rows = of_storage(arguments, new)
        parts = {"sok_embed": missed}
        for package, rival in rivals.items():
            if importlib.util.find_spec(package) is not None:
                parts[package] = of_rival(arguments, new, rival(rows))
        if "cachetools" in parts:
            worst = max(worst, missed / parts["cachetools"])
        report(
            {
                "benchmark": "cache_policy",
                **(vars(arguments) | {"new": new}),
                "rows": rows,
                "missed": {name: round(part, 4) for name, part in parts.items()},
                "target": TARGET,
            },
            f"cache_policy {new:.0%} new keys, {rows} rows of {arguments.keys} cached: missed "
            + ", ".join(f"{part:.3f} ({name})" for name, part in parts.items()),
        )
    sys.exit(arguments.check and worst > TARGET)


if __name__ == "__main__":
    main()
