"""Flushes beside training, which write the rows of one moment."""

import shutil
import threading
import time

import numpy as np
import pytest

from sok_embed import kv

KEYS = np.arange(200_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
DIM = 32  # 25 MB of rows, more than goes into one batch


def opened(path):
    storage = kv.Storage(path, cache_bytes=4 << 20)
    embedding = kv.Embedding(
        storage, kv.Optimizer("sgd", gamma=1.0), kv.Initializer("zeros"), dimension=DIM
    )
    return storage, embedding


def train(embedding, steps):
    """Takes 1 off all elements of all rows, so many times."""
    for _ in range(steps):
        for keys in np.array_split(KEYS, 10):
            embedding.lookup(keys)
            embedding.apply_gradients(keys, np.ones([keys.size, DIM], np.float32))


def wait_for(storage):
    deadline = time.monotonic() + 120
    while storage.flushing:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def files_in(path):
    return {each.name: (each.stat().st_size, each.stat().st_mtime_ns) for each in path.iterdir()}


def copy(path, to):
    """Copies a folder as a kill would leave it; again if files are merged, and go, meanwhile."""
    for _ in range(20):
        try:
            before = files_in(path)
            shutil.copytree(path, to)
            if files_in(path) == before:
                return
        except (FileNotFoundError, shutil.Error):
            pass
        shutil.rmtree(to, ignore_errors=True)
        time.sleep(0.1)
    pytest.fail(f"the files of {path} do not come to rest")


def check_moment(path, first, last):
    """Checks that a folder has the rows of one moment of so many steps of training."""
    storage, embedding = opened(path)
    assert len(embedding) == KEYS.size
    # A step on a tenth of the keys is there as a whole or not at all.
    pieces = [np.unique(embedding.lookup(keys)) for keys in np.array_split(KEYS, 10)]
    storage.close()
    assert all(piece.size == 1 for piece in pieces)
    steps = -np.concatenate(pieces)
    assert steps.max() - steps.min() <= 1
    assert (np.diff(steps) <= 0).all()
    assert first <= steps.min()
    assert steps.max() <= last


def test_it_has_the_rows_of_one_moment_and_training_goes_on(tmp_path):
    storage, embedding = opened(tmp_path / "rows")
    train(embedding, 2)
    storage.flush(wait=False)
    train(embedding, 1)
    wait_for(storage)
    copy(tmp_path / "rows", tmp_path / "killed")
    assert (embedding.lookup(KEYS) == -3).all()
    storage.close()
    check_moment(tmp_path / "killed", 2, 3)
    check_moment(tmp_path / "rows", 3, 3)


def test_one_that_is_asked_for_beside_another_follows_it(tmp_path):
    storage, embedding = opened(tmp_path / "rows")
    seen = False  # a flush may have ended before this process goes on
    for _ in range(4):
        train(embedding, 1)
        for _ in range(3):
            storage.flush(wait=False)
            seen = seen or storage.flushing
    wait_for(storage)
    copy(tmp_path / "rows", tmp_path / "killed")
    storage.close()
    assert seen
    check_moment(tmp_path / "killed", 4, 4)


def test_a_checkpoint_in_a_thread_is_of_one_moment(tmp_path):
    storage, embedding = opened(tmp_path / "rows")
    train(embedding, 1)
    thread = threading.Thread(target=storage.checkpoint, args=[tmp_path / "copy"])
    thread.start()
    train(embedding, 3)
    thread.join()
    assert (embedding.lookup(KEYS) == -4).all()
    storage.close()
    check_moment(tmp_path / "copy", 1, 4)


def test_the_next_flush_and_closing_wait_for_it(tmp_path):
    storage, embedding = opened(tmp_path / "rows")
    for _ in range(3):
        train(embedding, 1)
        storage.flush(wait=False)
    storage.flush()
    assert not storage.flushing
    train(embedding, 1)
    storage.flush(wait=False)
    storage.close()
    storage, embedding = opened(tmp_path / "rows")
    assert (embedding.lookup(KEYS) == -4).all()
    storage.close()


def test_wait_is_a_flag(tmp_path):
    storage, _ = opened(tmp_path / "rows")
    with pytest.raises(ValueError, match="Expected wait to be True or False"):
        storage.flush(wait="no")
    storage.close()
