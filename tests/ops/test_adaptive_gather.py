"""`adaptive_mask_gather` forward: which rows are read and which are made, bit for bit."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from adaptive_gather_model import (
    BUCKETS,
    DIM,
    RULES,
    commit,
    gather,
    new_static,
    new_table,
    rows_of,
)

from sok_embed import kv, tf_ops
from sok_embed.tf_ops.native import ops


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


@pytest.fixture(params=["memory", "shards", "direct", "rocksdb"])
def table(request, tmp_path):
    if request.param == "shards":
        yield new_table(shards=300)
    elif request.param == "direct":
        yield new_table(direct=True, max_rows=1000)
    elif request.param == "rocksdb":
        storage = kv.Storage(tmp_path / "rows")
        yield new_table(storage=str(storage.path))
        storage.close()
    else:
        yield new_table()


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (300,), (4, 5), (2, 0, 3), (3, 2, 7)], ids=str)
def test_rows_of_both_kinds_lie_in_their_places(wrap, table, shape, dtype):
    random = np.random.default_rng(5)
    static = new_static()
    own = {key: random.normal(size=DIM).astype(np.float32) for key in range(0, 60, 2)}
    tf_ops.assign(table, tf.constant(list(own)), tf.constant(np.array(list(own.values()))))
    keys = random.integers(0, 60, shape)
    mask = random.integers(0, 2, shape).astype(np.int32)
    read = wrap(lambda k, m: gather(table, static, k, m, make_rows=False, dtype=dtype))
    found = read(tf.constant(keys), tf.constant(mask))
    values = static.numpy()
    expected = [
        own[key] if key in own and route == 1 else values[key % BUCKETS]
        for key, route in zip(keys.ravel().tolist(), mask.ravel().tolist(), strict=True)
    ]
    expected = tf.cast(np.reshape(expected, (*shape, DIM)).astype(np.float32), dtype)
    assert found.dtype == dtype
    assert found.shape == (*shape, DIM)
    np.testing.assert_array_equal(found, expected)
    assert tf_ops.size(table) == len(own)


def test_a_batch_of_many_blocks_is_gathered(wrap):
    table, static = new_table(), new_static(5000)
    random = np.random.default_rng(6)
    keys = random.integers(-(2**63), 2**63 - 1, 20_000)[random.integers(0, 20_000, 100_000)]
    buckets, mask = random.integers(0, 5000, 100_000), random.integers(0, 2, 100_000)
    first = np.full(100_000, -1)
    seen = {}
    for i in np.flatnonzero(mask):
        first[i] = seen.setdefault(keys[i], buckets[i])
    run = wrap(lambda: gather(table, static, keys, mask, buckets))
    run()
    expected = static.numpy()[np.where(mask == 1, first, buckets)]
    np.testing.assert_array_equal(run(), expected)
    assert tf_ops.size(table) == len(seen)


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_new_row_is_its_static_row_bit_for_bit(wrap, table, dtype):
    odd = np.array([np.nan, -0.0, np.inf, 1e-40, 1 + 2**-20], np.float32)
    static = tf.Variable(np.stack([odd, *new_static().numpy()[1:]]))
    run = wrap(lambda k, m: gather(table, static, k, m, dtype=dtype))
    keys = tf.constant([0, 3, 3, 15, 700, 5], tf.int64)
    run(keys, tf.constant([1, 1, 0, 1, 1, 0]))
    rows = rows_of(table)
    assert sorted(rows) == [0, 3, 15, 700]
    for key, row in rows.items():
        wanted = static.numpy()[key % BUCKETS]
        np.testing.assert_array_equal(row.view(np.int32), wanted.view(np.int32))
    static.assign(tf.fill(static.shape, 9.0))
    found = run(keys, tf.constant([0, 1, 0, 1, 0, 1]))  # 5 starts as what is there now
    expected = np.stack([np.full(DIM, 9), rows[3], np.full(DIM, 9), rows[15], *[[9] * DIM] * 2])
    np.testing.assert_array_equal(found, tf.cast(expected.astype(np.float32), dtype))
    np.testing.assert_array_equal(rows_of(table)[5], np.full(DIM, 9))


def test_without_make_rows_a_key_of_mask_1_reads_its_static_row(wrap, table):
    static = new_static()
    found = wrap(lambda: gather(table, static, [3, 4, 3], [1, 0, 1], make_rows=False))()
    np.testing.assert_array_equal(found, static.numpy()[[3, 4, 3]])
    assert tf_ops.size(table) == 0


@pytest.mark.parametrize("kind", ["frequency", "counting_bloom"])
def test_admission_counts_each_occurrence_of_mask_1_in_lookups_that_make_rows(wrap, kind):
    table = new_table(admission=kind, admission_min_count=3, admission_capacity=1000)
    static = new_static()
    run = wrap(lambda k, m, make: gather(table, static, k, m, make_rows=make))
    keys = tf.constant([8, 9, 8, 9, 8, 9], tf.int64)
    for _ in range(3):
        gather(table, static, keys, [1] * 6, make_rows=False)
        gather(table, static, keys, [0] * 6)
    np.testing.assert_array_equal(
        run(keys, tf.constant([1, 1, 1, 0, 0, 1]), True), static.numpy()[keys.numpy() % BUCKETS]
    )
    assert tf_ops.size(table) == 0
    run(keys, tf.constant([1, 0, 0, 0, 0, 0]), True)
    assert sorted(rows_of(table)) == [8]
    # The key was seen twice before, and the third time here: in the second of two places.
    run(tf.constant([10, 9, 9], tf.int64), tf.constant([1, 1, 1]), True)
    assert sorted(rows_of(table)) == [8, 9]
    np.testing.assert_array_equal(rows_of(table)[9], static.numpy()[2])
    run(tf.constant([10, 10], tf.int64), tf.constant([1, 1]), True)
    assert sorted(rows_of(table)) == [8, 9, 10]


def test_of_places_with_different_buckets_the_first_starts_the_row(wrap):
    table, static = new_table(), new_static()
    run = wrap(lambda: gather(table, static, [5, 5, 5], [0, 1, 1], buckets=[0, 4, 2]))
    run()
    np.testing.assert_array_equal(rows_of(table)[5], static.numpy()[4])
    np.testing.assert_array_equal(run(), static.numpy()[[0, 4, 4]])


def test_a_full_table_is_an_error_and_stays_as_it_was(wrap):
    table, static = new_table(max_rows=3), new_static()
    gather(table, static, [1, 2], [1, 1])
    with pytest.raises(tf.errors.ResourceExhaustedError, match="'gather'.*2 of at most 3 rows"):
        wrap(lambda: gather(table, static, [1, 3, 4], [1, 1, 1]))()
    assert sorted(rows_of(table)) == [1, 2]
    wrap(lambda: gather(table, static, [1, 3, 4], [1, 1, 0]))()
    assert sorted(rows_of(table)) == [1, 2, 3]


@pytest.mark.cover("values")
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("rule", ["adagrad", "ftrl"])
def test_rows_made_after_a_commit_copy_the_slots_that_it_named(wrap, table, rule, copy):
    static = new_static()
    starts = RULES[rule][0].starts
    random = np.random.default_rng(7)
    slots = [tf.Variable(random.uniform(1, 2, (BUCKETS, DIM)).astype(np.float32)) for _ in starts]

    def step(keys, sources):
        anchor = tf.constant(0.0)
        gather(table, static, keys, [1] * len(keys), copy_slots=copy)
        receipt = tf_ops.lookup(table, tf.constant(keys), DIM, False).receipt
        anchor = tf_ops.deposit(receipt, tf.zeros((len(keys), DIM)))
        commit(table, anchor, rule, slot_sources=sources)

    def slots_of_row(key):
        contents = tf_ops.export(table, DIM, with_slots=True)
        return contents.slots.numpy()[contents.keys.numpy().tolist().index(key)]

    fresh = np.repeat(np.array(starts, np.float32), DIM)
    step([1, 2], [])
    np.testing.assert_array_equal(slots_of_row(1), fresh)  # nobody knew of slots
    step([3], [slot.handle for slot in slots])
    # This row was made before the commit said so.
    np.testing.assert_array_equal(slots_of_row(3), fresh)
    slots[0].assign_add(tf.ones_like(slots[0]))  # the ones of the time at which a row is made
    wrap(lambda: gather(table, static, [4, 11, 4], [1, 1, 0], copy_slots=copy))()
    for key in (4, 11):
        copied = np.concatenate([slot.numpy()[key % BUCKETS] for slot in slots])
        np.testing.assert_array_equal(slots_of_row(key), copied if copy else fresh)
        np.testing.assert_array_equal(rows_of(table)[key], static.numpy()[4])
    step([5], [])  # a commit that names none leaves what is known
    np.testing.assert_array_equal(
        slots_of_row(5), np.concatenate([s.numpy()[5] for s in slots]) if copy else fresh
    )


def test_slots_of_another_shape_than_the_rules_are_not_copied():
    table, static = new_table(), new_static()
    gather(table, static, [1], [1])
    receipt = tf_ops.lookup(table, tf.constant([1]), DIM, False).receipt
    wrong = tf.Variable(tf.ones((BUCKETS, DIM + 1)))
    anchor = tf_ops.deposit(receipt, tf.zeros((1, DIM)))
    commit(table, anchor, "adagrad", slot_sources=[wrong.handle])
    gather(table, static, [2], [1])
    slots = tf_ops.export(table, DIM, with_slots=True).slots.numpy()
    np.testing.assert_array_equal(slots, np.full((2, DIM), 0.1, np.float32))


def test_slots_for_fewer_static_rows_are_an_error():
    table, static = new_table(), new_static()
    commit(table, tf.constant(0.0), "adagrad", slot_sources=[tf.Variable(tf.ones((2, DIM))).handle])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"slot for each static row.*\[2,5\]"):
        gather(table, static, [4], [1])
    assert tf_ops.size(table) == 0


@pytest.mark.parametrize("shape", [[], [None], [5], [2, None, 4], None], ids=str)
def test_shapes_are_inferred(shape):
    with tf.Graph().as_default():
        table = tf_ops.table_handle("gather_shapes", DIM)
        static = tf.compat.v1.get_variable("static", (BUCKETS, DIM), use_resource=True)
        keys = tf.compat.v1.placeholder(tf.int64, shape)
        mask = tf.compat.v1.placeholder(tf.int32, shape)
        found = gather(table, static, keys, mask)
        (slices,) = tf.gradients(found, static)
    assert found.shape.rank == (None if shape is None else len(shape) + 1)
    if shape is not None:
        assert found.shape.as_list() == [*shape, DIM]
    assert slices.values.shape.as_list() == [None, DIM]
    assert slices.indices.shape.as_list() == [None]


def test_a_shape_that_one_input_lacks_comes_from_the_others():
    with tf.Graph().as_default():
        table = tf_ops.table_handle("gather_shapes_merged", DIM)
        static = tf.compat.v1.get_variable("static", (BUCKETS, DIM), use_resource=True)
        keys = tf.compat.v1.placeholder(tf.int64, None)
        buckets = tf.compat.v1.placeholder(tf.int64, [3, None])
        mask = tf.compat.v1.placeholder(tf.int32, [None, 2])
        assert gather(table, static, keys, mask, buckets).shape.as_list() == [3, 2, DIM]


def test_it_is_one_op():
    with tf.Graph().as_default() as graph:
        table = tf_ops.table_handle("gather_ops", DIM)
        static = tf.compat.v1.get_variable("static", (BUCKETS, DIM), use_resource=True)
        gather(table, static, tf.zeros(3, tf.int64), tf.zeros(3, tf.int32))
        types = {op.type for op in graph.get_operations()}
    assert "SokEmbed>AdaptiveMaskGather" in types
    assert not types & {"DynamicPartition", "DynamicStitch", "ParallelDynamicStitch", "Where"}
    assert hasattr(ops, "sok_embed_adaptive_mask_gather")


def test_threads_that_gather_while_others_assign_see_no_torn_row():
    """The floats of a static row are equal at any time, so those of own rows are too."""
    table, static = new_table(), tf.Variable(tf.zeros((BUCKETS, DIM)))
    run = tf.function(lambda k, m: gather(table, static, k, m))
    errors = []

    def work(i):
        random = np.random.default_rng(i)
        try:
            for turn in range(40):
                if i == 0:
                    static.assign(tf.fill(static.shape, float(turn)))
                elif i == 1:
                    tf_ops.remove(table, tf.constant(random.integers(0, 400, 100)))
                    rows = tf_ops.export(table, DIM, with_slots=False).embeddings.numpy()
                    assert (rows == rows[:, :1]).all()
                else:
                    mask = tf.constant(random.integers(0, 2, 500), tf.int32)
                    rows = run(tf.constant(random.integers(0, 400, 500)), mask).numpy()
                    assert (rows == rows[:, :1]).all()
        except BaseException as error:
            errors.append(error)

    run(tf.constant([1], tf.int64), tf.constant([1]))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
