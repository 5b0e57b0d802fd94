"""The op that pools served rows: the bits of sums in order, and errors for damaged bags."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from sok_embed.serving.served_table import pool
from sok_embed.tf_ops import stock_bags

COMBINERS = ("sum", "mean", "sqrtn", "max")
LENGTHS = [3, 0, 1, 12, 0, 2, 1, 0]


def pooled(rows, splits, weights, combiner):
    """Returns what float32 has, added in order and rounded each time; `[bags, dim]`."""
    vectors = np.zeros([len(splits) - 1, rows.shape[1]], np.float32)
    for vector, begin, end in zip(vectors, splits, splits[1:], strict=False):
        of_bag = rows[begin:end]
        if len(of_bag) == 1 and weights is None:
            vector[:] = of_bag[0]
            continue
        if combiner == "max":
            vector[:] = of_bag.max(0) if len(of_bag) else 0
            continue
        scales = np.ones(end - begin, np.float32) if weights is None else weights[begin:end]
        divisor = np.float32(0)
        for row, scale in zip(of_bag, scales, strict=True):
            vector += scale * row
            divisor += scale * scale if combiner == "sqrtn" else scale
        if combiner != "sum":
            divisor = np.sqrt(divisor) if combiner == "sqrtn" else divisor
            vector *= np.float32(0) if divisor == 0 else np.float32(1) / divisor
    return vectors


def given(seed=0, dim=5):
    random = np.random.default_rng(seed)
    splits = np.cumsum([0, *LENGTHS])
    rows = random.normal(size=(splits[-1], dim)).astype(np.float32)
    rows[:, 0] = -0.0
    rows[:, 1] *= 1e30
    return rows, splits, random.normal(size=splits[-1]).astype(np.float32)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_bags_have_the_bits_of_sums_in_order_and_of_stock_ops(combiner, is_weighted):
    if combiner == "max" and is_weighted:
        return
    rows, splits, weights = given()
    weights = weights if is_weighted else None
    found = pool(rows, tf.constant(splits), weights, combiner, 0, "words")
    expected = pooled(rows, splits, weights, combiner)
    np.testing.assert_array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))
    stock = stock_bags.pool(tf.constant(rows), stock_bags.of_splits(splits), weights, combiner)
    np.testing.assert_array_equal(stock.numpy().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_bags_of_one_length_need_no_splits(combiner, length):
    rows = np.random.default_rng(length).normal(size=(length * 300, 3)).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def traced(rows):
        vectors = pool(rows, length, None, combiner, length, "words")
        assert vectors.shape.as_list() == [None, 3]
        return vectors

    expected = pooled(rows, np.arange(0, len(rows) + 1, length), None, combiner)
    np.testing.assert_array_equal(traced(rows).numpy().view(np.uint32), expected.view(np.uint32))
    assert traced(rows[:0]).shape == [0, 3]


@pytest.mark.parametrize(
    "bags, weights, most, message",
    [
        ([0, 2, 5], None, 0, "row splits that .* end with the number of keys, 4, got 0 2 5"),
        ([1, 4], None, 0, "row splits"),
        ([0, 3, 2, 4], None, 0, "row splits"),
        ([0, 2**62, -(2**62), 4], None, 0, "row splits"),
        ([], None, 0, "row splits"),
        ([0, 3, 4], None, 2, "at most max_length=2 keys in an example, got 3"),
        (4, None, 2, "at most max_length=2 keys in an example, got 4"),
        (3, None, 0, "bags of 3 keys, got 4 keys"),
        ([0, 4], [1.0, 2.0], 0, "one weight a key, 4, got 2"),
    ],
)  # fmt: skip
def test_what_is_no_bag_is_an_error_that_names_the_feature(bags, weights, most, message):
    bags = bags if isinstance(bags, int) else tf.constant(bags, tf.int64)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"feature 'words': expected {message}"
    ):
        pool(np.zeros([4, 2], np.float32), bags, weights, "mean", most, "words")


@pytest.mark.parametrize("rows, splits", [([4], [2]), ([4, 2], [1, 2])])
def test_other_ranks_are_refused(rows, splits):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="rank"):
        tf.function(
            lambda: pool(tf.zeros(rows), tf.zeros(splits, tf.int64), None, "sum", 0, "words")
        )()
