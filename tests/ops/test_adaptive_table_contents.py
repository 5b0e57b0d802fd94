"""The ops on what an adaptive table holds: stats, export, restore, how long handles live."""

import numpy as np
import pytest
import tensorflow as tf
from adaptive_ops import BUCKETS, DIM, look, new_table, own_keys, stats, train

from sok_embed import tf_ops
from sok_embed.tf_ops.native import ops

ERROR = tf.errors.InvalidArgumentError


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


def test_stats_are_those_that_are_named():
    table = new_table(promote_after=2, sketch_capacity=100)
    train(table, [1, 1, 2])
    train(table, [1, 2, 3], mask=[-1, 0, -1])
    found = stats(table)
    assert list(found) == [
        "rows",
        "max_rows",
        "static_rows",
        "static_buckets",
        "promoted",
        "demoted",
        "lookups",
        "own_lookups",
        "looked_up",
        "found",
        "sketch_saturation",
        "own_bytes",
        "static_bytes",
        "sketch_bytes",
        "bytes",
        "steps",
        "pending_gradients",
    ]
    assert found["rows"] == found["promoted"] == 1
    assert found["static_buckets"] == BUCKETS
    assert (found["lookups"], found["own_lookups"], found["steps"]) == (6, 1, 2)
    assert (found["looked_up"], found["found"]) == (5, 1)  # one asked for a static row
    assert found["bytes"] == found["own_bytes"] + found["static_bytes"] + found["sketch_bytes"]
    assert found["sketch_saturation"] == 0
    look(table, [9], counts=[1000], mask=[-1])
    assert 0 < stats(table)["sketch_saturation"] < 0.1


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam"])
def test_export_and_restore_carry_a_table_over(wrap, rule):
    table, other = new_table(promote_after=3), new_table(promote_after=3)
    random = np.random.default_rng(2)
    for _ in range(5):
        train(table, random.integers(-5, 30, 20), rule)
    train(other, [1, 1, 1, 100, 100, 100], "ftrl")

    @wrap
    def carry():
        contents = tf_ops.adaptive_export(table, DIM)
        tf_ops.adaptive_restore(other, contents)
        return contents

    saved = carry()
    assert own_keys(other) == own_keys(table) != []
    of_the_process = ("own_bytes", "static_bytes", "bytes", "looked_up", "found")
    assert stats(other) | dict.fromkeys(of_the_process, 0) == stats(table) | dict.fromkeys(
        of_the_process, 0
    )
    np.testing.assert_array_equal(tf_ops.adaptive_export(other, DIM).cells, saved.cells)
    for _ in range(5):
        keys = random.integers(-5, 30, 20)
        np.testing.assert_array_equal(train(table, keys, rule), train(other, keys, rule))
    every = np.arange(-10, 120)
    for mask in (None, np.zeros(130)):
        ours, theirs = (look(each, every, False, mask=mask) for each in (table, other))
        np.testing.assert_array_equal(ours, theirs)
    assert own_keys(other) == own_keys(table)


def test_what_does_not_fit_is_refused_and_nothing_changes():
    table = new_table(promote_after=1)
    train(table, [1, 2, 3], "adagrad")
    saved = tf_ops.adaptive_export(table, DIM)
    other = new_table(promote_after=1)
    train(other, [7, 8])
    before = tf_ops.adaptive_export(other, DIM)
    cells = saved.cells.numpy()
    cells[-1] ^= 1

    def changed(**tensors):
        return tf_ops.AdaptiveExport.from_names(saved.by_name() | tensors)

    wrong = [
        (changed(own_rule="adam"), ERROR, "'ada'.*one rule"),
        (changed(own_rule="x", static_rule="x"), ERROR, '"x"'),
        (changed(own_keys=saved.own.keys[:-1]), ERROR, "expected embeddings of shape"),
        (changed(own_embeddings=saved.own.embeddings[:, :-1]), ERROR, "one row a key"),
        (changed(static_slots=saved.static.slots[:, :-1]), ERROR, "slot_start"),
        (changed(own_update_nums=saved.own.update_nums[:-1]), ERROR, "update counts"),
        (changed(own_keys=saved.own.keys[:, None]), ERROR, "one dimension"),
        (changed(static_keys=saved.static.keys + BUCKETS), ERROR, r"\[0, 6\)"),
        (changed(static_rule=["a", "b"]), ERROR, "to be a scalar"),
        (changed(own_steps=tf.constant([1, 2], tf.int64)), ERROR, "to be a scalar"),
        (saved._replace(counters=saved.counters[1:]), ERROR, "counters"),
        (saved._replace(cells=cells), tf.errors.DataLossError, "checksum"),
        (saved._replace(cells=cells[:10]), tf.errors.DataLossError, "header"),
    ]
    for contents, error, message in wrong:
        with pytest.raises(error, match=message):
            tf_ops.adaptive_restore(other, contents)
    after = tf_ops.adaptive_export(other, DIM).by_name()
    for name, theirs in before.by_name().items():
        np.testing.assert_array_equal(after[name], theirs)
    for buckets, size in ((BUCKETS + 1, 20_000), (BUCKETS, 30_000)):
        with pytest.raises(ERROR, match="static_buckets"):
            tf_ops.adaptive_restore(new_table(static_buckets=buckets, sketch_capacity=size), saved)


def test_the_two_tables_outlive_the_handle_that_gave_them():
    table = new_table(promote_after=1)
    look(table, [1, 2])
    own, static = tf_ops.adaptive_tables(table)
    del table
    assert tf_ops.size(own) == 2
    assert tf_ops.size(static) >= 1


def test_a_receipt_outlives_the_handle_and_refuses_another_size():
    table = new_table()
    _, receipt = ops.sok_embed_adaptive_lookup(
        table=table,
        keys=tf.constant([1, 2], tf.int64),
        counts=tf.zeros(0, tf.int64),
        mask=tf.zeros(0, tf.int32),
        anchor=0.0,
        dim=DIM,
        training=True,
        has_counts=False,
        has_mask=False,
    )
    with pytest.raises(ERROR, match=r"'ada': expected gradients of 2 keys x 4, got shape \[2,3\]"):
        tf_ops.deposit(receipt, tf.ones((2, 3)))
    del table
    assert tf_ops.deposit(receipt, tf.ones((2, DIM))) == 0.0
