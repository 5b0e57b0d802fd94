"""What new rows of a group start from changes only for callers who ask for it."""

import json

import numpy as np
import pytest
from kv_rows import damo_file, keys, ones, peek

from sok_embed import kv

STARTS = {
    "another kind": kv.Initializer("ones"),
    "other numbers": kv.Initializer("uniform", min=-0.05, max=0.06),
    "another seed": kv.Initializer("uniform", min=-0.05, max=0.05, seed=4),
}
START = kv.Initializer("uniform", min=-0.05, max=0.05, seed=3)


def of(storage, initializer, **more):
    return kv.Embedding(storage, kv.Optimizer("adam"), initializer, 2, **more)


@pytest.fixture
def path(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        of(storage, START).apply_gradients(keys(1, 2), ones(2))
    return tmp_path / "rows"


def texts(path):
    with kv.Storage(path, read_only=True) as storage:
        return dict(storage.ready().groups())


@pytest.mark.parametrize("other", STARTS.values(), ids=STARTS)
def test_another_initializer_is_refused_with_the_remedy_and_nothing_changes(path, other):
    before = texts(path)
    with kv.Storage(path) as storage:
        told = r"has the initializer uniform \(-0.05, 0.05\), seed 3, got .*storage.table\(0\)"
        with pytest.raises(ValueError, match=told + ".*reset_initializer=True"):
            of(storage, other)
        of(storage, START)
        with pytest.raises(ValueError, match=r"is open with .*seed 3, got .*storage.table\(0\)"):
            of(storage, other, reset_initializer=True)
    assert texts(path) == before


def by_embedding(path, initializer):
    storage = kv.Storage(path)
    return storage, of(storage, initializer, reset_initializer=True)


def by_storage(path, initializer):
    storage = kv.Storage(path, reset_initializer=True)
    return storage, of(storage, initializer)


def by_attribute(path, initializer):
    storage = kv.Storage(path)
    storage.reset_initializer = True
    return storage, of(storage, initializer)


@pytest.mark.parametrize("opened", [by_embedding, by_storage, by_attribute])
def test_with_leave_new_rows_start_otherwise_and_old_ones_stay(path, opened):
    with kv.Storage(path, read_only=True) as storage:
        trained = storage.table(0).lookup(keys(1, 2))
    storage, embedding = opened(path, kv.Initializer("ones"))
    with storage:
        np.testing.assert_array_equal(peek(embedding, 1, 2), trained)
        np.testing.assert_array_equal(peek(embedding, 3), [[1, 1]])
    with kv.Storage(path) as storage:
        assert storage.table(0).description().initializer["kind"] == "constant"
        np.testing.assert_array_equal(storage.table(0).lookup(keys(3)), [[1, 1]])
        of(storage, kv.Initializer("ones"))


def test_a_reader_may_say_what_it_likes(path):
    before = texts(path)
    with kv.Storage(path, read_only=True) as storage:
        np.testing.assert_array_equal(peek(of(storage, kv.Initializer("ones")), 3), [[1, 1]])
        assert storage.groups()[0].initializer["kind"] == "uniform"
    assert texts(path) == before


def test_rows_of_damo_have_no_initializer_until_one_is_given(tmp_path):
    damo_file(tmp_path / "dump", {0: {7: [1.0, 2.0]}})
    with kv.Storage(tmp_path / "rows") as storage:
        storage.load_damo(tmp_path / "dump")
        assert storage.groups()[0].initializer is None
        np.testing.assert_array_equal(storage.table(0).lookup(keys(7, 8)), [[1, 2], [0, 0]])
    with kv.Storage(tmp_path / "rows") as storage:
        of(storage, START)
        assert storage.groups()[0].initializer["seed"] == 3
    with kv.Storage(tmp_path / "rows") as storage, pytest.raises(ValueError, match="initializer"):
        of(storage, kv.Initializer("ones"))


def test_leave_is_true_or_false_and_is_not_saved(path):
    for wrong in (1, "yes", None):
        with pytest.raises(ValueError, match="Expected reset_initializer to be True or False"):
            kv.Storage(path, reset_initializer=wrong)
    with kv.Storage(path, reset_initializer=True) as storage:
        assert "reset_initializer" not in json.dumps(storage.get_config())
        storage.reset_initializer = False
        with pytest.raises(ValueError, match="reset_initializer"):
            of(storage, kv.Initializer("ones"))


def test_who_wants_to_remove_is_not_told_to_drop_slots_first(path):
    with kv.Storage(path) as storage, pytest.raises(ValueError) as refused:
        kv.Embedding(storage, kv.Optimizer("sgd"), START, 2)
    text = str(refused.value)
    assert "storage.table(0) needs no optimizer" in text
    assert text.index("storage.table(0)") < text.index("reset_slots=True")
    assert "loses for good what 'adam' keeps" in text
