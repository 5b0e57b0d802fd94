"""The ops themselves: eagerly, in a tf.function, in a TF1 graph, from many threads."""

import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.binding import _core
from sok_embed.tf_ops.native import ops

DIM = 4
ERROR = tf.errors.InvalidArgumentError
ZEROS = {"initializer": "constant", "initializer_a": 0.0}
RATE = {"learning_rate": 1.0}
names = (f"table_{i}" for i in itertools.count())


def new_table(dim=DIM, **attributes):
    return tf_ops.anonymous_table("ops", dim, **{**ZEROS, **attributes})


def uniform_table(**attributes):
    return new_table(initializer="uniform", initializer_a=-1.0, initializer_b=1.0, **attributes)


def sgd(table, gradient, step=0, **redemption):
    steps = [tf_ops.RuleStep("sgd", RATE, step)]
    return tf_ops.commit(table, gradient, steps, tf_ops.Redemption(**redemption))


def read(table, keys, dim=DIM):
    return tf_ops.lookup(table, tf.constant(keys, tf.int64), dim, False).embeddings.numpy()


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_lookup_reads_keys_of_each_dtype(wrap, dtype):
    table = uniform_table()
    keys = tf.constant([[1, 2, 3], [3, 2, 1]], dtype)
    found = wrap(lambda k: tf_ops.lookup(table, k, DIM, True).embeddings)(keys)
    assert found.shape == (2, 3, DIM)
    assert tf_ops.size(table) == 3
    np.testing.assert_array_equal(found, read(table, keys.numpy().astype(np.int64)))


def test_lookup_rounds_to_bfloat16(wrap):
    table = uniform_table()
    keys = tf.range(100, dtype=tf.int64)
    found = wrap(lambda k: tf_ops.lookup(table, k, DIM, True, tf.bfloat16).embeddings)(keys)
    assert found.dtype == tf.bfloat16
    np.testing.assert_array_equal(found, tf.cast(read(table, range(100)), tf.bfloat16))


@pytest.mark.parametrize(
    "shape", [[], [None], [5], [None, 3], [2, None, 4], None], ids=lambda shape: str(shape)
)
def test_lookup_infers_its_shape(shape):
    with tf.Graph().as_default():
        table = tf_ops.table_handle("shapes", DIM)
        keys = tf.compat.v1.placeholder(tf.int64, shape)
        found = tf_ops.lookup(table, keys, DIM, True)
    if shape is None:
        assert found.embeddings.shape.rank is None
    else:
        assert found.embeddings.shape.as_list() == [*shape, DIM]
    assert found.receipt.shape.as_list() == []


def test_deposit_and_commit_apply_the_sum_of_equal_keys_once(wrap):
    table = new_table()

    @wrap
    def step(keys, gradients):
        found = tf_ops.lookup(table, keys, DIM, True)
        return sgd(table, tf_ops.deposit(found.receipt, gradients))

    gradients = np.arange(12, dtype=np.float32).reshape(3, DIM)
    assert step(tf.constant([1, 2, 1], tf.int64), tf.constant(gradients)) == 0.0
    expected = -np.stack([gradients[0] + gradients[2], gradients[1]])
    np.testing.assert_array_equal(read(table, [1, 2]), expected)
    assert tf_ops.steps(table) == 1


def test_deposit_takes_bfloat16(wrap):
    table = new_table()

    @wrap
    def step(keys, gradients):
        found = tf_ops.lookup(table, keys, DIM, True, tf.bfloat16)
        return sgd(table, tf_ops.deposit(found.receipt, gradients))

    step(tf.constant([1, 1], tf.int64), tf.constant([[1.5] * DIM, [256.0] * DIM], tf.bfloat16))
    # The sum is in float32: 257.5 has no bfloat16.
    np.testing.assert_array_equal(read(table, [1]), [[-257.5] * DIM])


def test_commit_scales_gradients(wrap):
    table = new_table()

    @wrap
    def step(keys):
        receipt = tf_ops.lookup(table, keys, DIM, True).receipt
        return sgd(table, tf_ops.deposit(receipt, tf.ones((1, DIM))), scale=0.25)

    step(tf.constant([1], tf.int64))
    np.testing.assert_array_equal(read(table, [1]), [[-0.25] * DIM])


def test_commit_without_deposits_does_nothing():
    table = new_table()
    assert sgd(table, tf.constant(3.0)) == 0.0  # the anchor, whatever has become of it
    assert tf_ops.steps(table) == 0


def test_commit_refuses_an_unknown_rule():
    with pytest.raises(ERROR, match="no_such_rule"):
        tf_ops.commit(new_table(), tf.constant(0.0), [tf_ops.RuleStep("no_such_rule")])


def test_an_unknown_rule_comes_with_the_names_that_ops_take():
    table = new_table()
    with pytest.raises(ERROR) as caught:
        tf_ops.commit(table, tf.constant(0.0), [tf_ops.RuleStep("kv_no")])
    taken = ", ".join(_core.rule_names())
    assert f'Expected a row optimizer of {taken}. Received: "kv_no".' in str(caught.value)


def test_commit_refuses_an_unknown_parameter():
    with pytest.raises(ERROR, match="momentun"):
        tf_ops.commit(new_table(), tf.constant(0.0), [tf_ops.RuleStep("sgd", {"momentun": 1.0})])


def test_commit_wants_one_value_for_each_parameter(wrap):
    table = new_table()
    step = tf_ops.RuleStep("sgd", {"learning_rate": tf.ones(2, tf.float64)})
    with pytest.raises(ERROR, match=r"learning_rate to be a scalar, got shape \[2\]"):
        wrap(lambda: tf_ops.commit(table, tf.constant(0.0), [step]))()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"table_rules": [1]}, "number of a rule, got 1"),
        ({"table_rules": [0, 0]}, "one value a rule, a name and a table"),
        ({"hyper_counts": [2]}, "one value a rule, a name and a table"),
        ({"listed": [1]}, "number of a table, got 1"),
        ({"listed": [0]}, "num_lists of 1, got 0"),
        ({"clip_values": []}, "one value a rule, a name and a table"),
        ({"queue": [None, None]}, "one table, or tables with one queue, got 1 tables and 2 queues"),
        ({"redeemed": [tf.zeros(3)]}, r"gradient of an anchor, a vector of 192, got shape \[3\]"),
    ],
)
def test_commit_refuses_inputs_that_do_not_fit_each_other(change, text):
    given = {
        "queue": [],
        "tables": [new_table()],
        "anchor": 0.0,
        "hypers": [1.0],
        "steps": [0],
        "scale": 1.0,
        "redeemed": [],
        "slot_sources": [],
        "table_rules": [0],
        "rules": ["sgd"],
        "hyper_names": ["learning_rate"],
        "hyper_counts": [1],
        "optimizers": [0],
        "first_steps": [1],
        "clip_values": [0.0],
        "plain": True,
        "clipped_to": 0.0,
        "listed": [],
        "num_lists": 0,
    }
    ops.sok_embed_commit(**given)
    if "queue" in change:
        change = {"queue": [tf_ops.anonymous_collection_queue("queue", [])] * 2}
    with pytest.raises(ERROR, match=text):
        ops.sok_embed_commit(**given | change)


def test_deposit_refuses_gradients_of_another_size():
    receipt = tf_ops.lookup(new_table(), tf.constant([1, 2]), DIM, True).receipt
    with pytest.raises(ERROR, match=r"'ops': expected gradients of 2 keys x 4, got shape \[2,3\]"):
        tf_ops.deposit(receipt, tf.ones((2, 3)))


def test_deposit_refuses_what_is_no_receipt():
    other = tf.raw_ops.EmptyTensorList(
        element_shape=tf.zeros(0, tf.int32), max_num_elements=1, element_dtype=tf.float32
    )
    with pytest.raises(ERROR, match="expected the receipt of a lookup"):
        tf_ops.deposit(other, tf.ones((1, DIM)))


def test_deposit_refuses_the_zero_that_stands_for_the_gradient_of_a_receipt():
    receipt = tf_ops.lookup(new_table(), tf.constant([1]), DIM, True).receipt
    with pytest.raises(ERROR, match="expected the receipt of a lookup"):
        tf_ops.deposit(tf.zeros_like(receipt), tf.ones((1, DIM)))


def test_lookup_refuses_another_dim_than_the_tables():
    with pytest.raises(ERROR, match="'ops' has dim 4, the lookup expected 5"):
        tf_ops.lookup(new_table(), tf.constant([1]), 5, True)


@pytest.mark.parametrize(
    "attributes", [{"initializer": "no_such"}, {"direct": True}], ids=["initializer", "direct"]
)
def test_a_table_that_cannot_be_made_is_an_error(attributes):
    with pytest.raises(ERROR, match="'ops'"):
        new_table(**attributes)


def test_a_name_belongs_to_one_table():
    name = next(names)
    tf_ops.table_handle(name, DIM, initializer="constant")
    again = tf_ops.table_handle(name, DIM, initializer="constant")
    tf_ops.assign(again, tf.constant([1]), tf.ones((1, DIM)))
    np.testing.assert_array_equal(read(tf_ops.table_handle(name, DIM), [1]), np.ones((1, DIM)))
    with pytest.raises(ERROR, match="exists with dim 4, dim 5 was asked for"):
        tf_ops.table_handle(name, 5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_assign_export_and_remove_take_keys_of_each_dtype(wrap, dtype):
    table = new_table()

    @wrap
    def assign(keys, values):
        tf_ops.assign(table, keys, values)
        return tf_ops.size(table)

    assert assign(tf.constant([3, 1, 2], dtype), tf.ones((3, DIM))) == 3
    contents = wrap(lambda: tf_ops.export(table, DIM, with_slots=False))()
    assert sorted(contents.keys.numpy()) == [1, 2, 3]
    np.testing.assert_array_equal(contents.embeddings, np.ones((3, DIM)))
    assert wrap(lambda k: tf_ops.remove(table, k))(tf.constant([1, 9], dtype)) == 1


def test_export_infers_its_shapes():
    with tf.Graph().as_default():
        contents = tf_ops.export(tf_ops.table_handle("shapes", DIM), DIM, with_slots=True)
    shapes = [tensor.shape.as_list() for tensor in contents]
    per_row = [[None], [None, DIM], [None, None], [None], [None]]
    assert shapes == [*per_row, [None], [], [], [], [None]]


def test_export_and_restore_carry_a_table_over(wrap):
    table, other = uniform_table(), new_table()
    receipt = tf_ops.lookup(table, tf.range(100), DIM, True).receipt
    deposited = tf_ops.deposit(receipt, tf.ones((100, DIM)))
    tf_ops.commit(table, deposited, [tf_ops.RuleStep("adam")])

    @wrap
    def carry():
        tf_ops.restore(other, tf_ops.export(table, DIM, with_slots=True))
        return tf_ops.size(other)

    assert carry() == 100
    np.testing.assert_array_equal(read(other, range(100)), read(table, range(100)))


def test_stats_are_names_and_values():
    tf_names, values = tf_ops.stats(new_table())
    assert tf_names.shape == values.shape
    assert b"rows" in tf_names.numpy()


def test_a_tf1_optimizer_commits_through_the_constraint_of_the_anchor():
    keys_value = np.array([5, 5, -7])
    coefficients_value = np.array([[1.0], [2.0], [4.0]], np.float32)
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        table = tf_ops.table_handle("tf1", DIM, initializer="uniform", seed=3)
        keys = v1.placeholder(tf.int64, [None])
        coefficients = v1.placeholder(tf.float32, [None, 1])
        anchor = v1.get_variable(
            "anchor",
            shape=(),
            initializer=v1.zeros_initializer(),
            use_resource=True,
            constraint=lambda value: tf_ops.commit(
                table, value, [tf_ops.RuleStep("sgd", {"learning_rate": 0.5})]
            ),
        )
        found = tf_ops.lookup(table, keys, DIM, True, anchor=anchor).embeddings
        loss = tf.reduce_sum(found * coefficients)
        train = v1.train.FtrlOptimizer(0.1).minimize(loss)
        assert found.shape.as_list() == [None, DIM]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            feed = {keys: keys_value, coefficients: coefficients_value}
            before = session.run(found, feed)
            for _ in range(3):
                session.run(train, feed)
            after, anchor_value, steps = session.run([found, anchor, tf_ops.steps(table)], feed)
    sums = np.array([[3.0], [3.0], [4.0]])
    # This allows for three float32 subtractions.
    np.testing.assert_allclose(after, before - 3 * 0.5 * sums, rtol=0, atol=1e-6)
    assert anchor_value == 0.0 and steps == 3


def test_a_deferred_commit_leaves_gradients_that_read_rows_finds_and_assign_rows_replaces(wrap):
    table = new_table(dim=2)

    def step(keys):
        found = tf_ops.lookup(table, keys, 2, True)
        anchor = tf_ops.deposit(found.receipt, tf.constant([[1.0, 2], [3, 4], [5, 6]]))
        steps = [tf_ops.RuleStep("deferred_1", {"initial_0": 7.0}, 3)]
        tf_ops.commit(table, anchor, steps, tf_ops.Redemption(scale=0.5))
        held, rows = tf_ops.read_rows(table, tf.constant([2, 9, 1], tf.int64), 2, 5)
        tf_ops.assign_rows(table, held, rows + 1)
        return held, rows

    held, rows = wrap(step)(tf.constant([1, 2, 1], tf.int64))
    assert held.numpy().tolist() == [2, 1]
    assert rows.numpy().tolist() == [[0, 0, 7, 7, 1.5, 2, 3], [0, 0, 7, 7, 3, 4, 3]]
    found = tf_ops.read_rows(table, held, 2, 5)
    np.testing.assert_array_equal(found.rows, rows + 1)
    assert tf_ops.size(table) == 2


def test_rows_of_other_slots_are_refused(wrap):
    table = new_table()
    key = tf.constant([1], tf.int64)
    tf_ops.assign(table, key, tf.ones((1, DIM)))
    wrong = tf.errors.FailedPreconditionError
    for call, error, text in (
        (lambda: tf_ops.read_rows(table, key, DIM, 3), wrong, "'ops': expected 3 floats of slots"),
        (lambda: tf_ops.read_rows(table, key, 2, 0), ERROR, "'ops': expected dim 4, got 2"),
        (
            lambda: tf_ops.assign_rows(table, key, tf.ones((1, DIM + 3))),
            wrong,
            "got a table with 0",
        ),
        (lambda: tf_ops.assign_rows(table, key, tf.ones((2, DIM))), ERROR, "a row with its slots"),
        (lambda: tf_ops.assign_rows(table, key, tf.ones((1, 2))), ERROR, "a row with its slots"),
    ):
        with pytest.raises(error, match=text):
            wrap(lambda call=call: [call(), None][1])()
    assert read(table, [1]).tolist() == [[1.0] * DIM]


def test_assign_wants_as_many_rows_as_keys(wrap):
    table = new_table()

    def assign(keys, values):
        tf_ops.assign(table, keys, values)

    with pytest.raises(ERROR, match=r"expected embeddings of shape \[2, 4\].*\[3,4\]"):
        wrap(assign)(tf.constant([1, 2]), tf.ones((3, DIM)))


def in_threads(count, work):
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_many_threads_can_call_one_function_that_trains():
    table = new_table()
    turns, threads, keys = 20, 8, 500

    @tf.function
    def step(k):
        receipt = tf_ops.lookup(table, k, DIM, True).receipt
        return sgd(table, tf_ops.deposit(receipt, tf.ones((tf.size(k), DIM))))

    all_keys = tf.range(keys, dtype=tf.int64)
    step(all_keys[:0])
    in_threads(threads, lambda i: [step(tf.roll(all_keys, i, 0)) for _ in range(turns)])
    # No gradient is lost and none counts twice; small integers are exact in float32.
    np.testing.assert_array_equal(read(table, range(keys)), np.full((keys, DIM), -threads * turns))


def test_many_threads_can_look_up_while_others_insert_remove_and_export():
    table = uniform_table()
    expected = read(table, range(2000))
    lookup = tf.function(lambda k: tf_ops.lookup(table, k, DIM, True).embeddings)

    def work(i):
        random = np.random.default_rng(i)
        for _ in range(30):
            keys = random.integers(0, 2000, 1000)
            if i == 0:
                tf_ops.remove(table, tf.constant(keys))
            elif i == 1:
                contents = tf_ops.export(table, DIM, with_slots=True)
                np.testing.assert_array_equal(contents.embeddings, expected[contents.keys])
            else:
                np.testing.assert_array_equal(lookup(tf.constant(keys)), expected[keys])

    in_threads(8, work)


def test_what_should_be_a_scalar_is_refused_and_does_not_end_the_process() -> None:
    table = tf_ops.anonymous_table("t", 4)
    found = tf_ops.lookup(table, tf.constant([1]), 4, True)
    anchor = tf.constant(0.0)
    contents = tf_ops.export(table, 4, True)
    for call in (
        lambda: sgd(table, anchor, step=tf.constant([1, 2])),
        lambda: sgd(table, anchor, scale=tf.constant([1.0, 2.0])),
        lambda: tf_ops.deposit(tf.stack([found.receipt] * 2), tf.ones((1, 4))),
        lambda: tf_ops.restore(table, contents._replace(rule=tf.constant(["a", "b"]))),
        lambda: tf_ops.restore(table, contents._replace(steps=tf.constant([1, 2], tf.int64))),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="to be a scalar"):
            call()
