"""Wrong inputs of `adaptive_mask_gather`: each is an error that says what and where."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from adaptive_gather_model import BUCKETS, DIM, commit, gather, new_static, new_table, rows_of

from sok_embed import tf_ops
from sok_embed.tf_ops.native import ops

ERROR = tf.errors.InvalidArgumentError
names = (f"gather_error_{i}" for i in itertools.count())


@pytest.fixture(params=["eager", "function"])
def run(request):
    """Gathers eagerly, or with shapes and values that no trace knows."""
    if request.param == "eager":
        return gather

    def traced(table, static, keys, mask, buckets=None, **options):
        keys, mask = tf.constant(keys, tf.int64), tf.constant(mask, tf.int32)
        buckets = keys % BUCKETS if buckets is None else tf.constant(buckets, tf.int64)
        specs = [tf.TensorSpec(None, tensor.dtype) for tensor in (keys, mask, buckets)]

        @tf.function(input_signature=specs)
        def call(k, m, b):
            return gather(table, static, k, m, b, **options)

        return call(keys, mask, buckets)

    return traced


@pytest.mark.parametrize("make_rows", [True, False])
@pytest.mark.parametrize("wrong", [2, -1, 2**31 - 1, -(2**31), 256])
def test_a_mask_that_is_neither_0_nor_1_is_named_with_its_place(run, wrong, make_rows):
    table = new_table()
    with pytest.raises(ERROR, match=rf"'gather'.*mask.*got {wrong} at position 2\b"):
        run(table, new_static(), [[1, 2], [3, 4]], [[1, 0], [wrong, 1]], make_rows=make_rows)
    assert tf_ops.size(table) == 0


@pytest.mark.parametrize("mask", [0, 1])
@pytest.mark.parametrize("wrong", [-1, BUCKETS, 2**62, -(2**63), 2**63 - 1])
def test_a_bucket_out_of_range_is_named_with_its_place(run, wrong, mask):
    table = new_table()
    with pytest.raises(ERROR, match=rf"'gather'.*\[0, {BUCKETS}\), got {wrong} at position 1\b"):
        run(table, new_static(), [1, 2, 3], [1, mask, 1], buckets=[0, wrong, 6])
    assert tf_ops.size(table) == 0


def test_static_rows_must_be_a_variable():
    keys = tf.zeros([1], tf.int64)
    with pytest.raises(TypeError, match="static to be a variable, or its handle. Received"):
        tf_ops.adaptive_mask_gather(
            new_table(),
            tf.zeros([BUCKETS, DIM]),
            keys,
            keys,
            tf.zeros([1], tf.int32),
            dim=DIM,
            make_rows=False,
        )


def test_keys_cannot_be_hashed_to_no_static_rows():
    static = tf.Variable(tf.zeros([0, DIM]))

    def read(keys):
        ids = tf.constant(keys, tf.int64)
        mask = tf.ones_like(ids, tf.int32)
        return tf_ops.adaptive_mask_gather(
            new_table(), static, ids, None, mask, dim=DIM, make_rows=True
        ).embeddings

    assert read([]).shape == (0, DIM)
    with pytest.raises(ERROR, match=rf"at least one static row, got shape \[0,{DIM}\]"):
        read([1, 2])


@pytest.mark.parametrize(
    ("keys", "mask", "buckets"),
    [
        ([1, 2, 3], [1, 0], [1, 2, 3]),
        ([1, 2, 3], [1, 0, 1], [1, 2]),
        ([1, 2], [[1, 0]], [1, 2]),
        ([[1], [2]], [[1, 0]], [[1], [2]]),
        ([], [1], []),
        ([1], [], [1]),
        (1, [1], 1),
        ([1], [1], 1),
    ],
    ids=str,
)
def test_keys_buckets_and_mask_of_different_shapes_are_refused(run, keys, mask, buckets):
    with pytest.raises(ERROR, match="one shape, got shapes"):
        run(new_table(), new_static(), keys, mask, buckets=buckets)


def test_shapes_that_are_known_to_differ_are_refused_in_the_graph():
    with tf.Graph().as_default():
        table = tf_ops.table_handle(next(names), DIM)
        static = tf.compat.v1.get_variable("static", (BUCKETS, DIM), use_resource=True)
        with pytest.raises(ValueError, match="hape|imension"):
            gather(table, static, tf.zeros(3, tf.int64), tf.zeros(2, tf.int32))


@pytest.mark.parametrize(
    "values",
    [np.zeros((BUCKETS, DIM + 1)), np.zeros(DIM), np.zeros((BUCKETS, DIM, 1)), np.zeros(())],
    ids=lambda values: str(values.shape),
)
def test_static_rows_of_another_shape_are_refused(run, values):
    with pytest.raises((ERROR, ValueError), match=rf"\[buckets, {DIM}\], got float|t least rank"):
        run(new_table(), tf.Variable(values.astype(np.float32)).handle, [1], [0])


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16, tf.int32])
def test_static_rows_of_another_type_are_refused(run, dtype):
    static = tf.Variable(tf.zeros((BUCKETS, DIM), dtype))
    with pytest.raises(ERROR, match="float32"):
        run(new_table(), static, [1], [1])


def test_no_static_rows_serve_no_keys_and_refuse_any(run):
    static = tf.Variable(tf.zeros((0, DIM)))
    assert run(new_table(), static, [], []).shape == (0, DIM)
    with pytest.raises(ERROR, match=r"\[0, 0\), got 1 at position 0"):
        run(new_table(), static, [1], [1])


def test_a_static_variable_that_was_not_initialized_is_an_error():
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        table = tf_ops.table_handle(next(names), DIM)
        static = v1.get_variable("static", (BUCKETS, DIM), use_resource=True)
        found = gather(table, static, [1], [1])
        size = tf_ops.size(table)
        with v1.Session() as session:
            kinds = (tf.errors.FailedPreconditionError, tf.errors.NotFoundError)
            with pytest.raises(kinds):
                session.run(found)
            assert session.run(size) == 0
            session.run(v1.global_variables_initializer())
            assert session.run(found).shape == (1, DIM)


def test_slots_that_were_deleted_are_not_copied_and_do_no_harm():
    table, static = new_table(), new_static()
    slot = tf.Variable(tf.ones((BUCKETS, DIM)))
    commit(table, tf.constant(0.0), "adagrad", slot_sources=[slot.handle])
    del slot
    gather(table, static, [1], [1])
    np.testing.assert_array_equal(rows_of(table)[1], static.numpy()[1])


@pytest.mark.parametrize("wrong", ["key", "static", "slot"])
def test_a_handle_of_something_else_is_an_error(wrong):
    table, static = new_table(), new_static()
    with pytest.raises(ERROR, match="(?i)type"):
        if wrong == "key":
            gather(static.handle, static, [1], [1])
        elif wrong == "static":
            gather(table, table, [1], [1])
        else:
            commit(table, tf.constant(0.0), "sgd", slot_sources=[table])


def test_handles_that_are_not_scalars_are_refused():
    table, static = new_table(), new_static()
    two = tf.stack([static.handle, static.handle])
    keys = tf.constant([1], tf.int64)
    arguments = {
        "keys": keys,
        "buckets": keys,
        "mask": tf.constant([1]),
        "anchor": tf.constant(0.0),
        "counts": [],
        "dim": DIM,
        "make_rows": True,
    }
    with pytest.raises(ERROR, match="to be a scalar"):
        ops.sok_embed_adaptive_mask_gather(table=table, static_rows=two, **arguments)
    with pytest.raises(ERROR, match="to be a scalar"):
        ops.sok_embed_adaptive_mask_gather(
            table=tf.stack([table, table]), static_rows=static.handle, **arguments
        )
    with pytest.raises(ERROR, match="to be a scalar"):
        commit(table, tf.constant(0.0), "sgd", slot_sources=[two])


def test_another_dim_than_the_tables_is_refused(run):
    with pytest.raises(ERROR, match=f"'gather'.*dim {DIM}, the lookup expected 4"):
        run(new_table(), tf.Variable(tf.zeros((BUCKETS, 4))), [1], [1], dim=4)


@pytest.mark.parametrize("name", ["keys", "buckets", "mask"])
def test_inputs_of_another_type_are_refused(name):
    given = {
        "keys": tf.constant([1], tf.int64),
        "buckets": tf.constant([1], tf.int64),
        "mask": tf.constant([1], tf.int32),
    }
    given[name] = tf.cast(given[name], tf.float32)
    with pytest.raises((TypeError, ERROR, ValueError)):
        tf_ops.adaptive_mask_gather(new_table(), new_static(), dim=DIM, make_rows=True, **given)


def test_a_key_beyond_a_direct_table_is_refused_only_where_it_asks_for_an_own_row(run):
    table, static = new_table(direct=True, max_rows=10), new_static()
    with pytest.raises(ERROR, match=r"\[0, 10\), got 10"):
        run(table, static, [1, 10], [1, 1])
    assert tf_ops.size(table) == 0
    assert run(table, static, [1, 10], [1, 0]).shape == (2, DIM)


def test_the_static_gradient_refuses_sizes_that_do_not_fit():
    for own, buckets, gradients in (
        ([True], [1, 2], tf.ones((1, DIM))),
        ([False, True], [1, 2], tf.ones((1, DIM))),
        ([False], [1], tf.ones((1, DIM + 1))),
    ):
        with pytest.raises(ERROR, match="expected a bucket and a gradient"):
            ops.sok_embed_adaptive_static_gradient(
                own=own,
                buckets=tf.constant(buckets, tf.int64),
                gradients=gradients,
                tokens=[],
                dim=DIM,
            )
