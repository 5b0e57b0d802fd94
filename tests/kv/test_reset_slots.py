"""What an optimizer keeps of rows is dropped only for those who ask for it."""

import numpy as np
import pytest
from kv_rows import keys, ones, peek, row

from sok_embed import kv

KEYS = (1, 2, -3)


def trained(storage, optimizer, **more):
    return kv.Embedding(storage, kv.Optimizer(optimizer), kv.Initializer("normal"), 2, **more)


def folder_of_adagrad(tmp_path, updates=5):
    """Makes rows with slots, some of them in the files only."""
    path = tmp_path / "rows"
    with kv.Storage(path) as storage:
        for _ in range(updates):
            trained(storage, "adagrad").apply_gradients(keys(*KEYS), ones(3))
    return path


def by_embedding(path):
    storage = kv.Storage(path)
    return storage, trained(storage, "adam", reset_slots=True)


def by_storage(path):
    storage = kv.Storage(path, reset_slots=True)
    return storage, trained(storage, "adam")


def by_attribute(path):
    storage = kv.Storage(path)
    storage.reset_slots = True
    return storage, trained(storage, "adam")


def test_another_optimizer_is_refused_with_the_remedy_and_nothing_changes(tmp_path):
    path = folder_of_adagrad(tmp_path)
    with kv.Storage(path) as storage:
        before = [row(storage, key) for key in KEYS]
        with pytest.raises(ValueError, match="'adagrad', got 'adam'.*reset_slots=True"):
            trained(storage, "adam")
        for key, was in zip(KEYS, before, strict=True):
            np.testing.assert_array_equal(row(storage, key)["floats"], was["floats"])
        trained(storage, "adagrad").apply_gradients(keys(*KEYS), ones(3))
        assert row(storage, 1)["update_num"] == 6


@pytest.mark.parametrize("opened", [by_embedding, by_storage, by_attribute])
def test_vectors_stay_and_train_on_like_new_rows(tmp_path, opened):
    """Adam counts the updates of each row: with those of adagrad its steps would be wrong."""
    path = folder_of_adagrad(tmp_path)
    with kv.Storage(path, read_only=True) as storage:
        vectors = peek(trained(storage, "adagrad"), *KEYS)
    storage, embedding = opened(path)
    with storage, kv.Storage(tmp_path / "new") as other:
        reference = trained(other, "adam")
        reference.assign(keys(*KEYS), vectors)
        for one in (embedding, reference):
            np.testing.assert_array_equal(peek(one, *KEYS), vectors)
            for _ in range(3):
                one.apply_gradients(keys(*KEYS), ones(3) * 0.5)
        for key in KEYS:
            found, expected = row(storage, key), row(other, key)
            assert found["update_num"] == expected["update_num"] == 3
            np.testing.assert_array_equal(found["floats"], expected["floats"])


def test_a_reset_survives_without_a_flush_and_the_next_process_needs_no_leave(tmp_path):
    path = folder_of_adagrad(tmp_path)
    storage, _ = by_embedding(path)
    copied = tmp_path / "copy"  # what a kill at this moment would leave
    copied.mkdir()
    for file in path.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    storage.close()
    with kv.Storage(copied) as storage:
        (group,) = storage.groups()
        assert (group.optimizer, group.rows, group.steps) == ("adam", 3, 0)
        assert row(storage, 1)["update_num"] == 0
        trained(storage, "adam").apply_gradients(keys(*KEYS), ones(3))


def test_the_same_optimizer_goes_on_though_it_has_leave(tmp_path):
    path = folder_of_adagrad(tmp_path)
    with kv.Storage(path, reset_slots=True) as storage:
        before = row(storage, 1)
        embedding = trained(storage, "adagrad", reset_slots=True)
        embedding.lookup(keys(*KEYS))
        np.testing.assert_array_equal(row(storage, 1)["floats"], before["floats"])
        assert row(storage, 1)["update_num"] == 5


def test_a_group_that_is_open_is_not_reset_under_its_owner(tmp_path):
    path = folder_of_adagrad(tmp_path)
    with kv.Storage(path) as storage:
        first = trained(storage, "adagrad")
        with pytest.raises(ValueError, match="is open with optimizer 'adagrad', got 'adam'.*close"):
            trained(storage, "adam", reset_slots=True)
        first.apply_gradients(keys(*KEYS), ones(3))
        assert row(storage, 1)["update_num"] == 6


def test_other_groups_keep_what_they_have(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        for group in (0, 1, 2):
            trained(storage, "adagrad", group=group).apply_gradients(keys(*KEYS), ones(3))
    with kv.Storage(tmp_path / "rows") as storage:
        trained(storage, "ftrl", group=1, reset_slots=True)
        assert [group.optimizer for group in storage.groups()] == ["adagrad", "ftrl", "adagrad"]
        assert [row(storage, 1, group)["update_num"] for group in (0, 1, 2)] == [1, 0, 1]


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_what_is_no_flag_is_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="reset_slots to be True or False"):
        kv.Storage(tmp_path / "rows", reset_slots=wrong)
    with (
        kv.Storage(tmp_path / "rows") as storage,
        pytest.raises(ValueError, match="reset_slots to be True or False"),
    ):
        trained(storage, "adam", reset_slots=wrong)
