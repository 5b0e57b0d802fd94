"""`evict`: which rows go, in which steps, and what is said of them."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import kv, tf_ops

DIM = 3
names = (f"evict_{i}" for i in itertools.count())
SGD = tf_ops.RuleStep("sgd")


def new_table(**attributes):
    given = {"initializer": "constant", "initializer_a": 0.0, "step_clock": True, **attributes}
    return tf_ops.anonymous_table("evict", DIM, **given)


def step(table, keys):
    """Makes a step with gradients of zero; returns the anchor after it."""
    receipt = tf_ops.lookup(table, tf.constant(keys, tf.int64), DIM, True).receipt
    anchor = tf_ops.deposit(receipt, tf.zeros((len(keys), DIM)))
    return tf_ops.commit(table, anchor, [SGD])


def gone(evicted):
    keys, rows = evicted
    assert rows.shape == (len(keys), DIM)
    assert keys.dtype == tf.int64 and rows.dtype == tf.float32
    return sorted(keys.numpy().tolist())


def held(table):
    return sorted(tf_ops.export(table, DIM, with_slots=False).keys.numpy().tolist())


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


@pytest.mark.parametrize("kind", ["memory", "direct", "shards"])
def test_rows_that_were_not_updated_for_max_age_steps_go(wrap, kind):
    options = {"memory": {}, "direct": {"direct": True, "max_rows": 100}, "shards": {"shards": 99}}
    table = new_table(**options[kind])
    run = wrap(lambda: tf_ops.evict(table, DIM, max_age=2))
    assert gone(run()) == []
    step(table, [1, 2, 3])
    step(table, [2])
    assert gone(run()) == []
    step(table, [3])
    assert gone(run()) == [1]
    step(table, [9])
    assert gone(run()) == [2]
    assert held(table) == [3, 9]
    assert gone(run()) == []


def test_rows_of_a_small_norm_go_with_their_values(wrap):
    table = new_table()
    rows = np.array([[3, 4, 0], [0, 0, 0], [1e-20, 0, 0], [3, -3.9, 0], [-9, 9, 9]], np.float32)
    tf_ops.assign(table, tf.constant([10, 11, 12, 13, -14]), tf.constant(rows))
    step(table, [10, 11, 12, 13, -14])
    keys, embeddings = wrap(lambda: tf_ops.evict(table, DIM, min_l2=5.0))()
    order = np.argsort(keys)
    np.testing.assert_array_equal(keys.numpy()[order], [11, 12, 13])
    np.testing.assert_array_equal(embeddings.numpy()[order], rows[1:4])
    assert held(table) == [-14, 10]


def test_it_happens_in_multiples_of_every_and_once_in_each(wrap):
    table = new_table()
    run = wrap(lambda: tf_ops.evict(table, DIM, min_l2=1.0, every=3))
    assert gone(run()) == []  # no step yet
    found = {}
    for number in range(1, 10):
        step(table, [number])
        found[number] = (gone(run()), gone(run()))
    assert found.pop(3) == ([1, 2, 3], [])
    assert found.pop(6) == ([4, 5, 6], [])
    assert found.pop(9) == ([7, 8, 9], [])
    assert all(pair == ([], []) for pair in found.values())


def test_it_comes_after_what_it_was_told_to(wrap):
    table = new_table()

    @wrap
    def train(keys):
        receipt = tf_ops.lookup(table, keys, DIM, True).receipt
        anchor = tf_ops.deposit(receipt, tf.zeros((tf.size(keys), DIM)))
        anchor = tf_ops.commit(table, anchor, [SGD])
        return tf_ops.evict(table, DIM, max_age=1, after=anchor)

    assert gone(train(tf.constant([1, 2]))) == []
    assert gone(train(tf.constant([2, 3]))) == [1]
    assert gone(train(tf.constant([4]))) == [2, 3]


def test_a_session_evicts_after_its_step():
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        table = tf_ops.table_handle(next(names), DIM, step_clock=True)
        keys = v1.placeholder(tf.int64, [None])
        receipt = tf_ops.lookup(table, keys, DIM, True).receipt
        anchor = tf_ops.deposit(receipt, tf.zeros((tf.size(keys), DIM)))
        anchor = tf_ops.commit(table, anchor, [SGD])
        evicted, rows = tf_ops.evict(table, DIM, max_age=2, every=2, after=anchor)
        assert evicted.shape.as_list() == [None]
        assert rows.shape.as_list() == [None, DIM]
        with v1.Session() as session:
            found = [
                sorted(session.run(evicted, {keys: ids}).tolist())
                for ids in ([1, 2], [2], [5], [2, 6], [6], [6])
            ]
    # In steps 2, 4 and 6 rows go that were trained two steps ago or more.
    assert found == [[], [], [], [1], [], [2, 5]]


def test_a_rocksdb_table_evicts_by_norm(wrap, tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        table = tf_ops.anonymous_table("evict", DIM, storage=str(storage.path))
        tf_ops.assign(table, tf.range(6), tf.reshape(tf.range(18.0), (6, DIM)))
        step(table, [0, 1])
        assert gone(wrap(lambda: tf_ops.evict(table, DIM, max_age=1000))()) == []
        step(table, [0, 1])
        assert gone(wrap(lambda: tf_ops.evict(table, DIM, min_l2=10.0))()) == [0, 1]
        assert held(table) == [2, 3, 4, 5]


def test_a_rocksdb_table_counts_steps_or_refuses_to(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        try:
            table = new_table(storage=str(storage.path))
        except tf.errors.InvalidArgumentError:
            return
        step(table, [1])
        step(table, [2])
        assert gone(tf_ops.evict(table, DIM, max_age=1)) == [1]


def test_nothing_goes_if_nothing_is_asked_for(wrap):
    table = new_table()
    step(table, [1])
    step(table, [2])
    assert gone(wrap(lambda: tf_ops.evict(table, DIM))()) == []
    assert held(table) == [1, 2]


@pytest.mark.parametrize("name", ["max_age", "every"])
def test_negative_attributes_are_refused(name):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=name):
        tf_ops.evict(new_table(), DIM, **{name: -1})


def test_a_max_age_beyond_32_bits_is_for_ever():
    table = new_table()
    step(table, [1])
    step(table, [2])
    assert gone(tf_ops.evict(table, DIM, max_age=2**62)) == []


def test_another_dim_than_the_tables_is_not_silent():
    table = new_table()
    step(table, [1])
    try:
        _, rows = tf_ops.evict(table, DIM + 1, min_l2=1.0)
    except tf.errors.InvalidArgumentError:
        return
    assert rows.shape == (1, DIM)


def test_an_evicted_row_starts_anew_and_its_admission_too(wrap):
    table = new_table(admission="frequency", admission_min_count=2)
    for _ in range(3):
        step(table, [1])
    assert held(table) == [1]
    assert gone(wrap(lambda: tf_ops.evict(table, DIM, min_l2=1.0))()) == [1]
    step(table, [1])
    assert held(table) == []
    step(table, [1])
    assert held(table) == [1]
