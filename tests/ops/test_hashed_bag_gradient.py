"""Gradients of bags, compared with plain Python and with finite differences."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hashed_bag_cases import MODES, cases, each_mapping, forward
from hashed_bag_reference import Bags

from sok_embed import tf_ops

FEW = ("mixed", "mixed_blocks_of_5_signed", "original", "modulo_blocks_of_5")


def gradients(bags, upstream, weight=None, **options):
    """Returns gradients of the weight and, if there are any, of the weights of the entries."""
    weight = tf.constant(bags.weight) if weight is None else weight
    factors = bags.per_sample_weights
    sources = [weight] if factors is None else [weight, tf.constant(factors)]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = forward(bags, *sources, **options)
    return tape.gradient(outputs, sources, output_gradients=tf.constant(upstream))


def upstream_of(bags, seed=0):
    shape = bags.forward().shape
    return np.random.default_rng(seed).normal(size=shape).astype(bags.weight.dtype)


def dense(gradient):
    return tf.convert_to_tensor(gradient).numpy()


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("gradient", ["dense", "sparse"])
@pytest.mark.parametrize("mode", MODES)
@each_mapping()
def test_gradients_equal_the_reference(mapping, mode, gradient):
    # In float64 only the order of the sums differs.
    for bags in cases(mapping, mode):
        upstream = upstream_of(bags)
        of_weight, *of_factors = gradients(bags, upstream, gradient=gradient)
        expected, expected_factors = bags.gradients(upstream)
        np.testing.assert_allclose(dense(of_weight), expected, rtol=1e-12, atol=1e-12)
        for got in of_factors:
            # Padding takes no part: the weights of its entries move nothing.
            np.testing.assert_allclose(got, expected_factors, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_in_float32_are_within_a_millionth(mode):
    # These are sums of at most some tens of terms of a magnitude of 1, in 24 bits.
    for bags in cases("mixed_blocks_of_4", mode, "float32", "int32"):
        upstream = upstream_of(bags)
        of_weight, *of_factors = gradients(bags, upstream)
        expected, expected_factors = bags.gradients(upstream)
        np.testing.assert_allclose(dense(of_weight), expected, rtol=1e-6, atol=5e-6)
        for got in of_factors:
            np.testing.assert_allclose(got, expected_factors, rtol=1e-6, atol=5e-6)


@pytest.mark.cover(1)
@pytest.mark.parametrize("mode", MODES)
@each_mapping(("mixed_blocks_of_5_signed", "modulo_blocks_of_5"))
def test_gradients_equal_finite_differences(mapping, mode):
    for bags in cases(mapping, mode):
        if bags.padding_idx is None or bags.include_last_offset or bags.ids.size < 19:
            continue
        factors = bags.per_sample_weights
        arguments = [bags.weight] if factors is None else [bags.weight, factors]
        theoretical, numerical = tf.test.compute_gradient(
            lambda *tensors, b=bags: forward(b, *tensors), arguments, delta=1e-4
        )
        for got, expected in zip(theoretical, numerical, strict=True):
            # The functions are linear but for max, whose steps are too small to change a winner
            # here: what is left is the rounding of differences, 1e-16 / 1e-4.
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


@pytest.mark.cover("values")
@pytest.mark.parametrize("mode", MODES)
@each_mapping(FEW)
def test_sparse_gradients_are_the_dense_ones_at_distinct_ascending_slots(mapping, mode):
    for bags in cases(mapping, mode):
        upstream = upstream_of(bags)
        sparse = gradients(bags, upstream, gradient="sparse")[0]
        whole = gradients(bags, upstream, gradient="dense")[0]
        assert isinstance(sparse, tf.IndexedSlices) and isinstance(whole, tf.Tensor)
        slots = sparse.indices.numpy()
        assert (np.diff(slots) > 0).all()
        np.testing.assert_array_equal(sparse.dense_shape, bags.weight.shape)
        # In float64 the order of the sums is another.
        np.testing.assert_allclose(dense(sparse), whole, rtol=1e-12, atol=1e-12)
        untouched = np.setdiff1d(np.arange(len(bags.weight)), slots)
        np.testing.assert_array_equal(whole.numpy()[untouched], 0)


@pytest.mark.cover(1)
@pytest.mark.parametrize("gradient", ["dense", "sparse", "auto"])
@pytest.mark.parametrize("wrap", [tf.function, lambda f: f], ids=["function", "eager"])
def test_a_variable_gets_the_gradient_of_a_tensor(wrap, gradient):
    for bags in cases("mixed", "sum"):
        variable, upstream = tf.Variable(bags.weight), upstream_of(bags)
        run = wrap(functools.partial(gradients, bags, upstream, variable, gradient=gradient))
        expected = gradients(bags, upstream, gradient=gradient)[0]
        np.testing.assert_array_equal(dense(run()[0]), dense(expected))


@pytest.mark.parametrize("gradient", ["dense", "sparse"])
def test_the_first_of_equal_entries_wins_the_gradient_of_max(gradient):
    # Rows 2 and 4 of this table are equal, and above row 1 in its first column only.
    table = np.array([[0.0, 0], [1, 5], [3, 4], [0, 0], [3, 4], [0, 0]])
    ids, offsets = np.array([1, 4, 2, 2, 4]), np.array([0, 3])
    spec = {"hash": "modulo"}
    bags = Bags(table.reshape(-1), ids, 2, offsets, mode="max", spec=spec)
    upstream = np.array([[1.0, 10], [100, 1000]])
    got = gradients(bags, upstream, num_embeddings=6, gradient=gradient)[0]
    expected = np.zeros((6, 2))
    expected[4, 0], expected[1, 1] = 1, 10
    expected[2] = 100, 1000
    np.testing.assert_array_equal(dense(got).reshape(6, 2), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduce", [tf.reduce_sum, tf.reduce_mean])
def test_broadcast_upstream_gradients_are_not_taken_for_zero(reduce, mode):
    for bags in cases("mixed_blocks_of_5_signed", mode):
        outputs = bags.forward()
        if outputs.size == 0:
            continue
        weight = tf.constant(bags.weight)
        with tf.GradientTape() as tape:
            tape.watch(weight)
            loss = reduce(forward(bags, weight))
        upstream = np.ones_like(outputs)
        if reduce is tf.reduce_mean:
            upstream /= outputs.size
        expected, _ = bags.gradients(upstream)
        np.testing.assert_allclose(
            dense(tape.gradient(loss, weight)), expected, rtol=1e-12, atol=1e-12
        )


def test_a_row_of_upstream_gradients_reaches_all_its_bags():
    bags = next(cases("mixed", "sum"))
    weight, row = tf.constant(bags.weight), np.arange(16.0)
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(tf.reduce_sum(forward(bags, weight), axis=0) * row)
    expected, _ = bags.gradients(np.tile(row, (len(bags.forward()), 1)))
    np.testing.assert_allclose(dense(tape.gradient(loss, weight)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gradient", ["dense", "sparse"])
@pytest.mark.parametrize("mode", MODES)
def test_large_batches_give_gradients_of_the_same_bits_when_repeated(mode, gradient):
    random = np.random.default_rng(0)
    weight = tf.constant(random.normal(size=5000).astype(np.float32))
    ids = tf.constant(random.integers(0, 10**6, (2000, 20)))
    upstream = tf.constant(random.normal(size=(2000, 32)).astype(np.float32))

    def run():
        with tf.GradientTape() as tape:
            tape.watch(weight)
            outputs = tf_ops.hashed_bag(
                weight, ids, num_embeddings=10**6, embedding_dim=32, mode=mode, gradient=gradient
            )
        return dense(tape.gradient(outputs, weight, upstream))

    np.testing.assert_array_equal(run(), run())


@pytest.mark.parametrize("gradient", ["dense", "sparse"])
@pytest.mark.parametrize(("dtype", "total"), [(tf.bfloat16, 300), (tf.float16, 2500)])
def test_narrow_sums_of_gradients_are_in_float32_before_they_are_rounded(dtype, total, gradient):
    weight = tf.zeros([1], dtype)
    with tf.GradientTape() as tape:
        tape.watch(weight)
        ids = tf.zeros([total, 1], tf.int64)
        outputs = tf_ops.hashed_bag(
            weight, ids, num_embeddings=1, embedding_dim=1, gradient=gradient
        )
    found = tape.gradient(outputs, weight)
    assert found.dtype == dtype
    # In bfloat16 256 + 1 is 256, and in float16 2048 + 1 is 2048; the totals are exact.
    assert float(dense(found)[0]) == total


def test_gradients_of_factors_are_rounded_once_in_float16():
    weight = tf.constant([0.5, 0.25, 3.0], tf.float16)
    factors = tf.constant([[1.0, 2.0]], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch([weight, factors])
        outputs = tf_ops.hashed_bag(
            weight,
            tf.constant([[1, 2]]),
            None,
            factors,
            num_embeddings=3,
            embedding_dim=1,
            spec=tf_ops.HashSpec("modulo"),
        )
    of_weight, of_factors = tape.gradient(outputs, [weight, factors])
    np.testing.assert_array_equal(outputs, [[6.25]])
    np.testing.assert_array_equal(dense(of_weight), [0, 1, 2])
    np.testing.assert_array_equal(of_factors, [[0.25, 3]])
    assert outputs.dtype == of_factors.dtype == tf.float16


def test_auto_gives_slices_for_a_large_weight_and_few_slots_and_no_slices_for_a_small_one():
    def kind(size):
        weight = tf.zeros([size])
        with tf.GradientTape() as tape:
            tape.watch(weight)
            outputs = tf_ops.hashed_bag(
                weight, tf.constant([[3]]), num_embeddings=10, embedding_dim=4
            )
        return type(tape.gradient(outputs, weight))

    assert issubclass(kind(50_000_000), tf.IndexedSlices)
    assert issubclass(kind(50), tf.Tensor)
