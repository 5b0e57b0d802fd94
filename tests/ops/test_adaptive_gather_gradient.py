"""Where gradients of `adaptive_mask_gather` go, against NumPy, in each way of running it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_gather_model import (
    BUCKETS,
    DIM,
    RULES,
    Gather,
    commit,
    gather,
    new_static,
    new_table,
    pending,
    rows_of,
    slots_of,
)

from sok_embed import kv, tf_ops

names = (f"gather_{i}" for i in itertools.count())


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


def batches(seed, steps, shape=(6, 4), keys=40):
    """Yields keys of which some come often, masks, and gradients of the order of 1."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        ids = np.minimum(random.zipf(1.3, shape), keys) - 5
        mask = random.integers(0, 2, shape).astype(np.int32)
        yield ids, mask, random.normal(size=(*shape, DIM)).astype(np.float32)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("make_rows", [True, False])
def test_slices_of_the_variable_sum_to_the_dense_gradient(wrap, make_rows, dtype):
    table, static = new_table(), new_static()
    anchor = tf.Variable(0.0)
    tf_ops.assign(table, tf.range(0, 40, 3), tf.ones((14, DIM)))
    held = {int(key) for key in range(0, 40, 3)}

    @wrap
    def gradients(keys, mask, coefficients):
        with tf.GradientTape() as tape:
            found = gather(
                table, static, keys, mask, make_rows=make_rows, anchor=anchor, dtype=dtype
            )
            loss = tf.reduce_sum(tf.cast(found, tf.float32) * coefficients)
        return tape.gradient(loss, [static, anchor])

    for keys, mask, upstream in batches(1, 5):
        slices, of_anchor = gradients(tf.constant(keys), tf.constant(mask), tf.constant(upstream))
        assert isinstance(slices, tf.IndexedSlices)
        assert slices.values.dtype == tf.float32
        upstream = tf.cast(tf.cast(upstream, dtype), tf.float32).numpy()
        expected = np.zeros((BUCKETS, DIM))
        shared, buckets = 0, set()
        for key, route, g in zip(
            keys.ravel(), mask.ravel(), upstream.reshape(-1, DIM), strict=True
        ):
            if route == 0 or (not make_rows and int(key) not in held):
                expected[key % BUCKETS] += g
                shared += 1
                buckets.add(int(key) % BUCKETS)
        # Each index is there once: optimizers that square a gradient must square the sum.
        assert sorted(slices.indices.numpy()) == sorted(buckets)
        assert tuple(slices.dense_shape.numpy()) == (BUCKETS, DIM)
        # This allows for sums of 24 float32 at most, of the order of 1.
        np.testing.assert_allclose(tf.convert_to_tensor(slices), expected, rtol=0, atol=1e-5)
        assert of_anchor == 0.0
        assert pending(table) == keys.size - shared
        tf_ops.drop_deposits(table)


@pytest.mark.cover("values")
@pytest.mark.parametrize("storage", [False, True], ids=["memory", "rocksdb"])
@pytest.mark.parametrize("min_count", [1, 3])
@pytest.mark.parametrize("rule", list(RULES))
def test_steps_of_both_kinds_of_rows_equal_numpy(wrap, rule, min_count, storage, tmp_path):
    static = new_static()
    model = Gather(static.numpy(), RULES[rule][0], min_count)
    starts = RULES[rule][0].starts
    slots = [tf.Variable(tf.fill(static.shape, start)) for start in starts]
    options = {"admission": "frequency", "admission_min_count": min_count} if min_count > 1 else {}
    opened = kv.Storage(tmp_path / "rows") if storage else None
    if opened is not None:
        options["storage"] = str(opened.path)
    table, anchor = new_table(**options), tf.Variable(0.0)
    commit(table, anchor, rule, slot_sources=[slot.handle for slot in slots])

    @wrap
    def step(keys, mask, coefficients):
        with tf.GradientTape() as tape:
            found = gather(table, static, keys, mask, anchor=anchor)
            loss = tf.reduce_sum(found * coefficients)
        slices, of_anchor = tape.gradient(loss, [static, anchor])
        committed = commit(table, of_anchor, rule, slot_sources=[slot.handle for slot in slots])
        return found, slices, committed

    for keys, mask, gradients in batches(2, 8):
        found, _, committed = step(tf.constant(keys), tf.constant(mask), tf.constant(gradients))
        expected = model.step(keys, keys % BUCKETS, mask, gradients)
        # 1e-5 allows for a few float32 steps of the order of 1.
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        assert committed == 0.0
        # The static rows' own optimizer is the model's, so that only own rows are in question.
        static.assign(np.array([row.embedding for row in model.static]))
        for i, slot in enumerate(slots):
            slot.assign(np.array([row.slots[i] for row in model.static]))
        rows = rows_of(table)
        assert sorted(rows) == sorted(model.own)
        for key, row in model.own.items():
            np.testing.assert_allclose(rows[key], row.embedding, rtol=0, atol=1e-5)
    for key, row in slots_of(table).items():
        flat = np.concatenate([slot.ravel() for slot in model.own[key].slots] or [np.zeros(0)])
        np.testing.assert_allclose(row, flat, rtol=1e-5, atol=1e-4)
    assert pending(table) == 0
    if opened is not None:
        opened.close()


def test_a_tf1_session_trains_both_kinds_of_rows():
    v1 = tf.compat.v1
    start = new_static().numpy()
    model = Gather(start, RULES["sgd"][0])
    with tf.Graph().as_default():
        table = tf_ops.table_handle(next(names), DIM)
        static = v1.get_variable("static", initializer=start, use_resource=True)
        anchor = v1.get_variable(
            "anchor",
            shape=(),
            initializer=v1.zeros_initializer(),
            use_resource=True,
            constraint=lambda value: commit(table, value, "sgd"),
        )
        keys, mask = v1.placeholder(tf.int64, [None, None]), v1.placeholder(tf.int32, [None, None])
        coefficients = v1.placeholder(tf.float32, [None, None, DIM])
        found = gather(table, static, keys, mask, anchor=anchor)
        loss = tf.reduce_sum(found * coefficients)
        optimizer = v1.train.GradientDescentOptimizer(RULES["sgd"][1]["learning_rate"])
        gradients_of_both = optimizer.compute_gradients(loss, [static, anchor])
        assert isinstance(gradients_of_both[0][0], tf.IndexedSlices)
        train = optimizer.apply_gradients(gradients_of_both)
        contents = tf_ops.export(table, DIM, with_slots=False)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for ids, route, gradients in batches(3, 4):
                feed = {keys: ids, mask: route, coefficients: gradients}
                before = session.run(found, feed)
                session.run(train, feed)
                expected = model.step(ids, ids % BUCKETS, route, gradients)
                np.testing.assert_allclose(before, expected, rtol=0, atol=1e-5)
            rows = session.run(contents)
    assert sorted(rows.keys) == sorted(model.own)
    for key, row in zip(rows.keys.tolist(), rows.embeddings, strict=True):
        np.testing.assert_allclose(row, model.own[key].embedding, rtol=0, atol=1e-5)


def test_no_anchor_is_no_gradient_of_own_rows_and_leaves_no_deposit(wrap):
    table, static = new_table(), new_static()

    @wrap
    def gradient(keys, mask):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(gather(table, static, keys, mask))
        return tape.gradient(loss, static)

    slices = gradient(tf.constant([1, 2, 3], tf.int64), tf.constant([1, 0, 1]))
    np.testing.assert_array_equal(slices.indices, [2])
    assert pending(table) == 0


def test_a_keras_variable_and_a_handle_are_taken_as_variables_are(wrap):
    table, values = new_table(), new_static()
    weight = keras.Variable(values.numpy())
    keys, mask = tf.constant([1, 2, 8], tf.int64), tf.constant([0, 0, 1])
    expected = values.numpy()[[1, 2, 1]]
    np.testing.assert_array_equal(wrap(lambda: gather(table, weight, keys, mask))(), expected)
    np.testing.assert_array_equal(
        wrap(lambda: gather(table, values.handle, keys, mask))(), expected
    )

    @wrap
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(gather(table, weight, keys, mask))
        return tape.gradient(loss, weight.value)

    np.testing.assert_array_equal(tf.convert_to_tensor(gradient())[:4, 0], [0, 1, 1, 0])


def test_a_gradient_that_comes_as_slices_is_taken(wrap):
    table, static, anchor = new_table(), new_static(), tf.Variable(0.0)

    @wrap
    def step():
        with tf.GradientTape() as tape:
            found = gather(table, static, [1, 2, 3, 4], [1, 0, 1, 0], anchor=anchor)
            loss = tf.reduce_sum(tf.gather(found, [0, 1, 1]))
        slices, of_anchor = tape.gradient(loss, [static, anchor])
        return tf.convert_to_tensor(slices), commit(table, of_anchor, "sgd")

    dense, _ = step()
    np.testing.assert_array_equal(dense[:, 0], [0, 0, 2, 0, 0, 0, 0])
    rows = rows_of(table)
    np.testing.assert_allclose(rows[1], static.numpy()[1] - 0.25, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(rows[3], static.numpy()[3])


def test_in_a_function_a_gradient_for_other_variables_leaves_no_deposit():
    table, static, anchor = new_table(), new_static(), tf.Variable(0.0)
    scale = tf.Variable(2.0)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(gather(table, static, [1, 2], [1, 0], anchor=anchor)) * scale
        return tape.gradient(loss, [scale, static])

    gradient()
    assert pending(table) == 0


def test_a_row_made_in_this_step_takes_its_gradient_and_the_static_row_none(wrap):
    table, static, anchor = new_table(), new_static(), tf.Variable(0.0)
    before = static.numpy()

    @wrap
    def step():
        with tf.GradientTape() as tape:
            found = gather(table, static, [4, 4, 11], [1, 1, 0], anchor=anchor)
            loss = tf.reduce_sum(found)
        slices, of_anchor = tape.gradient(loss, [static, anchor])
        return slices, commit(table, of_anchor, "sgd")

    slices, _ = step()
    np.testing.assert_array_equal(slices.indices, [4])
    np.testing.assert_allclose(rows_of(table)[4], before[4] - 2 * 0.25, rtol=0, atol=1e-6)
    assert tf_ops.steps(table) == 1


def test_the_fed_gradient_of_the_static_rows_is_that_of_finite_differences():
    table, static = new_table(), new_static()
    gather(table, static, [1, 3], [1, 1])

    def read(values):
        copy = tf.Variable(values)
        with tf.GradientTape() as tape:
            found = gather(table, copy, [1, 2, 2, 3, 5], [1, 0, 0, 0, 0])
            loss = tf.reduce_sum(found * found)
        return loss, tf.convert_to_tensor(tape.gradient(loss, copy))

    _, analytic = read(static.numpy())
    step = 2.0**-6
    for bucket, column in ((2, 0), (3, 1), (5, 4), (1, 2), (0, 0)):
        ahead, behind = static.numpy(), static.numpy()
        ahead[bucket, column] += step
        behind[bucket, column] -= step
        numeric = (read(ahead)[0] - read(behind)[0]) / (2 * step)
        # The loss is quadratic, so this is exact but for float32 sums of the order of 10.
        np.testing.assert_allclose(analytic[bucket, column], numeric, rtol=0, atol=1e-3)


def test_a_row_removed_between_lookup_and_commit_does_not_start_as_the_tables_own_would():
    table, static, anchor = new_table(), new_static(), tf.Variable(0.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(gather(table, static, [4], [1], anchor=anchor))
    _, of_anchor = tape.gradient(loss, [static, anchor])
    tf_ops.remove(table, tf.constant([4]))
    commit(table, of_anchor, "sgd")
    # No row starts from the initializer's 7: it is gone, or it is the static row with the step.
    for row in rows_of(table).values():
        np.testing.assert_allclose(row, static.numpy()[4] - 0.25, rtol=0, atol=1e-6)
