"""Threads share an embedding, and no update is lost."""

import threading

import numpy as np
import pytest
from kv_rows import keys, sgd

from sok_embed import kv

THREADS = 8
STEPS = 60
KEYS = 500


@pytest.mark.parametrize("durability", ["checkpoint", "update", "sync"])
def test_no_update_is_lost(tmp_path, durability):
    # The cache holds two rows in three, so that rows move between it and the disk.
    dimension = 64
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20, durability=durability) as storage:
        embedding = sgd(storage, dimension)
        others = sgd(storage, dimension, group=1)
        others.lookup(np.arange(5000, dtype=np.uint64))
        counts = np.zeros((THREADS, KEYS), np.int64)
        errors = []

        def work(thread):
            random = np.random.default_rng(thread)
            try:
                for step in range(STEPS):
                    chosen = random.integers(0, KEYS, 40).astype(np.uint64)
                    found = embedding.lookup(chosen)
                    # Each row is an integer number of updates, in all of its elements.
                    assert (found == found[:, :1]).all()
                    assert (found == np.round(found)).all()
                    embedding.apply_gradients(chosen, np.ones((40, dimension), np.float32))
                    np.add.at(counts[thread], chosen.astype(np.int64), 1)
                    if step % 20 == thread:
                        storage.flush()
                    others.lookup(random.integers(0, 5000, 200).astype(np.uint64))
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        found = embedding.lookup(keys(*range(KEYS)), train=False)
        assert (found == -counts.sum(axis=0)[:, None]).all()
