"""Keras masks on the inputs of a layer of many tables."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig


class MaskZeros(keras.layers.Layer):
    """Says that keys of 0 are padding."""

    supports_masking = True

    def call(self, keys):
        return tf.identity(keys)

    def compute_mask(self, inputs, previous_mask):
        return keras.ops.not_equal(inputs, 0)


@pytest.mark.parametrize(
    ("combiner", "weighted"),
    [*((combiner, True) for combiner in ("sum", "mean", "sqrtn"))]
    + [(combiner, False) for combiner in ("sum", "mean", "sqrtn", "max")],
)
def test_masked_keys_are_left_out_of_bags(combiner, weighted):
    layer = DistributedEmbedding(
        FeatureConfig("a", TableConfig("t", None, 3, "normal", combiner=combiner, seed=1))
    )
    keys = np.array([[1, 0, 2], [0, 0, 0], [3, 4, 5], [0, 7, 0]])
    weights = np.random.default_rng(0).uniform(0.5, 2, keys.shape).astype(np.float32)
    bags = [[key for key in bag if key] for bag in keys.tolist()]
    given = None if not weighted else weights
    expected_weights = given
    if weighted:
        values = [w[k != 0].tolist() for w, k in zip(weights, keys, strict=True)]
        expected_weights = tf.ragged.constant(values, dtype=tf.float32, ragged_rank=1)
    expected = layer(tf.ragged.constant(bags, dtype=tf.int64), expected_weights)
    found = layer(MaskZeros()(tf.constant(keys)), given)
    np.testing.assert_array_equal(found, expected)
    # Without the mask they count.
    assert np.abs(layer(tf.constant(keys), given) - expected).max() > 1e-3


def test_a_mask_of_single_keys_leaves_zeros():
    layer = DistributedEmbedding(FeatureConfig("a", TableConfig("t", None, 3, seed=1)))
    found = layer(MaskZeros()(tf.constant([4, 0])))
    np.testing.assert_array_equal(found[0], layer(tf.constant([4]))[0])
    np.testing.assert_array_equal(found[1], np.zeros(3))


def test_vectors_of_single_keys_keep_the_mask_of_the_input():
    table = TableConfig("t", None, 3, combiner=None, seed=1)
    layer = DistributedEmbedding({"a": FeatureConfig("a", table)})
    inputs = keras.Input((3,), dtype="int64")
    vectors = layer({"a": MaskZeros()(inputs)})["a"]
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(vectors))
    keys = np.array([[1, 0, 2], [5, 6, 7]])
    rows = layer({"a": tf.constant(keys)})["a"].numpy()
    expected = [rows[0, [0, 2]].mean(0), rows[1].mean(0)]
    np.testing.assert_allclose(model.predict(keys, verbose=0), expected, rtol=1e-6)
