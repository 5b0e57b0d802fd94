"""Which keys have a row, how often and when it was trained: tables in memory and on disk."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from storage_models import KEYS, dynamic, model_of, train

from sok_embed import Table, kv, tf_ops
from sok_embed.initializers import RowInitializer

ZEROS = RowInitializer("constant", 0.0, 0.0, None)


@pytest.fixture(params=["memory", "disk"])
def where(request, tmp_path):
    if request.param == "memory":
        yield {}
    else:
        with kv.Storage(tmp_path / "of_the_fixture") as storage:
            yield {"storage": storage}


def test_contains_is_true_of_rows_and_makes_none(where):
    table = Table(2, ZEROS, **where)
    table.assign([3, -5], np.ones((2, 2), np.float32))
    asked = np.array([[3, 4], [-5, 2**63 - 1]])
    assert table.contains(asked).tolist() == [[True, False], [True, False]]
    assert table.contains(asked).dtype == np.bool_
    assert table.size() == 2
    table.remove([3])
    assert table.contains([3]).tolist() == [False]
    assert bool(table.contains(-5))


def test_counts_are_the_steps_that_touched_a_row(where):
    before = int(time.time())
    model = model_of(dynamic(**where))
    train(model, epochs=2)
    table = model.get_layer("emb").table
    contents = table.export(slots=True)
    found = table.metadata(contents.keys)
    assert found.exists.all()
    np.testing.assert_array_equal(found.update_nums, contents.update_nums)
    steps = [np.unique(KEYS[i : i + 16]) for i in range(0, len(KEYS), 16)]
    for key, count in zip(contents.keys, found.update_nums, strict=True):
        assert count == 2 * sum(key in step for step in steps)
    assert (found.update_times >= before).all()
    assert (found.update_times <= int(time.time())).all()
    absent = table.metadata([[10**9], [10**10]])
    assert [array.tolist() for array in absent] == [[[False], [False]], [[0], [0]], [[0], [0]]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_keys_of_every_dtype_and_in_a_graph(where, dtype):
    table = Table(2, ZEROS, **where)
    table.assign(np.array([1, 2], dtype), np.ones((2, 2), np.float32))
    found = tf.function(lambda keys: tf_ops.metadata(table.resource_handle, keys))(
        tf.constant(np.array([[2, 9]], dtype))
    )
    assert found.exists.shape == (1, 2)
    assert found.exists.numpy().tolist() == [[True, False]]


def test_keys_out_of_the_range_of_a_direct_table_are_not_there():
    table = Table(2, ZEROS, max_rows=3, direct=True)
    table.assign([0, 2], np.ones((2, 2), np.float32))
    assert table.contains([0, 1, 2, 3, -1, 2**62]).tolist() == [True, False, True] + [False] * 3
    assert table.metadata([3, 2]).update_nums.tolist() == [0, 0]


def test_keys_of_another_worker_are_refused():
    table = Table(2, ZEROS, owners=2, owner=1)
    with pytest.raises(ValueError, match="key 2, which lives on worker 0"):
        table.contains([1, 2])


def test_floats_are_no_keys(where):
    for wrong in ([1.0], np.array([1.0]), tf.constant([1.0])):
        with pytest.raises(ValueError, match="integer keys"):
            Table(2, ZEROS, **where).contains(wrong)
