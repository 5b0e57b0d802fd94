"""A group as it is: looked at, removed from and copied by callers who have nothing to say of it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from kv_rows import ENVIRONMENT, adam, keys, ones, peek, sgd

from sok_embed import kv


def described(storage, group=0):
    return json.loads(dict(storage.ready().groups())[group])


@pytest.fixture(params=["closed", "open", "read-only"])
def opened(request, tmp_path):
    """A storage of 5 keys in group 0, and its trained embedding where the group is open."""
    path = tmp_path / "rows"
    with kv.Storage(path) as storage:
        adam(storage).apply_gradients(keys(1, 2, 3, -1, -2), ones(5))
    with kv.Storage(path, read_only=request.param == "read-only") as storage:
        if request.param == "open":
            adam(storage).apply_gradients(keys(1), ones(1))
        yield storage


def test_looking_needs_nothing_said_and_changes_nothing(opened):
    before = described(opened)
    table = opened.table(0)
    expected = peek(adam(opened), 1, 2, 3, -1, -2, 77) if not opened.read_only else None
    found, exists = table.lookup(keys(1, 2, 3, -1, -2, 77), return_exists=True)
    assert exists.tolist() == [True] * 5 + [False]
    if expected is not None:
        np.testing.assert_array_equal(found, expected)
    start = kv.Initializer("normal").draw(77, dimension=2, group=0)
    np.testing.assert_array_equal(found[5], start)
    assert table.contains(np.array([[1, 9]], np.int64)).tolist() == [[True, False]]
    assert table.metadata(keys(2, 9)).update_nums.tolist() == [1, 0]
    assert (len(table), table.dimension, table.stats()["rows"]) == (5, 2, 5)
    description = table.description()
    assert (description.optimizer, description.rows) == ("adam", 5)
    assert description.initializer == {"kind": "normal", "a": 0.0, "b": 1.0, "seed": 0}
    assert described(opened) == before


def test_rows_are_removed_once(opened):
    if opened.read_only:
        with pytest.raises(PermissionError, match="read-only"):
            opened.remove(0, [1])
        return
    table = opened.table(0)
    assert table.remove(keys(1, -1, 1, 99)) == 2
    assert table.remove(keys(1, -1)) == 0
    assert table.contains(keys(1, 2, -1, -2)).tolist() == [False, True, False, True]
    assert len(table) == 3 == opened.groups()[0].rows
    embedding = adam(opened)
    assert embedding.contains(keys(1, 2)).tolist() == [False, True]
    embedding.apply_gradients(keys(1), ones(1))
    assert len(table) == 4


def test_what_was_removed_is_gone_in_the_next_process(opened):
    if opened.read_only:
        return
    opened.remove(0, keys(1, 2))
    opened.close()
    with kv.Storage(opened.path) as again:
        assert again.table(0).contains(keys(1, 2, 3)).tolist() == [False, False, True]
        assert again.groups()[0].rows == 3


def test_a_removal_from_a_group_that_nobody_trains_lasts_without_a_flush(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        adam(storage).apply_gradients(keys(1, 2), ones(2))
    program = (
        "import os, sys; from sok_embed import kv; storage = kv.Storage(sys.argv[1]); "
        "assert storage.remove(0, 1) == 1; os._exit(0)"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "rows")], check=True, env=ENVIRONMENT
    )
    with kv.Storage(tmp_path / "rows", read_only=True) as storage:
        assert storage.table(0).contains(keys(1, 2)).tolist() == [False, True]


def test_a_group_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        with pytest.raises(FileNotFoundError, match="no group 0 in .* has none"):
            storage.table(0)
        adam(storage)
        adam(storage, group=7)
        for ask in (storage.table, lambda group: storage.remove(group, [1])):
            with pytest.raises(FileNotFoundError, match="no group 3 in .*the groups 0, 7"):
                ask(3)
        with pytest.raises(FileNotFoundError, match="no group 3 in .*the groups 0, 7"):
            storage.dump(tmp_path / "dump", group=3)
        for group in (-1, 256, True, "0"):
            with pytest.raises(ValueError, match="Expected group to be an integer"):
                storage.table(group)
        assert [group.number for group in storage.groups()] == [0, 7]
    with kv.Storage(tmp_path / "rows", read_only=True) as storage:
        with pytest.raises(FileNotFoundError, match="no group 3 in .*the groups 0, 7"):
            sgd(storage, group=3)


def test_rows_that_have_expired_are_not_there_and_not_counted(tmp_path, clock):
    with kv.Storage(tmp_path / "rows", ttl=100, clock=clock) as storage:
        sgd(storage).apply_gradients(keys(1, 2), ones(2))
        clock.now += 60
        sgd(storage).apply_gradients(keys(3), ones(1))
    clock.now += 60
    with kv.Storage(tmp_path / "rows", clock=clock) as storage:
        table = storage.table(0)
        assert table.contains(keys(1, 2, 3)).tolist() == [False, False, True]
        np.testing.assert_array_equal(table.lookup(keys(1)), [[0, 0]])
        assert [found.tolist() for found, _ in table.batches(9)] == [[3]]
        assert table.remove(keys(1, 3)) == 1
        sgd(storage)
        assert len(table) == storage.groups()[0].rows
        assert list(table.batches(9)) == []


@pytest.mark.parametrize(
    ("given", "expected"), [(7, [7]), ([7, -1], [7, 2**64 - 1]), (range(2), [0, 1]), ((), [])]
)
def test_keys_of_a_removal_may_be_plain_integers(tmp_path, given, expected):
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage).apply_gradients(keys(0, 1, 7, -1), ones(4))
        assert storage.remove(0, given) == len(expected)
        assert not storage.table(0).contains(np.array(expected, np.uint64)).any()


@pytest.mark.parametrize(
    ("given", "expected"), [(7, [7]), ([7, -1], [7, 2**64 - 1]), (range(2), [0, 1]), ((), [])]
)
def test_every_call_of_a_stored_table_takes_plain_integers(tmp_path, given, expected):
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage).apply_gradients(keys(0, 1, 7, -1), ones(4))
        table, array = storage.table(0), np.array(expected, np.uint64)
        np.testing.assert_array_equal(table.lookup(given), table.lookup(array))
        assert table.contains(given).tolist() == [True] * len(expected)
        assert table.metadata(given).update_nums.tolist() == [1] * len(expected)
        assert table.remove(given) == len(expected)
        assert not table.contains(array).any()


@pytest.mark.parametrize("given", [True, [False], [1.0], "7", [2**64], np.array([True])])
def test_other_keys_are_refused(tmp_path, given):
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage).apply_gradients(keys(0, 1), ones(2))
        table = storage.table(0)
        for call in (lambda keys: storage.remove(0, keys), table.lookup, table.contains):
            with pytest.raises((TypeError, ValueError), match="Expected"):
                call(given)
        assert len(table) == 2


@pytest.mark.parametrize(
    "given", ["alice", ["alice"], [b"alice"], np.array(["alice"]), np.array(["alice"], object)]
)
def test_errors_of_strings_name_the_function_that_makes_keys_of_them(tmp_path, given):
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = sgd(storage)
        table = storage.table(0)
        calls = (table.lookup, table.contains, table.metadata, table.remove, embedding.lookup)
        for call in (*calls, embedding.remove, lambda keys: storage.remove(0, keys)):
            with pytest.raises(TypeError, match=r"sok_embed\.fingerprint"):
                call(given)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_removal_has_the_admission_count_from_0(tmp_path, is_open):
    def counting(storage):
        return sgd(storage, admission=kv.FrequencyAdmission(min_count=3))

    with kv.Storage(tmp_path / "rows") as storage:
        for _ in range(2):
            counting(storage).lookup(keys(5, 6))
    with kv.Storage(tmp_path / "rows") as storage:
        if is_open:
            counting(storage)
        assert storage.remove(0, [5]) == 0
        embedding = counting(storage)
        embedding.lookup(keys(5, 6))
        assert embedding.contains(keys(5, 6)).tolist() == [False, True]


KEYS = [0, 1, 5, 2**63 - 1, 2**63, 2**64 - 6, 2**64 - 1]


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_batches_have_every_row_once_ascending(opened, n):
    if not opened.read_only:
        sgd(opened, 3, group=4).assign(keys(*KEYS), np.arange(21, dtype=np.float32).reshape(7, 3))
        found = list(opened.table(4).batches(n))
        np.testing.assert_array_equal(np.concatenate([each for each, _ in found]), keys(*KEYS))
        rows = np.concatenate([vectors for _, vectors in found])
        np.testing.assert_array_equal(rows.reshape(-1), np.arange(21))
        assert [len(each) for each, _ in found] == [n] * (7 // n) + [7 % n] * (7 % n > 0)
    np.testing.assert_array_equal(
        np.concatenate([each for each, _ in opened.table(0).batches(n)]), keys(1, 2, 3, -2, -1)
    )


def test_batches_go_on_while_rows_are_trained_made_and_removed(tmp_path):
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) as storage:
        embedding = sgd(storage, 8)
        many = np.arange(0, 60_000, 3, dtype=np.uint64)
        embedding.assign(many, np.repeat(many[:, None], 8, 1).astype(np.float32))
        seen = []
        for found, vectors in storage.table(0).batches(1000):
            np.testing.assert_array_equal(vectors, np.repeat(found[:, None], 8, 1))
            seen.append(found)
            last = int(found[-1])
            embedding.assign(  # rows that come, and rows that have been
                keys(last - 1, last + 1), np.array([[last - 1] * 8, [last + 1] * 8], np.float32)
            )
            if last + 6 < 60_000:
                embedding.remove(keys(last + 6))
            storage.flush()
        all_seen = np.concatenate(seen)
        assert (np.diff(all_seen.astype(np.int64)) > 0).all()
        gone = {int(found[-1]) + 6 for found in seen}
        assert set(many.tolist()) - set(all_seen.tolist()) <= gone


@pytest.mark.parametrize("n", [0, -1, True, 1.5, None])
def test_a_size_of_batches_is_a_positive_integer(tmp_path, n):
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage)
        with pytest.raises(ValueError, match="Expected n to be a positive integer"):
            storage.table(0).batches(n)


def test_a_closed_storage_says_so(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage)
        table = storage.table(0)
    for call in (len, lambda t: t.remove(keys(1)), lambda t: list(t.batches(1))):
        with pytest.raises(RuntimeError, match="closed"):
            call(table)
