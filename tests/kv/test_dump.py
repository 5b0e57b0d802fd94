"""Rows travel between storages in one file: all that were asked for, or none."""

import datetime

import numpy as np
import pytest
from kv_rows import adam, damo_file, keys, ones, peek, row, sgd

from sok_embed import kv


@pytest.fixture
def source(tmp_path, clock):
    """Group 0: keys 1, 2, 3 with as many updates, a day apart. Group 5: key 1."""
    with kv.Storage(tmp_path / "source", clock=clock) as storage:
        embedding = adam(storage)
        for day in range(3):
            embedding.apply_gradients(keys(*range(day + 1, 4)), ones(3 - day))
            clock.now += 86400
        sgd(storage, dimension=4, group=5).apply_gradients(keys(1), ones(1, 4))
        yield storage


def same_rows(a, b, group, *numbers):
    for number in numbers:
        first, second = row(a, number, group), row(b, number, group)
        assert first["update_num"] == second["update_num"]
        assert first["update_time"] == second["update_time"]
        assert (first["floats"] == second["floats"]).all()


def test_a_dump_brings_rows_slots_counts_and_times(source, storage, tmp_path):
    assert source.dump(tmp_path / "dump") == 4
    assert storage.load(tmp_path / "dump") == 4
    assert [group.number for group in storage.groups()] == [0, 5]
    assert storage.groups() == source.groups()
    same_rows(source, storage, 0, 1, 2, 3)
    same_rows(source, storage, 5, 1)
    for each in (source, storage):
        adam(each).apply_gradients(keys(1, 2, 4), ones(3))
    assert (peek(adam(source), 1, 2, 3, 4) == peek(adam(storage), 1, 2, 3, 4)).all()


def test_rows_of_the_file_replace_others(source, storage, tmp_path):
    embedding = adam(storage)
    embedding.apply_gradients(keys(3, 4), ones(2))
    kept = peek(embedding, 4)
    source.dump(tmp_path / "dump", group=0)
    assert storage.load(tmp_path / "dump") == 3
    assert len(embedding) == 4
    same_rows(source, storage, 0, 1, 2, 3)
    assert (peek(embedding, 4) == kept).all()


def dumped(source, storage, tmp_path, **choice):
    rows = source.dump(tmp_path / "dump", **choice)
    assert storage.load(tmp_path / "dump") == rows
    return {
        (group, number)
        for group in (0, 5)
        for number in (1, 2, 3)
        if row(storage, number, group) is not None
    }


def test_a_group_is_chosen(source, storage, tmp_path):
    assert dumped(source, storage, tmp_path, group=5) == {(5, 1)}
    assert [group.number for group in storage.groups()] == [5]


def test_rows_are_chosen_by_their_updates(source, storage, tmp_path):
    assert dumped(source, storage, tmp_path, min_count=2) == {(0, 2), (0, 3)}


@pytest.mark.parametrize("kind", [int, datetime.datetime])
def test_rows_are_chosen_by_their_last_update(source, storage, tmp_path, clock, kind):
    since = clock.now - 2 * 86400  # when key 2 was updated last
    if kind is datetime.datetime:
        since = datetime.datetime.fromtimestamp(since, datetime.timezone.utc)
    assert dumped(source, storage, tmp_path, newer_than=since) == {(0, 3), (5, 1)}


def test_a_group_that_is_not_there_is_an_error(source, tmp_path):
    with pytest.raises(FileNotFoundError, match="group 9"):
        source.dump(tmp_path / "dump", group=9)
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize(
    "choice",
    [{"group": 256}, {"group": True}, {"min_count": -1}, {"newer_than": -5}, {"newer_than": "now"}],
)
def test_a_choice_out_of_range_is_an_error(source, tmp_path, choice):
    with pytest.raises(ValueError, match="Expected .* Received: "):
        source.dump(tmp_path / "dump", **choice)


def test_a_damaged_file_changes_nothing(source, storage, tmp_path):
    source.dump(tmp_path / "dump")
    embedding = adam(storage)
    embedding.apply_gradients(keys(1), ones(1))
    before = row(storage, 1)
    whole = (tmp_path / "dump").read_bytes()
    random = np.random.default_rng(5)
    wrong = [whole[:-1], whole[: len(whole) // 2], whole + b"\0", b"", b"not a dump at all"]
    for at in random.integers(0, len(whole), 30):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(random.integers(8))
        wrong.append(bytes(flipped))
    for contents in wrong:
        (tmp_path / "wrong").write_bytes(contents)
        with pytest.raises((kv.CorruptionError, ValueError)):
            storage.load(tmp_path / "wrong")
    assert len(embedding) == 1
    assert [group.number for group in storage.groups()] == [0]
    assert (row(storage, 1)["floats"] == before["floats"]).all()


def test_a_missing_file_is_an_error(storage, tmp_path):
    for load in (storage.load, storage.load_damo):
        with pytest.raises(FileNotFoundError, match="none"):
            load(tmp_path / "none")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda storage: adam(storage, 3), "dimension 3"),
        (lambda storage: sgd(storage), "optimizer 'sgd', .* it has 'adam'"),
    ],
)
def test_a_group_that_does_not_fit_is_refused(source, storage, tmp_path, make, message):
    make(storage).lookup(keys(9))
    source.dump(tmp_path / "dump")
    with pytest.raises(ValueError, match=message):
        storage.load(tmp_path / "dump")
    assert [group.number for group in storage.groups()] == [0]


def test_progress_is_told_and_can_give_up(source, storage, tmp_path):
    seen = []
    source.dump(tmp_path / "dump", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    calls = []
    storage.load(tmp_path / "dump", progress=lambda done, total: calls.append(done / total))
    assert calls == sorted(calls)
    assert calls[-1] == 1
    with pytest.raises(RuntimeError):
        storage.load(tmp_path / "dump", progress=lambda done, total: False)


def test_an_error_in_progress_comes_through(source, tmp_path):
    def fail(done, total):
        raise KeyError("of the test")

    with pytest.raises(KeyError, match="of the test"):
        source.dump(tmp_path / "dump", progress=fail)
    source.flush()


def test_damos_files_bring_vectors(storage, tmp_path, clock):
    vectors = {0: {1: [1.0, 2.0], -7: [3.0, 4.0]}, 9: {5: [0.5]}}
    path = damo_file(tmp_path / "damo", vectors)
    assert storage.load_damo(path) == 3
    assert [(group.number, group.dimension) for group in storage.groups()] == [(0, 2), (9, 1)]
    embedding = adam(storage)
    assert peek(embedding, 1, -7).tolist() == [[1, 2], [3, 4]]
    assert row(storage, 5, 9)["update_num"] == 0
    embedding.apply_gradients(keys(1), ones(1))
    # Adam's first step is the learning rate, whatever the gradient.
    np.testing.assert_allclose(peek(embedding, 1), [[1 - 1e-3, 2 - 1e-3]], rtol=1e-6)


def test_damos_files_bring_vectors_into_rows_of_fewer_bytes(storage, tmp_path):
    vectors = [[1.0, -2.5], [0.3, 0.0]]
    arguments = kv.Optimizer("adagrad"), kv.Initializer("zeros"), 2, 5
    embedding = kv.Embedding(storage, *arguments, row_dtype="bfloat16", slot_dtype="bfloat16")
    storage.load_damo(damo_file(tmp_path / "damo", {5: {1: vectors[0], 2: vectors[1]}}))
    found = embedding.lookup(np.array([1, 2], np.uint64), train=False)
    nearest = 154 * 2.0**-9  # of 0.3, with 8 bits of significand
    np.testing.assert_array_equal(found, np.array([[1.0, -2.5], [nearest, 0.0]], np.float32))
    embedding.apply_gradients(np.array([1], np.uint64), np.ones([1, 2], np.float32))
    assert np.isfinite(embedding.lookup(np.array([1], np.uint64))).all()


def test_damos_files_fit_the_groups_that_are_there(storage, tmp_path):
    embedding = adam(storage, 2)
    embedding.apply_gradients(keys(1), ones(1))
    storage.load_damo(damo_file(tmp_path / "damo", {0: {1: [5.0, 6.0], 2: [7.0, 8.0]}}))
    assert peek(embedding, 1, 2).tolist() == [[5, 6], [7, 8]]
    with pytest.raises(ValueError, match="dimension 2"):
        storage.load_damo(damo_file(tmp_path / "damo", {0: {1: [5.0]}}))
    wrong = (tmp_path / "damo").read_bytes()[:-1]
    (tmp_path / "damo").write_bytes(wrong)
    with pytest.raises(kv.CorruptionError):
        storage.load_damo(tmp_path / "damo")
    assert peek(embedding, 1, 2).tolist() == [[5, 6], [7, 8]]
