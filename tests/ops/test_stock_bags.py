"""Bags that have one length are pooled with the bits of all others, and of the core."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from sok_embed.tf_ops import stock_bags


def float32_sums(rows, combiner):
    """Returns the vectors of bags `[bags, length, dim]`, added in order and rounded each time."""
    length = rows.shape[1]
    if length == 1:
        return rows[:, 0]
    sums = np.zeros_like(rows[:, 0])
    for place in range(length):
        sums += rows[:, place]
    if combiner == "sum":
        return sums
    divisor = np.float32(length) if combiner == "mean" else np.sqrt(np.float32(length))
    return sums * (np.float32(1) / divisor)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16])
@pytest.mark.parametrize("bags", [50, 0, 1])
@pytest.mark.cover("values")
def test_bags_of_one_length_have_the_bits_of_sums_in_order(bags, length, combiner):
    rows = np.random.default_rng(length).normal(size=(bags, length, 5)).astype(np.float32)
    rows[..., 0] = -0.0
    rows[..., 1] *= 1e30
    flat = rows.reshape(-1, 5)

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.float32)])
    def both(given):
        count = tf.shape(given, tf.int64)[0] // length
        segments = stock_bags.of_rows(count, tf.constant(length, tf.int64))
        return (
            stock_bags.pool_rows(given, length, combiner),
            stock_bags.pool(given, segments, None, combiner),
        )

    expected = float32_sums(rows, combiner)
    for found in both(tf.constant(flat)):
        found = found.numpy()
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
