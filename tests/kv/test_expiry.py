"""Rows expire a TTL after their last update, whether or not they have been removed yet."""

import struct

import numpy as np
import pytest
from kv_rows import adam, keys, ones, peek, row, sgd

from sok_embed import kv

TTL = 100


@pytest.fixture
def storage(tmp_path, clock):
    with kv.Storage(tmp_path / "rows", ttl=TTL, clock=clock) as opened:
        yield opened


@pytest.mark.parametrize("flushed", [False, True])
def test_a_row_is_served_up_to_its_ttl_and_not_after(storage, clock, flushed):
    embedding = sgd(storage)
    embedding.apply_gradients(keys(1), ones(1))
    if flushed:
        storage.flush()
    clock.now += TTL - 1
    assert peek(embedding, 1).tolist() == [[-1, -1]]
    clock.now += 1
    assert peek(embedding, 1).tolist() == [[0, 0]]
    assert row(storage, 1) is None


def test_a_row_is_not_served_after_the_folder_is_opened_anew(tmp_path, clock):
    with kv.Storage(tmp_path / "a", ttl=TTL, clock=clock) as first:
        sgd(first).apply_gradients(keys(1), ones(1))
    clock.now += TTL
    with kv.Storage(tmp_path / "a", ttl=None, clock=clock) as second:
        assert second.ttl == TTL
        assert peek(sgd(second), 1).tolist() == [[0, 0]]


def test_a_folder_is_opened_at_the_time_of_its_clock(tmp_path, clock):
    """Files may be merged, without expired rows, before the first call."""
    with kv.Storage(tmp_path / "a", ttl=TTL, clock=clock) as first:
        sgd(first).apply_gradients(keys(1), ones(1))
    with kv.Storage(tmp_path / "a", clock=clock) as second:
        second._native.compact()
        assert peek(sgd(second), 1).tolist() == [[-1, -1]]


def test_reading_does_not_keep_a_row(storage, clock):
    embedding = sgd(storage)
    embedding.apply_gradients(keys(1), ones(1))
    for _ in range(TTL):
        clock.now += 1
        embedding.lookup(keys(1))
    # It has come anew, by the last lookup.
    assert peek(embedding, 1).tolist() == [[0, 0]]
    assert row(storage, 1)["update_num"] == 0
    assert row(storage, 1)["update_time"] == clock.now


def test_an_update_keeps_a_row(storage, clock):
    embedding = sgd(storage)
    for _ in range(5):
        embedding.apply_gradients(keys(1), ones(1))
        clock.now += TTL - 1
    assert peek(embedding, 1).tolist() == [[-5, -5]]


def test_an_expired_row_comes_anew_without_its_slots_and_count(storage, clock):
    embedding = adam(storage)
    embedding.apply_gradients(keys(1), ones(1))
    once = row(storage, 1)["floats"]
    embedding.apply_gradients(keys(1), ones(1))
    clock.now += TTL
    embedding.apply_gradients(keys(1), ones(1))
    found = row(storage, 1)
    assert found["update_num"] == 1
    assert (found["floats"] == once).all()


def test_ages_and_expired_rows_are_counted(storage, clock):
    embedding = sgd(storage)
    embedding.apply_gradients(keys(1, 2), ones(2))
    clock.now += TTL // 2
    embedding.apply_gradients(keys(2, 3), ones(2))
    clock.now += TTL // 2
    survey = storage.ready().survey(0)
    assert (survey["rows"], survey["expired"]) == (2, 1)
    assert sum(survey["ages"]) == survey["ages"][0] == 2


def test_a_dump_leaves_expired_rows_out(storage, clock, tmp_path):
    embedding = sgd(storage)
    embedding.apply_gradients(keys(1), ones(1))
    clock.now += TTL
    embedding.apply_gradients(keys(2), ones(1))
    assert storage.dump(tmp_path / "dump") == 1


def test_compaction_removes_what_has_expired(tmp_path, clock):
    rocksdict = pytest.importorskip("rocksdict")
    with kv.Storage(tmp_path / "a", ttl=TTL, clock=clock) as storage:
        embedding = sgd(storage)
        embedding.apply_gradients(keys(*range(100)), ones(100))
        storage.flush()
        clock.now += TTL
        embedding.apply_gradients(keys(7, 1000), ones(2))
        storage.compact()
        survey = storage.ready().survey(0)
        assert (survey["rows"], survey["expired"]) == (2, 0)
    database = rocksdict.Rdict(
        str(tmp_path / "a"),
        rocksdict.Options(raw_mode=True),
        access_type=rocksdict.AccessType.read_only(),
    )
    left = [int.from_bytes(key[1:], "big") for key in database.keys()]
    database.close()
    assert left == [7, 1000]


def test_without_a_ttl_rows_stay(tmp_path, clock):
    with kv.Storage(tmp_path / "a", clock=clock) as storage:
        embedding = sgd(storage)
        embedding.apply_gradients(keys(1), ones(1))
        clock.now += 2_000_000_000
        assert peek(embedding, 1).tolist() == [[-1, -1]]


def test_rows_without_slots_that_expired_are_there_again_without_a_ttl(tmp_path):
    # Nothing had trained them when they expired, so they have no slots; the optimizer came later.
    now = 1000
    old, new = np.arange(1, 101, dtype=np.uint64), keys(1000)
    with open(tmp_path / "damo", "wb") as file:
        file.write(struct.pack("<iiiq", 1, 0, 2, old.size))
        for key in old.tolist():
            file.write(struct.pack("<qi2f", key, 0, key, key))
    with kv.Storage(tmp_path / "a", clock=lambda: now) as storage:
        assert storage.load_damo(tmp_path / "damo") == old.size
    now += 50
    with kv.Storage(tmp_path / "a", ttl=10, clock=lambda: now) as storage:
        assert storage.groups()[0].rows == 0
        adam(storage).apply_gradients(new, ones(1))
    with kv.Storage(tmp_path / "a", ttl=0, clock=lambda: now) as storage:
        embedding = adam(storage)
        assert storage.groups()[0].rows == old.size + 1
        np.testing.assert_array_equal(
            embedding.lookup(old, train=False), np.repeat(old[:, None], 2, 1)
        )
        embedding.apply_gradients(old, ones(old.size))
        assert embedding.metadata(old).update_nums.tolist() == [1] * old.size
