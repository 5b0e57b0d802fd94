"""Rows of a storage stay with the workers that they were given to."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from sok_embed import (
    All2AllDenseEmbedding,
    DistributedEmbedding,
    DynamicEmbedding,
    FeatureConfig,
    TableConfig,
    kv,
)

OWN = 0  # a key of worker 0 by its remainder


def dynamic(storage):
    return DynamicEmbedding(2, storage=storage, name="t").table


def hashed(storage):
    return All2AllDenseEmbedding(10, 2, 1, 1, storage=storage, name="t").table


def by_key(storage, **placed):
    table = TableConfig("t", None, 2, storage=storage, **placed)
    return DistributedEmbedding(FeatureConfig("f", table)).tables["t"]


def on_worker(storage):
    return by_key(storage, placement="worker", worker=0)


def on_other(storage):
    return by_key(storage, placement="worker", worker=1)


@pytest.mark.cover(8)
@pytest.mark.parametrize("first", [dynamic, by_key, on_worker, on_other])
@pytest.mark.parametrize("second", [dynamic, hashed, by_key, on_worker, on_other])
def test_a_table_of_another_rule_is_refused_and_one_of_the_same_is_not(
    tmp_path, first_of_two, first, second
):
    with kv.Storage(tmp_path / "rows") as storage:
        first(storage)
        storage.flush()
    same = first is second or {first, second} == {dynamic, hashed}
    with kv.Storage(tmp_path / "rows") as storage:
        if same:
            second(storage)
            return
        with pytest.raises(
            ValueError, match="Table 't': expected rows in group 0 of .* lie on worker"
        ):
            second(storage)


def test_each_group_has_a_rule_of_its_own(tmp_path, first_of_two):
    with kv.Storage(tmp_path / "rows") as storage:
        dynamic(storage)
        table = TableConfig("u", None, 2, storage=storage, group=1)
        DistributedEmbedding(FeatureConfig("f", table))
    with kv.Storage(tmp_path / "rows") as storage:
        dynamic(storage)


def test_one_worker_needs_no_rule(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        by_key(storage).assign([OWN], np.ones((1, 2)))
        storage.flush()
    with kv.Storage(tmp_path / "rows") as storage:
        np.testing.assert_array_equal(dynamic(storage).lookup([OWN]), np.ones((1, 2)))
    assert not list(tmp_path.rglob("sok-owners.json"))


def test_a_damaged_note_is_refused(tmp_path, first_of_two):
    with kv.Storage(tmp_path / "rows") as storage:
        dynamic(storage)
    (note,) = tmp_path.rglob("sok-owners.json")
    note.write_text('{"0": 3}')
    with (
        kv.Storage(tmp_path / "rows") as storage,
        pytest.raises(ValueError, match="sok-owners.json' to say by which rules"),
    ):
        dynamic(storage)


def test_a_checkpoint_has_the_note_too(tmp_path, first_of_two):
    with kv.Storage(tmp_path / "rows") as storage:
        dynamic(storage)
        copy = tmp_path / "copy" / "worker-0-of-2"
        copy.parent.mkdir()
        storage.checkpoint(copy)
    with (
        kv.Storage(tmp_path / "copy") as storage,
        pytest.raises(ValueError, match="expected rows in group 0"),
    ):
        by_key(storage)


def test_no_note_is_written_into_a_folder_that_has_come_to_the_path(tmp_path, first_of_two):
    storage = kv.Storage(tmp_path / "rows")
    folder = Path(storage.path)
    folder.rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", folder)
    with pytest.raises(FileNotFoundError, match="moved, removed or replaced"):
        dynamic(storage)
    assert not list(tmp_path.rglob("sok-owners.json*"))
    shutil.rmtree(folder)
    (tmp_path / "away").rename(folder)
    dynamic(storage)
    assert list(folder.glob("sok-owners.json"))
    storage.close()
