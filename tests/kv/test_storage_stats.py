"""Figures of the database below the cache of a storage."""

import numpy as np
import pytest

from sok_embed import kv


def test_keys_without_a_row_are_answered_from_memory(tmp_path):
    start = kv.Initializer("zeros")
    keys = np.arange(150_000, dtype=np.uint64)
    for _ in range(2):  # a new folder, and one that is opened again
        with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) as storage:
            embedding = kv.Embedding(storage, kv.Optimizer("sgd"), start, dimension=32)
            embedding.lookup(keys)
            storage.flush()
            before = storage.stats()
            assert not embedding.contains(keys + np.uint64(1 << 40)).any()
            after = storage.stats()
            searched = after["searched_keys"] - before["searched_keys"]
            filtered = after["filtered_keys"] - before["filtered_keys"]
            assert searched + filtered == len(keys)
            assert searched < 0.04 * len(keys)
            assert embedding.contains(keys).all()
            assert after["sorted_runs"] >= 1
            assert after["file_bytes"] > 0
    assert before["found_keys"] > 0
    assert before["published_bytes"] <= before["written_bytes"]
    with pytest.raises(RuntimeError, match="closed"):
        storage.stats()
