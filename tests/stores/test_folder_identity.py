"""A storage knows its folder by what it is, not by its name."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from broken_disk import NAMESPACE
from core_programs import command, run

from sok_embed import kv

KEYS = np.arange(1000, dtype=np.uint64)
DIM = 16


def embedding_in(storage: kv.Storage) -> kv.Embedding:
    return kv.Embedding(storage, kv.Optimizer("sgd", gamma=1), kv.Initializer("zeros"), DIM)


def train(embedding: kv.Embedding) -> None:
    embedding.apply_gradients(KEYS, np.ones((KEYS.size, DIM), np.float32))


def vectors_in(folder) -> np.ndarray:
    with kv.Storage(folder, read_only=True) as storage:
        return embedding_in(storage).lookup(KEYS)


def opens_elsewhere(folder) -> str:
    """Returns what another process is told."""
    return run("print(opens(sys.argv[2]))", folder)


def test_a_folder_that_was_renamed_is_not_opened_twice(tmp_path):
    storage = kv.Storage(tmp_path / "rows")
    train(embedding_in(storage))
    os.rename(tmp_path / "rows", tmp_path / "renamed")
    for read_only in (False, True):
        with pytest.raises(kv.StorageLockedError):
            kv.Storage(tmp_path / "renamed", read_only=read_only)
    # The attempt has not taken the lock away either.
    assert opens_elsewhere(tmp_path / "renamed") == "locked"
    os.rename(tmp_path / "renamed", tmp_path / "rows")
    train(embedding_in(storage))
    storage.close()
    assert (vectors_in(tmp_path / "rows") == -2).all()


def test_a_folder_is_not_opened_twice_by_another_name_of_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    with kv.Storage(tmp_path / "rows"):
        with pytest.raises(kv.StorageLockedError):
            kv.Storage(tmp_path / "link")
        assert opens_elsewhere(tmp_path / "link") == "locked"


def test_a_folder_is_not_opened_twice_by_a_bind_mount(tmp_path):
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a mount namespace")
    (tmp_path / "rows").mkdir()
    (tmp_path / "bound").mkdir()
    said = run(
        """
        import json, subprocess
        rows, bound = sys.argv[2:4]
        subprocess.run(["mount", "--bind", rows, bound], check=True)
        storage = core.Storage(rows, None, 1 << 20, False, False)
        print(opens(bound), opens(bound, True))
        again = json.loads(sys.argv[4])
        print(subprocess.run(again, capture_output=True, text=True).stdout.strip())
        storage.flush()
        storage.close()
        print(opens(bound))
        """,
        tmp_path / "rows",
        tmp_path / "bound",
        json.dumps(command("print(opens(sys.argv[2]))", tmp_path / "bound")),
        within=tuple(NAMESPACE),
    )
    assert said.split() == ["locked", "locked", "locked", "open"]


@pytest.mark.parametrize("durability", ["checkpoint", "update"])
@pytest.mark.parametrize("then", ["removed", "replaced by a folder", "replaced by a storage"])
def test_work_in_a_folder_that_is_gone_raises_and_goes_on_when_it_is_back(
    tmp_path, durability, then
):
    rows, away = tmp_path / "rows", tmp_path / "away"
    storage = kv.Storage(rows, durability=durability)
    embedding = embedding_in(storage)
    train(embedding)
    storage.flush()
    os.rename(rows, away)
    if then == "replaced by a folder":
        rows.mkdir()
    elif then == "replaced by a storage":
        shutil.copytree(away, rows)
    if durability == "update":
        with pytest.raises(OSError):
            train(embedding)
    for call in (storage.flush, lambda: storage.checkpoint(tmp_path / "copy"), storage.close):
        with pytest.raises(OSError, match="rows"):
            call()
    assert not storage.closed
    if rows.exists():
        shutil.rmtree(rows)
    os.rename(away, rows)
    before = embedding.lookup(KEYS, train=False)
    train(embedding)
    storage.close()
    assert np.isin(before, [-1, -2]).all()
    assert (vectors_in(rows) == before - 1).all()


@pytest.mark.parametrize("durability", ["checkpoint", "update"])
def test_a_folder_that_was_deleted_raises_and_ends_no_process(tmp_path, durability):
    done = run(
        """
        storage = core.Storage(sys.argv[2], None, 1 << 20, sys.argv[3] == "update", False)
        spec = {"dim": 16, "initializer": "constant", "initializer_a": 0.0}
        table = storage.open_table(json.dumps(spec))
        optimizer = core.Optimizer("kv_sgd", [])
        keys = np.arange(20_000, dtype=np.uint64)
        def train():
            table.update(keys, np.ones(16 * keys.size, np.float32), optimizer, False)
        train()
        shutil.rmtree(sys.argv[2])
        calls = [storage.flush, storage.compact, storage.close, lambda: storage.survey(0)]
        if sys.argv[3] == "update":
            calls.append(train)
        for call in calls:
            try:
                call()
            except OSError:
                print("raised")
        """,
        tmp_path / "rows",
        durability,
    )
    assert done.split().count("raised") >= (4 if durability == "update" else 3)
