"""A weight of more than 2**31 slots, where 32-bit positions would overflow."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hashed_bag_reference import slots_and_signs

from sok_embed import tf_ops

# A third of the slots are beyond 2**31. In bfloat16 the weight has 6.4 GB, of which a process gets
# the pages that it touches.
PARTS, OF_PART = 3, 2**30 + 7  # TensorFlow's op takes 32-bit dimensions
SIZE = PARTS * OF_PART
NEEDED_GB = 8


def free_gb():
    """Returns what processes can still take, or 0 where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s+(\d+)", meminfo.read_text()) if meminfo.exists() else None
    return int(found[1]) * 1024 / 1e9 if found else 0.0


@pytest.fixture(scope="module")
def weight():
    """A variable without values; tests set the slots that they read."""
    if free_gb() < NEEDED_GB:
        pytest.skip(
            f"a bfloat16 weight of {SIZE} slots wants {NEEDED_GB} GB of free memory, and "
            f"{free_gb():.1f} GB are free"
        )
    return tf.Variable(
        tf.reshape(tf.raw_ops.Empty(shape=[PARTS, OF_PART], dtype=tf.bfloat16), [-1])
    )


@pytest.mark.parametrize("hash", ["mixed", "original", "modulo"])
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_bags_and_their_sparse_gradients_are_right(weight, hash, mode):
    dim, bags, length = 24, 40, 5
    embeddings = SIZE // dim if hash == "modulo" else 2**40
    spec = {"hash": hash, "block_size": 8, "sign": True}
    random = np.random.default_rng(3)
    ids = random.integers(0, embeddings, (bags, length))
    slots, signs = slots_and_signs(ids.reshape(-1).tolist(), SIZE, dim, **spec)
    touched = np.unique(slots)
    assert touched[-1] >= 2**31 > touched[0]
    # Values are multiples of 1/8 of at most 5 bits: sums of five are exact in bfloat16, and so are
    # those of the gradients.
    values = random.integers(-15, 16, len(touched)) / 8
    weight.scatter_update(tf.IndexedSlices(tf.constant(values, tf.bfloat16), touched))

    with tf.GradientTape() as tape:
        outputs = tf_ops.hashed_bag(
            weight,
            tf.constant(ids),
            num_embeddings=embeddings,
            embedding_dim=dim,
            mode=mode,
            spec=tf_ops.HashSpec(**spec),
            gradient="sparse",
        )
    upstream = random.integers(-15, 16, (bags, dim)) / 8
    gradient = tape.gradient(outputs, weight, tf.constant(upstream, tf.bfloat16))

    rows = (values[np.searchsorted(touched, slots)] * signs).reshape(bags, length, dim)
    reduced = rows.sum(axis=1) if mode == "sum" else rows.max(axis=1)
    np.testing.assert_array_equal(tf.cast(outputs, tf.float64), reduced)
    shares = signs.reshape(rows.shape) * upstream[:, None, :]
    if mode == "max":
        shares *= np.arange(length)[:, None] == rows.argmax(axis=1)[:, None, :]
    expected = np.zeros(len(touched))
    np.add.at(expected, np.searchsorted(touched, slots), shares.reshape(slots.shape))
    dense = dict(zip(gradient.indices.numpy(), gradient.values.numpy(), strict=True))
    assert set(dense) <= set(touched)
    got = np.array([float(dense.get(slot, 0)) for slot in touched])
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(gradient.dense_shape, [SIZE])
