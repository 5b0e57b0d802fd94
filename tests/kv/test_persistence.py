"""What was flushed is there again, in this process and in others, however the storage ends."""

import gc
import os
import pathlib

import numpy as np
import pytest
from kv_rows import adam, keys, ones, peek, row, run_python, sgd

from sok_embed import kv


@pytest.mark.parametrize("durability", ["checkpoint", "update", "sync"])
def test_rows_slots_and_counts_are_there_again(tmp_path, durability):
    with kv.Storage(tmp_path / "rows", durability=durability) as storage:
        embedding = adam(storage, group=3)
        for _ in range(3):
            embedding.apply_gradients(keys(1, -1), ones(2))
        embedding.lookup(keys(5))
        vectors = peek(embedding, 1, -1, 5)
        kept = [row(storage, key, 3) for key in (1, -1, 5)]
    with kv.Storage(tmp_path / "rows", durability=durability) as storage:
        embedding = adam(storage, group=3)
        assert len(embedding) == 3
        assert (peek(embedding, 1, -1, 5) == vectors).all()
        for key, was in zip((1, -1, 5), kept, strict=True):
            found = row(storage, key, 3)
            assert found["update_num"] == was["update_num"]
            assert found["update_time"] == was["update_time"]
            assert (found["floats"] == was["floats"]).all()


def spilled_bytes(folder):
    """Returns what the disk keeps for files without a name that this process has in the folder."""
    blocks = 0
    for name in pathlib.Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(name).startswith(f"{folder}/") and not os.stat(name).st_nlink:
                blocks += os.stat(name).st_blocks
        except FileNotFoundError:  # the descriptor of this listing
            pass
    return blocks * 512


def test_a_closed_storage_keeps_no_space_for_rows_that_left_the_cache(tmp_path):
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) as storage:
        start = kv.Initializer("zeros")
        embedding = kv.Embedding(storage, kv.Optimizer("sgd"), start, dimension=16)
        embedding.lookup(np.arange(100_000, dtype=np.uint64))
        assert spilled_bytes(tmp_path / "rows") > 1 << 20
    assert spilled_bytes(tmp_path / "rows") == 0
    with pytest.raises(RuntimeError, match="closed"):  # the table refers to the storage still
        embedding.lookup(keys(1))


def test_training_goes_on_as_if_it_had_never_stopped(tmp_path):
    random = np.random.default_rng(4)
    gradients = random.normal(size=(10, 3, 2)).astype(np.float32)
    with kv.Storage(tmp_path / "a") as storage:
        embedding = adam(storage)
        for gradient in gradients:
            embedding.apply_gradients(keys(1, 2, 3), gradient)
        expected = peek(embedding, 1, 2, 3)
    for gradient in gradients:
        with kv.Storage(tmp_path / "b") as storage:
            embedding = adam(storage)
            embedding.apply_gradients(keys(1, 2, 3), gradient)
            found = peek(embedding, 1, 2, 3)
    assert (found == expected).all()


def test_more_rows_than_the_cache_holds(tmp_path):
    numbers = np.arange(40_000, dtype=np.uint64)
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) as storage:
        embedding = sgd(storage, dimension=16)
        for part in np.split(numbers, 10):
            embedding.apply_gradients(part, np.tile(part[:, None].astype(np.float32), 16))
        assert len(embedding) == numbers.size
        found = embedding.lookup(numbers)
        assert (found == -numbers[:, None].astype(np.float32)).all()


def test_a_storage_that_is_dropped_is_closed(tmp_path):
    sgd(kv.Storage(tmp_path / "rows")).apply_gradients(keys(1), ones(1))
    gc.collect()
    with kv.Storage(tmp_path / "rows") as storage:
        assert peek(sgd(storage), 1).tolist() == [[-1, -1]]


def test_a_storage_is_closed_when_the_interpreter_ends(tmp_path):
    program = """
import sys
import numpy as np
from sok_embed import kv
storage = kv.Storage(sys.argv[1])
embedding = kv.Embedding(storage, kv.Optimizer("sgd", gamma=1), kv.Initializer("zeros"), 2)
embedding.apply_gradients(np.array([1], np.uint64), np.ones(2, np.float32))
"""
    result = run_python(program, tmp_path / "rows")
    assert result.returncode == 0, result.stderr
    with kv.Storage(tmp_path / "rows") as storage:
        assert peek(sgd(storage), 1).tolist() == [[-1, -1]]


def test_an_embedding_keeps_its_storage_open(tmp_path):
    embedding = sgd(kv.Storage(tmp_path / "rows"))
    gc.collect()
    embedding.apply_gradients(keys(1), ones(1))
    assert not embedding.storage.closed
    embedding.storage.close()


def test_a_checkpoint_is_a_storage_of_its_own(tmp_path, storage):
    embedding = adam(storage)
    embedding.apply_gradients(keys(1, 2), ones(2))
    expected = peek(embedding, 1, 2)
    storage.checkpoint(tmp_path / "copy")
    embedding.apply_gradients(keys(1, 3), ones(2))
    with kv.Storage(tmp_path / "copy") as copy:
        other = adam(copy)
        assert len(other) == 2
        assert (peek(other, 1, 2) == expected).all()
        other.apply_gradients(keys(1), ones(1))
        assert (peek(other, 1) == peek(embedding, 1)).all()
    with pytest.raises(ValueError, match="copy"):
        storage.checkpoint(tmp_path / "copy")


def test_removed_rows_stay_away(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = sgd(storage)
        embedding.assign(keys(1, 2, 2), np.array([1, 1, 2, 2, 3, 3], np.float32))
        assert peek(embedding, 1, 2).tolist() == [[1, 1], [3, 3]]
        storage.flush()
        assert embedding.remove(keys(1, 9)) == 1
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = sgd(storage)
        assert len(embedding) == 1
        assert peek(embedding, 1, 2).tolist() == [[0, 0], [3, 3]]


def test_a_config_leads_to_the_storage_that_is_open(tmp_path):
    storage = kv.Storage(tmp_path / "rows", ttl=50, cache_bytes=2 << 20, durability="update")
    config = storage.get_config()
    assert config == {
        "path": str(tmp_path / "rows"),
        "cache_bytes": 2 << 20,
        "durability": "update",
        "read_only": False,
        "id": storage.id,
    }
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    for path in (tmp_path / "rows", tmp_path / "x" / ".." / "rows", tmp_path / "link"):
        assert kv.Storage.from_config({**config, "path": str(path)}) is storage
    storage.close()
    with kv.allow_storages(tmp_path):
        other = kv.Storage.from_config({**config, "ttl": 99})
    assert other is not storage
    assert other.get_config() == config
    assert other.ttl == 50
    other.close()


def test_a_path_is_text_or_a_path(tmp_path):
    for path in (tmp_path / "a", str(tmp_path / "b"), pathlib.PurePath(tmp_path / "c")):
        with kv.Storage(path) as storage:
            assert storage.path == str(path)
            assert repr(storage) == f"<Storage '{path}'>"
        assert repr(storage) == f"<Storage '{path}', closed>"


def test_a_forked_child_is_refused_and_harms_nothing(tmp_path):
    storage = kv.Storage(tmp_path / "rows")
    embedding = sgd(storage)
    embedding.apply_gradients(keys(1), ones(1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            embedding.lookup(keys(1))
        except RuntimeError as error:
            os.write(write, str(error).encode())
        del embedding, storage
        gc.collect()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "forked from it" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    embedding.apply_gradients(keys(1), ones(1))
    storage.close()
    with kv.Storage(tmp_path / "rows") as again:
        assert peek(sgd(again), 1).tolist() == [[-2, -2]]


def test_a_folder_keeps_its_ttl_until_another_is_given(tmp_path):
    kv.Storage(tmp_path / "rows", ttl=50).close()
    for given, expected in [({}, 50), ({"read_only": True}, 50), ({"ttl": 0}, 0), ({}, 0)]:
        with kv.Storage(tmp_path / "rows", **given) as storage:
            assert storage.ttl == expected


def test_a_closed_storage_has_no_length_to_tell(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = sgd(storage)
    with pytest.raises(RuntimeError, match="Received: a closed one"):
        len(embedding)


def test_a_limit_of_rows_is_the_same_wherever_a_group_is_open(storage):
    sgd(storage, max_rows=10)
    with pytest.raises(ValueError, match="limit of 10 rows, got 5"):
        sgd(storage, max_rows=5)


def test_a_storage_keeps_its_id_in_its_checkpoints(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        first = storage.id
        storage.checkpoint(tmp_path / "copy")
    assert len(first) == 16 and int(first, 16)
    for name in ("rows", "copy"):
        for read_only in (True, False):
            with kv.Storage(tmp_path / name, read_only=read_only) as storage:
                assert storage.id == first
    with kv.Storage(tmp_path / "other") as other:
        assert other.id != first


def test_a_config_does_not_lead_to_another_storage_in_the_same_folder(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage).assign(keys(1), ones(1))
        storage.checkpoint(tmp_path / "copy")
        config = storage.get_config()
    (tmp_path / "rows").rename(tmp_path / "moved")
    kv.Storage(tmp_path / "rows").close()
    with kv.allow_storages(tmp_path):
        with pytest.raises(ValueError, match=f"^Expected the storage {config['id']} in "):
            kv.Storage.from_config(config)
        with kv.Storage(tmp_path / "rows") as other:  # it was opened on purpose
            with pytest.warns(UserWarning, match=f"{config['id']}, and .* is another, {other.id}"):
                assert kv.Storage.from_config(config) is other
        for name in ("moved", "copy"):
            with kv.Storage.from_config({**config, "path": str(tmp_path / name)}) as same:
                assert peek(sgd(same), 1).tolist() == [[1, 1]]
        # Configs of older versions have only a path.
        with kv.Storage.from_config({"path": str(tmp_path / "rows")}):
            pass


def test_a_relative_path_leads_to_the_storage_that_is_open_after_a_change_of_directory(
    tmp_path, monkeypatch
):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        kv.Storage("rows").close()
    monkeypatch.chdir(tmp_path / "here")
    with kv.Storage("rows") as storage:
        config = storage.get_config()
        monkeypatch.chdir(tmp_path / "there")
        assert kv.Storage.from_config(config) is storage


@pytest.mark.parametrize("form", ["relative", "absolute"])
def test_a_config_does_not_lead_to_an_open_checkpoint_of_the_storage_that_lies_there(
    tmp_path, monkeypatch, form
):
    monkeypatch.chdir(tmp_path)
    with kv.Storage("rows" if form == "relative" else tmp_path / "rows") as storage:
        sgd(storage).assign(keys(1), ones(1))
        storage.checkpoint("backup")
        sgd(storage).assign(keys(1), 2 * ones(1))
        config = storage.get_config()
    with kv.Storage("backup") as backup, kv.allow_storages(tmp_path):
        assert backup.id == config["id"]
        with kv.Storage.from_config(config) as storage:
            assert storage is not backup
            assert peek(sgd(storage), 1).tolist() == [[2, 2]]
        # One that was put in its place on purpose is still warned of.
        (tmp_path / "rows").rename(tmp_path / "aside")
        with (
            kv.Storage("rows") as other,
            pytest.warns(UserWarning, match=f"{config['id']}, and .* is another, {other.id}"),
        ):
            assert kv.Storage.from_config(config) is other
        with pytest.raises(ValueError, match=f"^Expected the storage {config['id']} in "):
            kv.Storage.from_config(config)
        # Where no storage lies, the only open one of that id may be meant.
        (tmp_path / "rows").rename(tmp_path / "another")
        assert kv.Storage.from_config(config) is backup


def test_a_config_needs_leave_for_the_folder_whatever_checkpoint_is_open(tmp_path, monkeypatch):
    with kv.Storage(tmp_path / "rows") as storage:
        storage.checkpoint(tmp_path / "backup")
        config = storage.get_config()
    with (
        kv.Storage(tmp_path / "backup"),
        pytest.raises(PermissionError, match="^Expected permission"),
    ):
        kv.Storage.from_config(config)


def test_after_a_change_of_directory_the_storage_of_that_id_in_the_folder_comes_first(
    tmp_path, monkeypatch
):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with kv.Storage("rows") as storage:
        storage.checkpoint(tmp_path / "there" / "rows")
        config = storage.get_config()
        monkeypatch.chdir(tmp_path / "there")
        with kv.Storage.from_config(config) as copy:
            assert copy is not storage and copy.id == storage.id
        (tmp_path / "there" / "rows").rename(tmp_path / "there" / "aside")
        with kv.Storage("rows") as other:  # another one that is open
            assert other.id != storage.id
            assert kv.Storage.from_config(config) is storage


def test_after_a_change_of_directory_a_folder_that_cannot_be_read_does_not_matter(
    tmp_path, monkeypatch
):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    with kv.Storage("rows") as other:
        sgd(other).assign(keys(1), ones(1))
    for damaged in (tmp_path / "there" / "rows").glob("MANIFEST-*"):
        damaged.unlink()
    monkeypatch.chdir(tmp_path / "here")
    with kv.Storage("rows") as storage:
        config = storage.get_config()
        monkeypatch.chdir(tmp_path / "there")
        assert kv.Storage.from_config(config) is storage


def test_a_load_that_would_exceed_the_limit_of_an_open_group_changes_nothing(tmp_path):
    with kv.Storage(tmp_path / "other") as other:
        sgd(other).assign(keys(*range(6)), ones(6))
        other.dump(tmp_path / "dump")
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = sgd(storage, max_rows=5)
        embedding.assign(keys(0, 10), 2 * ones(2))
        with pytest.raises(kv.StorageError, match=r"limit of 5 rows, and would have 7.*max_rows"):
            storage.load(tmp_path / "dump")
        assert len(embedding) == 2
        assert (peek(embedding, 0, 10) == 2).all() and not embedding.contains(keys(1)).any()
    # Closed groups have no limit.
    with kv.Storage(tmp_path / "rows") as storage:
        assert storage.load(tmp_path / "dump") == 6
        assert storage.groups()[0].rows == 7


def test_rows_that_have_expired_leave_no_room_for_a_load_beyond_the_limit(tmp_path, clock):
    with kv.Storage(tmp_path / "other", clock=clock) as other:
        sgd(other).assign(keys(*range(100, 105)), ones(5))
        other.dump(tmp_path / "dump")
    with kv.Storage(tmp_path / "rows", ttl=1000, clock=clock) as storage:
        sgd(storage).assign(keys(*range(6)), ones(6))
        clock.now += 900
        sgd(storage).assign(keys(*range(6, 10)), ones(4))
    clock.now += 99
    with kv.Storage(tmp_path / "other", clock=clock) as other:
        sgd(other).apply_gradients(keys(*range(100, 105)), ones(5))
        other.dump(tmp_path / "dump")
    with kv.Storage(tmp_path / "rows", clock=clock) as storage:
        embedding = sgd(storage, max_rows=5)  # of 10, which a smaller limit leaves alone
        clock.now += 50  # and 6 of them expire
        with pytest.raises(kv.StorageError, match="limit of 5 rows, and would have 9"):
            storage.load(tmp_path / "dump")
        assert embedding.contains(keys(*range(10))).tolist() == [False] * 6 + [True] * 4


def test_a_load_into_a_group_with_an_eviction_leaves_it_to_newcomers(tmp_path):
    with kv.Storage(tmp_path / "other") as other:
        sgd(other).assign(keys(*range(6)), ones(6))
        other.dump(tmp_path / "dump")
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = sgd(storage, max_rows=5, eviction="lru")
        assert storage.load(tmp_path / "dump") == 6
        assert len(embedding) == 6
        embedding.lookup(keys(7))
        assert len(embedding) == 5 and embedding.stats()["evicted"] == 2
