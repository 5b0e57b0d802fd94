"""The ops on an adaptive table: lookups, training, partition, in each way of running them."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from adaptive_ops import BUCKETS, DIM, look, new_table, own_keys, sgd, stats, train

from sok_embed import tf_ops

ERROR = tf.errors.InvalidArgumentError


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0), (3, 2, 4)], ids=str)
def test_lookups_of_any_shape_read_static_rows_first(wrap, shape, dtype):
    table = new_table()
    _, static = tf_ops.adaptive_tables(table)
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, shape)
    found = wrap(lambda k: look(table, k, False, dtype=dtype))(tf.constant(keys))
    buckets = tf_ops.adaptive_buckets(tf.constant(keys), BUCKETS)
    expected = tf_ops.lookup(static, buckets, DIM, False, dtype).embeddings
    assert found.shape == (*shape, DIM)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)
    assert stats(table)["rows"] == stats(table)["static_rows"] == 0


@pytest.mark.parametrize("shape", [[], [None], [2, None], None], ids=str)
def test_shapes_are_inferred(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.int64)])
    def read(keys):
        found = look(table, keys, False)
        buckets = tf_ops.adaptive_buckets(keys, BUCKETS)
        assert found.shape.rank == (None if shape is None else len(shape) + 1)
        assert buckets.shape.rank == (None if shape is None else len(shape))
        if shape is not None:
            assert found.shape.as_list() == [*shape, DIM]
        return found

    table = new_table()
    read.get_concrete_function()
    with tf.Graph().as_default():
        contents = tf_ops.adaptive_export(tf.compat.v1.placeholder(tf.resource, []), DIM)
    one = [[None], [None, DIM], [None, None], [None], [None], [None], [], [], [], [None]]
    assert [tensor.shape.as_list() for tensor in contents.by_name().values()] == [
        *one,
        *one,
        [None],
        [None],
    ]


def test_a_key_is_promoted_by_its_count_its_counts_or_its_mask(wrap):
    table = new_table(promote_after=3)
    run = wrap(lambda k, c, m: look(table, k, counts=c, mask=m))
    run(tf.constant([1, 2, 3]), tf.constant([2, 2, 9]), tf.constant([-1, -1, 0]))
    assert own_keys(table) == []
    run(tf.constant([1, 2, 4]), tf.constant([1, 0, 1]), tf.constant([-1, -1, 1]))
    assert own_keys(table) == [1, 4]
    wrap(lambda: look(table, [[2, 5], [5, 5]]))()
    assert own_keys(table) == [1, 2, 4, 5]


def test_gradients_go_to_the_own_row_or_to_the_static_row(wrap):
    table = new_table(promote_after=100)
    anchor = tf.Variable(0.0)
    before = look(table, [7, 8], False).numpy()
    assert len(set(tf_ops.adaptive_buckets(tf.constant([7, 8], tf.int64), BUCKETS).numpy())) == 2

    @wrap
    def step(keys, mask):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look(table, keys, mask=mask, anchor=anchor))
        return sgd(table, tape.gradient(loss, anchor))

    assert step(tf.constant([7, 7, 8, 7]), tf.constant([1, -1, -1, 0])) == 0.0
    np.testing.assert_array_equal(look(table, [7], False), before[:1] - 2)
    np.testing.assert_array_equal(look(table, [7, 8], False, mask=[0, 0]), before - 1)


@pytest.mark.parametrize("training", [True, False])
def test_a_lookup_without_an_anchor_has_no_gradient(training):
    table = new_table()
    with tf.GradientTape() as tape:
        scale = tf.Variable(2.0)
        loss = tf.reduce_sum(look(table, [1, 2], training)) * scale
    assert tape.gradient(loss, scale) is not None
    assert stats(table)["pending_gradients"] == 0


def test_bfloat16_gradients_are_deposited():
    table = new_table(promote_after=1)
    before = look(table, [3], False).numpy()
    train(table, [3], dtype=tf.bfloat16)
    after = look(table, [3], False).numpy()
    np.testing.assert_allclose(after, before - [[1, 2, 3, 4]], rtol=0, atol=1e-6)


def test_the_attributes_reach_the_table():
    table = new_table(max_rows=2, promote_after=1, demote_blend=1.0)
    assert stats(table)["max_rows"] == 2
    look(table, [1, 1, 2, 3, 3])
    assert own_keys(table) == [1, 3]
    train(table, [1])
    row = look(table, [1], False)
    assert tf_ops.adaptive_demote(table, tf.constant([1, 9, 1], tf.int64)) == 1
    np.testing.assert_allclose(look(table, [1], False, mask=[0]), row, rtol=0, atol=1e-6)

    table = new_table(promote_after=4, decay_every=1)
    look(table, [5] * 3)
    train(table, [6])
    look(table, [5] * 2)
    assert own_keys(table) == []
    look(table, [5])
    assert own_keys(table) == [5]

    for copy in (True, False):
        table = new_table(promote_after=2, copy_slots=copy)
        train(table, [1], "adagrad")
        look(table, [1])
        contents = tf_ops.adaptive_export(table, DIM)
        wanted = contents.static.slots if copy else contents.own.slot_start[None]
        np.testing.assert_array_equal(contents.own.slots, wanted)

    table = new_table(initializer="constant", initializer_a=3.5)
    np.testing.assert_array_equal(look(table, [1], False), np.full((1, DIM), 3.5))
    one, other = new_table(seed=1), new_table(seed=2)
    assert not np.array_equal(look(one, [1], False), look(other, [1], False))


def test_a_ttl_of_a_second_takes_rows_away():
    table = new_table(promote_after=1, ttl=1)
    start = tf.timestamp()
    look(table, [1])
    train(table, [1])
    assert own_keys(table) == [1] or tf.timestamp() > start + 1
    deadline = start + 20
    while own_keys(table) != [] and tf.timestamp() < deadline:
        train(table, [2], mask=[0])
        threading.Event().wait(0.2)
    assert own_keys(table) == []
    assert stats(table)["demoted"] == 1


def test_owners_hold_together_what_one_table_holds():
    one, owners = new_table(promote_after=2), 3
    many = [new_table(promote_after=2, owners=owners, owner=i) for i in range(owners)]
    random = np.random.default_rng(5)
    for _ in range(6):
        keys = random.integers(0, 25, 40)
        distinct, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        owner_of = tf_ops.adaptive_buckets(tf.constant(distinct), BUCKETS).numpy() % owners
        rows = np.empty([len(distinct), DIM], np.float32)
        for owner, table in enumerate(many):
            own = owner_of == owner
            rows[own] = look(table, distinct[own], counts=counts[own])
        np.testing.assert_array_equal(rows[inverse], look(one, keys))
    assert sorted(sum((own_keys(table) for table in many), [])) == own_keys(one) != []
    with pytest.raises(
        ERROR, match=r"'ada'.*belongs to worker . *, and this is worker \d of 3|'ada'.*belongs"
    ):
        look(many[0], np.arange(20))


def test_many_threads_can_train_one_table():
    table = new_table(promote_after=5, initializer="constant", initializer_a=0.0)
    anchor = tf.Variable(0.0)
    turns, count = 15, 6
    errors = []

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look(table, keys, anchor=anchor))
        return sgd(table, tape.gradient(loss, anchor))

    keys = tf.range(200, dtype=tf.int64)
    step(keys[:0])

    def work(i):
        try:
            for _ in range(turns):
                step(tf.roll(keys, i, 0))
                if i == 0:
                    contents = tf_ops.adaptive_export(table, DIM)
                    rows = contents.own.embeddings.numpy()
                    assert (rows == rows[:, :1]).all()
                    assert len(rows) == contents.counters[1] - contents.counters[2]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert own_keys(table) == list(range(200))
    assert stats(table)["pending_gradients"] == 0
    assert stats(table)["lookups"] == 200 * turns * count


def test_dropped_deposits_train_nothing(wrap):
    table = new_table(promote_after=1)
    anchor = tf.Variable(0.0)
    before = look(table, [1, 2]).numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(look(table, [1, 2, 2], mask=[1, 0, 1], anchor=anchor))
    tape.gradient(loss, anchor)
    assert stats(table)["pending_gradients"] == 3
    assert wrap(lambda: tf_ops.drop_deposits(table))() == 3
    assert tf_ops.drop_deposits(table) == 0
    sgd(table, 0.0, optimizer=3)
    np.testing.assert_array_equal(look(table, [1, 2], False), before)
    assert stats(table)["pending_gradients"] == stats(table)["steps"] == 0
