"""A table on disk trains as one in memory does, and takes the memory that it was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from large_table import CACHE_BYTES, ROW_BYTES, ROWS, SEED, make_model
from limits import HANG_S

from sok_embed import kv

PROGRAM = Path(__file__).with_name("large_table.py")
MOVIELENS = Path(__file__).resolve().parents[3] / "shared/data/ml-100k/u.data"
# tables-on-disk.md grants this: RocksDB's 128 MiB, the index of the cache, and TensorFlow's tensors
# of one step.
GRANTED = CACHE_BYTES + 200 * 10**6


def train(*arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns what training printed, first with rows in memory, then with rows on disk."""
    return train(), train(tmp_path_factory.mktemp("large") / "rows")


@pytest.mark.long
def test_a_table_of_many_times_its_cache_trains_to_the_bit_as_one_in_memory(runs):
    memory, disk = runs
    print(f"seed {SEED}")
    assert ROWS * ROW_BYTES > 10 * CACHE_BYTES
    assert disk["rows"] == memory["rows"] == ROWS
    assert disk["losses"] == memory["losses"]
    assert disk["contents"] == memory["contents"]


@pytest.mark.long
def test_training_and_flushing_take_the_cache_and_what_is_granted_beside_it(runs):
    memory, disk = runs
    # The measure tells the two apart: a table in memory would not do.
    assert memory["growth"] > GRANTED
    assert disk["growth"] < GRANTED


@pytest.mark.skipif(not MOVIELENS.exists(), reason="needs MovieLens 100K beside the repository")
@pytest.mark.long
def test_movielens_trains_to_the_bit_as_in_memory(tmp_path):
    print(f"seed {SEED}")
    users, films, ratings, _ = np.loadtxt(MOVIELENS, np.int64, unpack=True)
    keys = np.stack([users, films + 10**6], axis=1)
    targets = ratings[:, None].astype(np.float32)
    dim, cache_bytes = 512, 1 << 20
    histories, tables = [], []
    with kv.Storage(tmp_path / "rows", cache_bytes=cache_bytes) as storage:
        for model in (make_model(None, dim, 2), make_model(storage, dim, 2)):
            history = model.fit(keys, targets, batch_size=1000, shuffle=False, verbose=0)
            histories.append(history.history["loss"])
            contents = model.get_layer("rows").table.export(slots=True)
            order = np.argsort(contents.keys)
            tables.append([contents.keys[order], contents.embeddings[order], contents.slots[order]])
    assert sum(array.nbytes for array in tables[0]) > 10 * cache_bytes
    assert histories[0] == histories[1]
    for memory, disk in zip(*tables, strict=True):
        np.testing.assert_array_equal(disk, memory)
