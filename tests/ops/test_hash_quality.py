"""How well the hashes spread: equal rows of the virtual table, and how evenly slots are used."""

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops

IDS, DIM = 1_000_000, 16
SIZE = IDS * DIM // 64


def slots_of(block_size=1, **spec):
    ids = tf.range(IDS, dtype=tf.int64)
    spec = tf_ops.HashSpec(block_size=block_size, **spec)
    slots, signs = tf_ops.hash_positions(ids, SIZE, embedding_dim=DIM, spec=spec)
    return slots.numpy(), signs.numpy()


def repetitions(rows):
    """Returns how many of the rows one before them equals."""
    # One 64-bit number a row, a sum with odd random factors, sorts faster than the row does. Two
    # different rows of a million have the same one with a probability of 1e12 / 2**65.
    factors = np.random.default_rng(0).integers(0, 2**63, rows.shape[1], np.uint64) * 2 + 1
    sums = np.sort((rows.astype(np.uint64) * factors).sum(axis=1))
    return int(np.count_nonzero(sums[1:] == sums[:-1]))


@pytest.mark.cover(1)
@pytest.mark.parametrize("seed", [0, 1])
def test_mixed_maps_no_two_of_a_million_ids_to_the_same_slots(seed):
    # There are 250,000**16 tuples: two equal ones are not to be expected in the life of the
    # universe.
    slots, _ = slots_of(seed=seed)
    assert repetitions(slots) == 0


def test_original_maps_about_420_thousand_of_a_million_ids_to_slots_of_another():
    slots, _ = slots_of(hash="original")
    assert 415_000 < repetitions(slots) < 425_000


def chi_square(values, cells):
    counts = np.bincount(values.reshape(-1), minlength=cells)
    expected = values.size / cells
    return float(((counts - expected) ** 2).sum() / expected)


def bound_of_99_percent(cells):
    """Returns chi-square's quantile for cells - 1 degrees of freedom (Wilson and Hilferty 1931)."""
    degrees = cells - 1
    part = 2 / (9 * degrees)
    return degrees * (1 - part + 2.3263478740408408 * part**0.5) ** 3


def test_the_bound_is_that_of_the_tables():
    # The reference is NIST's table of upper critical values: 135.807 at 100 degrees, within the
    # formula's 0.01 %.
    assert bound_of_99_percent(101) == pytest.approx(135.807, rel=1e-3)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_mixed_uses_all_slots_alike(block_size):
    slots, _ = slots_of(block_size=block_size)
    # The start of each block is drawn by itself; the rest of the block follows from it.
    starts = slots[:, ::block_size]
    assert chi_square(starts, SIZE) < bound_of_99_percent(SIZE)


def test_mixed_uses_all_slots_alike_in_each_dimension():
    slots, _ = slots_of()
    for d in range(0, DIM, 5):
        assert chi_square(slots[:, d], SIZE) < bound_of_99_percent(SIZE)


def test_seeds_hash_independently_of_each_other():
    first, second = slots_of()[0][:, 0], slots_of(seed=1)[0][:, 0]
    # These count pairs of slots, in 64 x 64 cells.
    pairs = (first * 64 // SIZE) * 64 + second * 64 // SIZE
    assert chi_square(pairs, 64 * 64) < bound_of_99_percent(64 * 64)


@pytest.mark.parametrize("block_size", [1, 16])
def test_signs_are_even_and_independent_of_dimension_and_slot(block_size):
    slots, signs = slots_of(sign=True, block_size=block_size)
    negative = signs < 0
    # The bound is 4 standard deviations of a fair coin, 0.5 / sqrt(n): it is passed once in 16,000.
    assert abs(negative.mean() - 0.5) < 2 / np.sqrt(negative.size)
    by_dimension = negative.mean(axis=0)
    np.testing.assert_allclose(by_dimension, 0.5, rtol=0, atol=2.5 / np.sqrt(IDS))
    # These pair neighbouring dimensions, and sign and upper half of the slots.
    neighbours = (negative[:, 1:] ^ negative[:, :-1]).mean(axis=0)
    np.testing.assert_allclose(neighbours, 0.5, rtol=0, atol=2.5 / np.sqrt(IDS))
    upper = (negative ^ (slots >= SIZE // 2)).mean(axis=0)
    np.testing.assert_allclose(upper, 0.5, rtol=0, atol=2.5 / np.sqrt(IDS))
