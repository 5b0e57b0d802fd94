"""What bags reduce to, compared with plain Python: `hashed_bag_reference`."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from hashed_bag_cases import IDS, MAPPINGS, MODES, cases, each_mapping, forward
from hashed_bag_reference import original_hash, slots_and_signs

from sok_embed import tf_ops


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("mode", MODES)
@each_mapping()
def test_float64_equals_the_reference_exactly(mapping, mode):
    for bags in cases(mapping, mode):
        np.testing.assert_array_equal(forward(bags), bags.forward())


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("mode", MODES)
@each_mapping()
def test_float32_equals_the_reference_within_a_millionth(mapping, mode):
    # A bag has at most 9 entries of a magnitude of 1, each rounded to 24 bits.
    for bags in cases(mapping, mode, "float32", "int32"):
        np.testing.assert_allclose(forward(bags), bags.forward(), rtol=1e-6, atol=1e-6)


def rounded(values, dtype="bfloat16"):
    """To the nearest of the dtype, in float32; None stays."""
    return None if values is None else tf.cast(tf.cast(values, dtype), tf.float32).numpy()


@pytest.mark.cover(9)
@pytest.mark.parametrize("of_weight", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mode", MODES)
def test_narrow_floats_are_summed_in_float32_and_rounded_once(mode, out, of_weight):
    for bags in cases("mixed_blocks_of_4", mode, "float32"):
        outputs = forward(bags, tf.cast(bags.weight, of_weight), dtype=tf.as_dtype(out))
        assert outputs.dtype == out
        reference = dataclasses.replace(
            bags,
            weight=rounded(bags.weight, of_weight),
            per_sample_weights=rounded(bags.per_sample_weights, out),
        )
        # float32 is as above. The others add half of the last of 8 or 11 bits.
        tolerance = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11 + 1e-6}[out]
        np.testing.assert_allclose(
            tf.cast(outputs, tf.float32), reference.forward(), rtol=tolerance, atol=1e-6
        )


@pytest.mark.cover(1)
@pytest.mark.parametrize("mode", MODES)
def test_a_variable_in_a_function_gives_what_a_tensor_gives(mode):
    for bags in cases("mixed", mode):
        variable = tf.Variable(bags.weight)
        traced = tf.function(functools.partial(forward, bags, variable))
        np.testing.assert_array_equal(traced(), forward(bags))


def test_unknown_shapes_are_traced_once():
    def reduce(weight, ids, offsets):
        return tf_ops.hashed_bag(weight, ids, offsets, num_embeddings=IDS, embedding_dim=16)

    unknown = tf.TensorSpec([None], tf.int64)
    traced = tf.function(
        reduce, input_signature=[tf.TensorSpec([101], tf.float64), unknown, unknown]
    )
    assert traced.get_concrete_function().output_shapes.as_list() == [None, 16]
    for bags in cases("mixed", "sum"):
        plain = bags.padding_idx is None and bags.per_sample_weights is None
        if plain and bags.offsets is not None and not bags.include_last_offset:
            outputs = traced(bags.weight, bags.ids, bags.offsets)
            np.testing.assert_array_equal(outputs, bags.forward())


def test_shapes_are_inferred():
    weight = tf.zeros(101)

    @tf.function(input_signature=[tf.TensorSpec([7, None], tf.int32)])
    def rows(ids):
        outputs = tf_ops.hashed_bag(weight, ids, num_embeddings=IDS, embedding_dim=3)
        assert outputs.shape.as_list() == [7, 3]
        return outputs

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([9], tf.int32)])
    def bags(ids, offsets):
        options = {"num_embeddings": IDS, "embedding_dim": 3}
        outputs = tf_ops.hashed_bag(weight, ids, offsets, **options)
        assert outputs.shape.as_list() == [9, 3]
        outputs = tf_ops.hashed_bag(weight, ids, offsets, include_last_offset=True, **options)
        assert outputs.shape.as_list() == [8, 3]
        return outputs

    rows.get_concrete_function()
    bags.get_concrete_function()


def test_repeated_calls_give_the_same_bits():
    # There are enough for every thread of the pool to have a part.
    random = np.random.default_rng(0)
    weight = tf.constant(random.normal(size=5000).astype(np.float32))
    ids = tf.constant(random.integers(0, 10**6, (3000, 20)))
    options = {"num_embeddings": 10**6, "embedding_dim": 32}
    for mode in MODES:
        first, second = (
            tf_ops.hashed_bag(weight, ids, mode=mode, **options).numpy() for _ in range(2)
        )
        np.testing.assert_array_equal(first, second)
        some = tf_ops.hashed_bag(weight, ids[1000:1010], mode=mode, **options)
        np.testing.assert_array_equal(first[1000:1010], some)


@each_mapping()
def test_hash_slots_are_those_of_the_reference(mapping):
    dim, size, spec = MAPPINGS[mapping]
    ids = [0, 1, 2, 59, 2**31, 2**40 + 1, 2**62 // dim]
    slots, signs = tf_ops.hash_positions(
        tf.constant(ids, tf.int64), size, embedding_dim=dim, spec=tf_ops.HashSpec(**spec)
    )
    expected_slots, expected_signs = slots_and_signs(ids, size, dim, **spec)
    np.testing.assert_array_equal(slots, expected_slots)
    np.testing.assert_array_equal(signs, expected_signs)
    assert slots.dtype == tf.int64 and signs.dtype == tf.int8


@pytest.mark.parametrize("size", [2**31 + 11, 2**40, 2**62])
@pytest.mark.parametrize("hash", ["mixed", "original", "modulo"])
def test_slots_beyond_32_bits_are_those_of_the_reference(hash, size):
    ids = np.random.default_rng(1).integers(0, 2**55, 20)
    spec = {"hash": hash, "block_size": 3, "seed": 4}
    slots, _ = tf_ops.hash_positions(ids, size, embedding_dim=8, spec=tf_ops.HashSpec(**spec))
    expected, _ = slots_and_signs(ids.tolist(), size, 8, **spec)
    np.testing.assert_array_equal(slots, expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0, 0, 104729),
        (1, 0, 9824621266),
        (0, 1, 57857966404956),
        (7, 3, 56512472399970),
        (100, 199, 35958319826100),
        (-1, 0, 26276226730497),
    ],
)
def test_the_original_hash_of_the_reference_is_that_of_the_pytorch_project(a, b, expected):
    # These are the values that its kernels give.
    assert original_hash(a, b) == expected


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("wrap", [tf.function, lambda f: f], ids=["function", "eager"])
def test_row_splits_say_where_rows_begin(wrap, dtype):
    split = wrap(lambda rows, count: tf_ops.row_splits(tf.cast(rows, tf.int64), count))
    for rows, count, expected in [
        ([0, 0, 2, 2, 2, 5], 7, [0, 2, 2, 5, 5, 5, 6, 6]),
        ([3], 4, [0, 0, 0, 0, 1]),
        ([], 2, [0, 0, 0]),
        ([], 0, [0]),
    ]:
        splits = split(tf.constant(rows, dtype), tf.constant(count, tf.int64))
        assert splits.dtype == tf.int64
        np.testing.assert_array_equal(splits, expected)
