"""`static_buckets` is TensorFlow's own hash of the id's decimal digits."""

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops

LIMITS = {
    "int32": [0, 1, -1, 9, 10, -10, 99, 100, 2**31 - 1, -(2**31), 1_000_000_000, -999_999_999],
    "int64": [0, 1, -1, 10**18, -(10**18), 2**63 - 1, -(2**63), 2**31, -(2**31) - 1, 10**9],
}


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


def reference(ids, num_buckets):
    strings = ids if ids.dtype == tf.string else tf.as_string(ids)
    return tf.strings.to_hash_bucket_fast(strings, num_buckets)


@pytest.mark.parametrize("num_buckets", [1, 2, 10, 1_000_003, 2**31, 2**63 - 1])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_hash_as_their_digits(wrap, dtype, num_buckets):
    info, random = np.iinfo(dtype), np.random.default_rng(8)
    values = [random.integers(info.min, info.max, 2000, dtype, endpoint=True)]
    values += [random.integers(0, 10**power, 50) for power in range(1, 10)]
    powers = 10 ** np.arange(10 if dtype == "int32" else 19, dtype=np.int64)
    values += [-powers, powers, powers - 1, 1 - powers, LIMITS[dtype]]
    ids = tf.constant(np.concatenate(values), dtype)
    found = wrap(lambda x: tf_ops.static_buckets(x, num_buckets))(ids)
    assert found.dtype == tf.int64
    np.testing.assert_array_equal(found, reference(ids, num_buckets))


def test_the_same_number_has_the_same_bucket_in_both_widths():
    ids = tf.constant(LIMITS["int32"], tf.int32)
    wide = tf.cast(ids, tf.int64)
    np.testing.assert_array_equal(tf_ops.static_buckets(ids, 997), tf_ops.static_buckets(wide, 997))


def test_strings_hash_as_they_are(wrap):
    random = np.random.default_rng(9)
    strings = [
        "",
        " ",
        "0",
        "-0",
        "00",
        "a",
        "Grüße",
        "日本語",
        "🙂",
        "a\0b",
        "\0",
        "7",
        "x" * 10_000,
    ]
    strings = [text.encode() for text in strings] + [b"\xff\xfe", bytes(range(256))]
    strings += [bytes(random.integers(0, 256, n, np.uint8)) for n in range(200)]
    ids = tf.constant(strings)
    for num_buckets in (1, 1000, 2**63 - 1):
        found = wrap(lambda x, n=num_buckets: tf_ops.static_buckets(x, n))(ids)
        np.testing.assert_array_equal(found, reference(ids, num_buckets))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4), (100_000,)], ids=str)
@pytest.mark.parametrize("dtype", ["int32", "int64", "string"])
def test_any_shape(wrap, shape, dtype):
    ids = tf.constant(np.random.default_rng(1).integers(-(2**30), 2**30, shape), tf.int64)
    ids = tf.as_string(ids) if dtype == "string" else tf.cast(ids, dtype)
    found = wrap(lambda x: tf_ops.static_buckets(x, 12345))(ids)
    assert found.shape == shape
    np.testing.assert_array_equal(found, reference(ids, 12345))


@pytest.mark.parametrize("shape", [[], [None], [2, None], None], ids=str)
def test_the_shape_is_inferred(shape):
    with tf.Graph().as_default():
        found = tf_ops.static_buckets(tf.compat.v1.placeholder(tf.int64, shape), 10)
        assert found.shape.rank == (None if shape is None else len(shape))
        if shape is not None:
            assert found.shape.as_list() == shape


def test_a_session_runs_it():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ids = tf.constant([5, -7], tf.int64)
        ours, theirs = session.run([tf_ops.static_buckets(ids, 100), reference(ids, 100)])
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("num_buckets", [0, -1])
def test_at_least_one_bucket(num_buckets):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="num_buckets|minimum"):
        tf_ops.static_buckets(tf.constant([1], tf.int64), num_buckets)


@pytest.mark.parametrize("dtype", ["float32", "uint64", "bool"])
def test_other_types_are_refused(dtype):
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.NotFoundError, TypeError)):
        tf_ops.static_buckets(tf.cast([1, 0], dtype), 10)
