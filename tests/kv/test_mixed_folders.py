"""Files of two states of one storage in one folder are an error, and nothing there changes."""

import os
import shutil

import numpy as np
import pytest
from kv_rows import adam, ones

from sok_embed import kv

KEYS = np.arange(3000, dtype=np.uint64)


def train(path, keys, **options):
    """Updates rows in a storage, which is closed then. Returns the rows of KEYS."""
    with kv.Storage(path, **options) as storage:
        embedding = adam(storage, 4)
        embedding.apply_gradients(keys, ones(len(keys), 4))
        storage.flush()
        return embedding.lookup(KEYS, train=False)


def rows_of(path, **options):
    with kv.Storage(path, **options) as storage:
        return storage.table(0).lookup(KEYS)


def contents_of(path):
    """Returns the bytes of the files in a folder, except what RocksDB logs for people."""
    return {
        file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith("LOG")
    }


def assert_refused(path, match="of two states of its storage"):
    before = contents_of(path)
    for read_only in (True, False):
        with pytest.raises(kv.CorruptionError, match=match):
            kv.Storage(path, read_only=read_only).ready()
    assert contents_of(path) == before


@pytest.fixture
def states(tmp_path):
    """A folder, and what it was earlier."""
    early = train(tmp_path / "rows", KEYS[:1000])
    shutil.copytree(tmp_path / "rows", tmp_path / "early")
    late = train(tmp_path / "rows", KEYS)
    assert not np.array_equal(early, late)
    return tmp_path, early, late


@pytest.mark.parametrize("compacted", [False, True])
def test_an_earlier_copy_over_a_folder_is_refused(states, compacted):
    path, _, _ = states
    if compacted:
        with kv.Storage(path / "rows") as storage:
            storage.compact()
    shutil.copytree(path / "early", path / "rows", dirs_exist_ok=True)
    assert_refused(path / "rows")


@pytest.mark.parametrize("note", ["later", "earlier", "none"])
def test_an_earlier_manifest_in_a_folder_is_refused(states, note):
    path, _, _ = states
    with kv.Storage(path / "rows") as storage:
        storage.compact()  # else the rows since are in logs, which RocksDB reads with any manifest
    for file in (path / "early").iterdir():
        if file.name.startswith(("MANIFEST-", "CURRENT")) or file.suffix in (".log", ".sst"):
            shutil.copy(file, path / "rows")
    if note == "later":  # as it is: the note says which manifest has been in use
        assert_refused(path / "rows", "a later manifest has been in use")
        return
    (path / "rows" / "sok-written").unlink()
    if note == "earlier":
        shutil.copy(path / "early" / "sok-written", path / "rows")
    assert_refused(path / "rows")


def test_a_trained_replica_over_a_folder_with_a_journal_is_refused(tmp_path):
    path = tmp_path / "rows"
    storage = kv.Storage(path, durability="update")
    embedding = adam(storage, 4)
    embedding.apply_gradients(KEYS, ones(len(KEYS), 4))
    storage.checkpoint(tmp_path / "replica")
    embedding.apply_gradients(KEYS, ones(len(KEYS), 4))
    shutil.copytree(path, tmp_path / "killed")  # all calls have returned, and none runs
    storage.close()
    train(tmp_path / "replica", KEYS[:1000])
    shutil.copytree(tmp_path / "replica", tmp_path / "killed", dirs_exist_ok=True)
    assert_refused(tmp_path / "killed", "two histories of one storage")


def test_whole_copies_open_and_train_on(states):
    path, early, late = states
    for name, rows in (("early", early), ("rows", late)):
        shutil.copytree(path / name, path / f"copy-of-{name}")
        assert np.array_equal(rows_of(path / f"copy-of-{name}", read_only=True), rows)
        assert np.array_equal(rows_of(path / f"copy-of-{name}"), rows)
        again = train(path / f"copy-of-{name}", KEYS)
        assert np.array_equal(rows_of(path / f"copy-of-{name}"), again)


def test_a_copy_by_hard_links_and_its_original_train_apart(states):
    path, _, late = states
    shutil.copytree(path / "rows", path / "linked", copy_function=os.link)
    for _ in range(3):
        trained = train(path / "linked", KEYS)
    assert not np.array_equal(trained, late)
    np.testing.assert_array_equal(rows_of(path / "rows"), late)
    train(path / "rows", KEYS)
    np.testing.assert_array_equal(rows_of(path / "linked"), trained)


@pytest.mark.parametrize("damage", ["history", "missing", "damaged"])
def test_a_journal_is_refused_before_anything_is_written(states, damage):
    path, _, _ = states
    with kv.Storage(path / "early", durability="update") as storage:
        embedding = adam(storage, 4)
        for first in range(10):
            embedding.apply_gradients(KEYS[first:], ones(len(KEYS) - first, 4))
        (journal,) = (path / "early").glob("sok-journal-*")
        if damage == "history":  # of a replica, in a folder that was closed
            shutil.copy(journal, path / "rows")
        else:
            shutil.copytree(path / "early", path / "killed")  # no call runs
    if damage == "missing":
        (path / "killed" / journal.name).unlink()
    if damage == "damaged":
        with open(path / "killed" / journal.name, "r+b") as file:
            file.seek(300)
            file.write(b"damaged")
    if damage == "history":
        assert_refused(path / "rows", "two histories of one storage")
    else:
        assert_refused(path / "killed", f"{journal.name}' is {damage}")
