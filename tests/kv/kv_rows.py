"""Small makers for the tests of sok_embed.kv."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import numpy as np
from limits import HANG_S

from sok_embed import kv

# Processes that tests start have this environment.
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def keys(*numbers: int) -> np.ndarray:
    return np.array([number % 2**64 for number in numbers], np.uint64)


def sgd(storage, dimension=2, **more):
    """Makes an embedding of zeros from which each update takes its gradient away."""
    return kv.Embedding(
        storage, kv.Optimizer("sgd", gamma=1), kv.Initializer("zeros"), dimension, **more
    )


def adam(storage, dimension=2, **more):
    return kv.Embedding(storage, kv.Optimizer("adam"), kv.Initializer("normal"), dimension, **more)


def ones(n: int, dimension: int = 2) -> np.ndarray:
    return np.ones((n, dimension), np.float32)


def peek(embedding, *numbers: int) -> np.ndarray:
    """Returns the vectors of keys, without a row being made."""
    return embedding.lookup(keys(*numbers), train=False)


def row(storage, key: int, group: int = 0):
    """Returns what the core has of a key: update_num, update_time, floats; or None."""
    return storage.ready().get(group, key % 2**64)


def damo_file(path, groups: dict[int, dict[int, list[float]]]):
    """Writes what Damo-Embedding's dump() writes: of each group a vector for each key."""
    dims = [len(next(iter(rows.values()))) for rows in groups.values()]
    n = len(groups)
    header = struct.pack(f"<i{n}i{n}i{n}q", n, *groups, *dims, *map(len, groups.values()))
    records = b"".join(
        struct.pack(f"<qi{len(vector)}f", key, group, *vector)
        for group, rows in groups.items()
        for key, vector in rows.items()
    )
    path.write_bytes(header + records)
    return path


def run_python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
