"""A process that trains more rows than its storage's cache holds, and says what that took.

python large_table.py FOLDER: rows on disk in FOLDER; without it, in memory. Prints JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import keras
import numpy as np

import sok_embed
from sok_embed import kv

CACHE_BYTES = 16 << 20
DIM = 64
ROWS = 480_000
ROW_BYTES = 4 * DIM * 3  # Adam keeps two slots
BATCH, KEYS_A_SAMPLE = 2048, 8
SEED = 5


def make_model(storage: kv.Storage | None, dim: int, keys_a_sample: int) -> Any:
    """Makes a sum of a sample's vectors, and a dense layer with the same weights each time."""
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential(
        [
            keras.Input((keys_a_sample,), dtype="int64"),
            sok_embed.DynamicEmbedding(dim, seed=SEED, storage=storage, name="rows"),
            keras.layers.Lambda(lambda vectors: keras.ops.sum(vectors, axis=1)),
            keras.layers.Dense(1, name="dense"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Every key once, then as many draws of which few keys are many."""
    random = np.random.default_rng(SEED)
    keys = random.permutation(ROWS) * (2**41 + 3) - 2**59
    again = keys[np.minimum(random.zipf(1.2, keys.size), ROWS) - 1]
    every = np.concatenate([keys, again])
    samples = every[: every.size // KEYS_A_SAMPLE * KEYS_A_SAMPLE].reshape(-1, KEYS_A_SAMPLE)
    targets = random.normal(size=(len(samples), 1)).astype(np.float32)
    return [
        (samples[first : first + BATCH], targets[first : first + BATCH])
        for first in range(0, len(samples), BATCH)
    ]


def digests(table: sok_embed.Table) -> dict[str, str]:
    """Returns checksums of keys, vectors, slots and update counts, ascending by key."""
    contents = table.export(slots=True)
    order = np.argsort(contents.keys)
    return {
        name: hashlib.sha256(np.ascontiguousarray(getattr(contents, name)[order])).hexdigest()
        for name in ("keys", "embeddings", "slots", "update_nums")
    }


def status(field: str) -> int:
    """Returns a figure of /proc/self/status, in bytes."""
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise LookupError(field)


def main(folder: str | None) -> None:
    storage = kv.Storage(folder, cache_bytes=CACHE_BYTES) if folder else None
    model = make_model(storage, DIM, KEYS_A_SAMPLE)
    warm_up, *rest = batches()
    losses = [model.train_on_batch(*warm_up)]
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    for step, batch in enumerate(rest):
        losses.append(model.train_on_batch(*batch))
        if storage is not None and step in (len(rest) // 3, len(rest) - 1):
            storage.flush()
    growth = status("VmHWM") - before
    table = model.get_layer("rows").table
    rows = table.size()
    result = {"losses": list(map(float, losses)), "growth": growth, "rows": rows}
    print(json.dumps({**result, "contents": digests(table)}))


if __name__ == "__main__":
    main(*(sys.argv[1:] or [None]))
