"""Asking what there is: which keys have a row, how often and when it was updated."""

import numpy as np
import pytest
from kv_rows import keys, ones, peek, row, sgd

from sok_embed import kv


@pytest.mark.cover(1)
@pytest.mark.parametrize("durability", ["checkpoint", "update"])
@pytest.mark.parametrize("duplicates", ["sum", "sequential"])
def test_counts_and_times_are_those_of_the_calls(tmp_path, clock, durability, duplicates):
    """Against a dictionary; with a cache that holds a part of the rows."""
    seed = 11
    random = np.random.default_rng(seed)
    folder, expected = tmp_path / "rows", {}
    every = np.arange(30_000, dtype=np.uint64) * np.uint64(2**59 + 1)
    for opening in range(2):
        with kv.Storage(folder, clock=clock, cache_bytes=1 << 20, durability=durability) as storage:
            embedding = sgd(storage, dimension=8, duplicates=duplicates)
            for _ in range(6):
                clock.now += int(random.integers(1, 100))
                batch = random.choice(every, 3000)
                embedding.apply_gradients(batch, ones(3000, 8))
                distinct, counts = np.unique(batch, return_counts=True)
                for key, count in zip(distinct.tolist(), counts.tolist(), strict=True):
                    more = count if duplicates == "sequential" else 1
                    expected[key] = (expected.get(key, (0, 0))[0] + more, clock.now)
                gone = random.choice(every, 200)
                embedding.remove(gone)
                for key in gone.tolist():
                    expected.pop(key, None)
                found = embedding.metadata(every)
                for i, key in enumerate(every.tolist()):
                    known = expected.get(key)
                    context = (seed, opening, key)
                    assert found.exists[i] == (known is not None), context
                    assert (found.update_nums[i], found.update_times[i]) == (known or (0, 0))
            assert len(embedding) == len(expected)


def test_asking_makes_no_rows_and_counts_for_no_admission(tmp_path, clock):
    with kv.Storage(tmp_path / "rows", clock=clock) as storage:
        embedding = sgd(storage, admission=kv.FrequencyAdmission(2))
        for _ in range(5):
            assert not embedding.contains(keys(1, 2)).any()
        assert len(embedding) == 0
        vectors, exists = embedding.lookup(keys(1), return_exists=True)  # seen once
        assert (vectors == 0).all() and not exists.any()
        assert not embedding.contains(keys(1)).any()


def test_a_row_that_was_looked_up_and_never_updated(tmp_path, clock):
    with kv.Storage(tmp_path / "rows", clock=clock) as storage:
        embedding = sgd(storage)
        _, exists = embedding.lookup(keys(5, 6, 5), return_exists=True)
        assert exists.tolist() == [False, False, False]  # before the call
        made = clock.now
        clock.now += 7
        found = embedding.metadata(keys(5, 7))
        assert found.exists.tolist() == [True, False]
        assert found.update_nums.tolist() == [0, 0]
        assert found.update_times.tolist() == [made, 0]


@pytest.mark.parametrize("flushed", [False, True])
def test_rows_that_have_expired_are_not_there(tmp_path, clock, flushed):
    with kv.Storage(tmp_path / "rows", ttl=100, clock=clock) as storage:
        embedding = sgd(storage)
        embedding.apply_gradients(keys(1, 2), ones(2))
        clock.now += 60
        embedding.apply_gradients(keys(2), ones(1))
        if flushed:
            storage.flush()
        clock.now += 60
        assert embedding.contains(keys(1, 2)).tolist() == [False, True]
        found = embedding.metadata(keys(1, 2))
        assert found.update_nums.tolist() == [0, 2]
        assert found.update_times.tolist() == [0, clock.now - 60]
        _, exists = embedding.lookup(keys(1, 2), train=False, return_exists=True)
        assert exists.tolist() == [False, True]


@pytest.mark.parametrize("train", [False, True])
def test_a_lookup_says_which_keys_had_a_row(storage, train):
    embedding = sgd(storage)
    embedding.assign(keys(1, 3), np.array([[1, 1], [3, 3]], np.float32))
    batch = keys(1, 2, 3, 2, 1)
    vectors, exists = embedding.lookup(batch, train=train, return_exists=True)
    assert exists.tolist() == [True, False, True, False, True]
    assert vectors[:, 0].tolist() == [1, 0, 3, 0, 1]
    out = np.empty((5, 2), np.float32)
    same, exists = embedding.lookup(batch, out, train=train, return_exists=True)
    assert same is out and exists.tolist() == [True, train, True, train, True]
    assert out.tolist() == vectors.tolist()


def test_reading_only(tmp_path, clock):
    with kv.Storage(tmp_path / "rows", clock=clock) as storage:
        sgd(storage).apply_gradients(keys(1), ones(1))
    with kv.Storage(tmp_path / "rows", read_only=True, clock=clock) as storage:
        embedding = sgd(storage)
        assert embedding.contains(keys(1, 2)).tolist() == [True, False]
        assert embedding.lookup(keys(1, 2), return_exists=True)[1].tolist() == [True, False]
        assert embedding.metadata(keys(1)).update_nums.tolist() == [1]


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (3, 1, 2), (0,), (2, 0)])
@pytest.mark.parametrize("flat", [False, True])
def test_keys_of_any_shape(storage, shape, flat):
    embedding = sgd(storage, dimension=2)
    batch = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    values = np.random.default_rng(0).normal(size=(*shape, 2)).astype(np.float32)
    given = values.reshape(-1) if flat else values
    embedding.assign(batch, given)
    np.testing.assert_array_equal(embedding.lookup(batch), values)
    embedding.apply_gradients(batch, given)
    np.testing.assert_array_equal(embedding.lookup(batch), np.zeros_like(values))
    vectors, exists = embedding.lookup(batch, return_exists=True)
    assert vectors.shape == (*shape, 2) and exists.shape == shape and exists.all()
    found = embedding.metadata(batch)
    assert [array.shape for array in found] == [shape] * 3
    assert found.update_nums.tolist() == np.ones(shape, np.int64).tolist()
    assert embedding.contains(batch).shape == shape
    assert embedding.remove(batch) == batch.size
    assert len(embedding) == 0


@pytest.mark.parametrize("wrong", [(2, 3), (3, 2, 2), (1, 2, 3, 2)])
def test_vectors_of_another_shape_than_the_keys_are_refused(storage, wrong):
    embedding = sgd(storage, dimension=2)
    batch = np.arange(6, dtype=np.uint64).reshape(2, 3)
    for call in (embedding.assign, embedding.apply_gradients, embedding.lookup):
        with pytest.raises(ValueError, match=r"shape \[2, 3, 2\] or \[12\].*Received: shape"):
            call(batch, np.zeros(wrong, np.float32))
    assert len(embedding) == 0


def test_what_it_says_is_what_other_readers_find(storage):
    embedding = sgd(storage)
    for _ in range(3):
        embedding.apply_gradients(keys(4), ones(1))
    found = embedding.metadata(keys(4))
    kept = row(storage, 4)
    assert (found.update_nums[0], found.update_times[0]) == (
        kept["update_num"],
        kept["update_time"],
    )
    np.testing.assert_array_equal(peek(embedding, 4)[0], kept["floats"])
