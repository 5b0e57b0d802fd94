"""Where ops run and what is copied; `test_guarded_device.py` runs this on a device of its own."""

import guarded_device
import numpy as np
import pytest
import tensorflow as tf
from guarded_device import DEVICE, TYPE
from test_collections import new_tables, pool, request_of, serve

from sok_embed import tf_ops
from sok_embed.tf_ops import native

v1 = tf.compat.v1
DIM = 4
KEYS = np.array([3, -1, 3, 7])
ZEROS = {"initializer": "constant", "initializer_a": 0.0}
SGD = tf_ops.RuleStep("sgd", {"learning_rate": 1.0})

on_guarded = pytest.mark.skipif(TYPE != "GUARDED", reason="the device says that it is a GPU")
as_gpu = pytest.mark.skipif(TYPE != "GPU", reason="the device does not say that it is a GPU")


def table_with_rows(**attributes):
    table = tf_ops.anonymous_table("cases", DIM, **{**ZEROS, **attributes})
    rows = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)
    tf_ops.assign(table, tf.constant([3, -1, 7], tf.int64), tf.constant(rows))
    return table, rows[[0, 1, 0, 2]]


def device_of(tensor):
    return tensor.device[tensor.device.index("/device:") :]


@on_guarded
def test_an_op_runs_where_it_is_placed():
    table, rows = table_with_rows()
    assert device_of(table) == DEVICE

    @tf.function
    def look_up(keys):
        return tf_ops.lookup(table, keys, DIM, False).embeddings

    found = look_up(tf.constant(KEYS))
    assert device_of(found) == DEVICE
    np.testing.assert_array_equal(found, rows)


def copied_by(call):
    """Returns the bytes that a call copies to the device: those from pageable and pinned memory."""
    call()  # what a first call copies besides is not counted
    before = [guarded_device.copied(pinned) for pinned in (False, True)]
    call()
    return [guarded_device.copied(pinned) - before[pinned] for pinned in (False, True)]


@on_guarded
def test_vectors_of_a_lookup_are_copied_from_pinned_memory():
    table = tf_ops.anonymous_table("cases", 256, **ZEROS)
    keys = tf.range(1000, dtype=tf.int64)
    look_up = tf.function(lambda: tf_ops.lookup(table, keys, 256, False).embeddings)
    assert device_of(look_up()) == DEVICE
    pageable, pinned = copied_by(look_up)
    assert pinned >= 4 * 256 * 1000
    assert pageable < 4 * 256 * 10


@on_guarded
@pytest.mark.parametrize("concat", [False, True])
def test_vectors_of_a_collection_are_copied_from_pinned_memory(concat):
    bags = 1000
    tables = new_tables()
    keys = {"a": np.ones([bags, 2]), "b": np.ones([3]), "c": np.full([bags], 7)}
    splits = np.minimum(np.arange(bags + 1), 3)

    @tf.function
    def pool_rows():
        request = request_of(**keys, splits=splits)
        return pool(serve(tables, request), request.asked, concat=concat)

    assert {device_of(output) for output in pool_rows()} == {DEVICE}
    pageable, pinned = copied_by(pool_rows)
    assert pinned >= 4 * 7 * bags  # two tables of dim 2 and one of dim 3
    assert pageable < 4 * bags


@on_guarded
def test_a_receipt_passes_from_one_function_to_another():
    table, rows = table_with_rows()
    with tf.device("CPU:0"):
        anchor = tf.Variable(0.0)

    @tf.function
    def look_up(keys):
        return tf_ops.lookup(table, keys, DIM, True, anchor=anchor).embeddings

    with tf.GradientTape() as tape:  # the gradient is a function of its own, which has the receipt
        found = look_up(tf.constant(KEYS))
    upstream = tf.ones_like(rows)
    of_anchor = tape.gradient(found, anchor, output_gradients=upstream)
    tf_ops.commit(table, of_anchor, [SGD])
    after = tf_ops.lookup(table, tf.constant(KEYS), DIM, False).embeddings
    np.testing.assert_array_equal(after, rows - np.array([2.0, 1.0, 2.0, 1.0])[:, None])


@on_guarded
def test_a_graph_runs_without_soft_placement():
    with tf.Graph().as_default():
        table = tf_ops.table_handle("in_a_graph", DIM, **ZEROS)
        keys = tf.constant(KEYS)
        found = tf_ops.lookup(table, keys, DIM, True)
        assert device_of(found.receipt) == device_of(table) == DEVICE
        upstream = tf.constant(np.ones([4, DIM], np.float32))
        deposited = tf_ops.deposit(found.receipt, upstream)
        commit = tf_ops.commit(table, deposited, [SGD])
        with tf.control_dependencies([commit]):
            after = tf_ops.lookup(table, keys, DIM, False).embeddings
        placement = v1.ConfigProto(allow_soft_placement=False)
        with v1.Session(config=placement) as session:
            before, after = session.run((found.embeddings, after))
    np.testing.assert_array_equal(before, np.zeros([4, DIM]))
    np.testing.assert_array_equal(after, [[-2.0] * DIM, [-1.0] * DIM, [-2.0] * DIM, [-1.0] * DIM])


@as_gpu
def test_what_nobody_places_runs_on_the_cpu():
    buckets = tf_ops.adaptive_buckets(tf.constant(KEYS), 2)
    assert device_of(buckets) == "/device:CPU:0"


@as_gpu
def test_a_name_is_one_table_whatever_device_asks():
    with tf.Graph().as_default():
        here = tf_ops.table_handle("shared", DIM, **ZEROS)
        with tf.device(DEVICE):
            there = tf_ops.table_handle("shared", DIM, **ZEROS)
        with tf.control_dependencies([tf_ops.lookup(here, KEYS, DIM, True).embeddings]):
            size = tf_ops.size(there)
        with v1.Session() as session:
            assert session.run(size) == 3


@as_gpu
def test_a_table_stays_on_the_cpu_under_the_scope_of_a_gpu():
    with tf.device(DEVICE):
        table, rows = table_with_rows()
    assert device_of(table) == "/device:CPU:0"

    @tf.function
    def look_up(keys):
        with tf.device(DEVICE):
            return tf_ops.lookup(table, keys, DIM, False).embeddings

    for soft in (True, False):
        tf.config.set_soft_device_placement(soft)
        np.testing.assert_array_equal(look_up(tf.constant(KEYS)), rows)


def vectors_of_a_collection():
    request = request_of()
    rows, row_splits = serve(new_tables(), request)
    pooling = {
        "rows": rows,
        "row_splits": row_splits,
        "asked": request.asked,
        "weights": [],
        "weighted": [],
        "combiners": [0, 0, 0],
        "concat": False,
        "packed": False,
        "dtype": tf.float32,
    }
    return pooling, native.ops.sok_embed_collection_pool(**pooling)


@as_gpu
def test_a_graph_under_the_scope_of_a_gpu_reads_static_rows_without_soft_placement():
    start = np.arange(5 * DIM, dtype=np.float32).reshape(5, DIM)
    with tf.Graph().as_default():
        with tf.device("/device:CPU:0"):
            static = v1.get_variable("static", initializer=start, use_resource=True)
            initialize = v1.global_variables_initializer()
            keys, buckets = tf.constant(KEYS), tf.constant([0, 1, 0, 4], tf.int64)
            mask, anchor = tf.constant([1, 0, 1, 0]), tf.constant(0.0)
        with tf.device(DEVICE):
            table = tf_ops.table_handle("beside_static_rows", DIM, **ZEROS)
            gathered = native.ops.sok_embed_adaptive_mask_gather(
                table=table,
                static_rows=static.handle,
                keys=keys,
                buckets=buckets,
                mask=mask,
                anchor=anchor,
                counts=[],
                dim=DIM,
                make_rows=True,
            )
        with v1.Session(config=v1.ConfigProto(allow_soft_placement=False)) as session:
            session.run(initialize)
            found = session.run(gathered.embeddings)
    np.testing.assert_array_equal(found, start[[0, 1, 0, 4]])


@as_gpu
def test_ops_of_tensorflow_for_variants_on_a_gpu_take_ours():
    pooling, vectors = vectors_of_a_collection()
    upstream = {0: np.ones([2, 2]), 2: np.full([2, 3], 2.0)}
    of_outputs = [
        native.ops.sok_embed_collection_output_gradient(
            gradient=tf.constant(gradient, tf.float32), asked=pooling["asked"], index=index
        )
        for index, gradient in upstream.items()
    ]
    found = []
    for device in ("/device:CPU:0", DEVICE):
        with tf.device(device):
            # An eager tape adds up gradients so, on a GPU if there is one.
            total = tf.raw_ops.AddN(inputs=of_outputs)
        assert device_of(total) == device
        of_rows = native.ops.sok_embed_collection_pool_gradient(gradients=total, **pooling)
        found.append(of_rows.row_gradients.numpy())
    assert np.count_nonzero(found[0]) > 0
    np.testing.assert_array_equal(*found)


@as_gpu
def test_a_receipt_that_was_on_a_gpu_takes_gradients():
    table, rows = table_with_rows()
    receipt = tf_ops.lookup(table, tf.constant(KEYS), DIM, False).receipt
    for device in (DEVICE, "/device:CPU:0"):
        with tf.device(device):
            receipt = tf.raw_ops.Identity(input=receipt)
        assert device_of(receipt) == device
    with tf.device("/device:CPU:0"):
        deposited = tf_ops.deposit(receipt, tf.constant(np.ones_like(rows)))
        tf_ops.commit(table, deposited, [SGD])
    after = tf_ops.lookup(table, tf.constant(KEYS), DIM, False).embeddings
    np.testing.assert_array_equal(after, rows - np.array([2.0, 1.0, 2.0, 1.0])[:, None])


@as_gpu
def test_a_hashed_bag_on_a_gpu_says_what_is_missing():
    with tf.device(DEVICE):
        weight = tf.identity(tf.ones([50]))
    with pytest.raises(tf.errors.UnavailableError, match="NVIDIA's driver.*CPU:0"):
        tf_ops.hashed_bag(weight, tf.constant([[1, 2]]), num_embeddings=9, embedding_dim=2)
