"""Norms of accumulated gradients are those of what is applied, though keys get rows meanwhile."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from seeds import seed_of_test

import sok_embed as sok

DIM, CALLS, BUCKETS = 2, 3, 4
KEYS = np.arange(12)


class Twin:
    """Static and own rows, and a dense weight, in NumPy with float64.

    A gradient goes to the own row of its key if the key has one at the end of the window.
    """

    def __init__(self, buckets, promote_after, clip):
        self.buckets, self.promote_after, self.clip = buckets, promote_after, clip
        self.rows = {("static", bucket): np.zeros(DIM) for bucket in range(BUCKETS)}
        self.seen = np.zeros(len(KEYS), int)
        self.dense = np.zeros(DIM)

    def row_of(self, key):
        own = ("own", key)
        return own if own in self.rows else ("static", self.buckets[key])

    def look_up(self, keys):
        found = np.stack([self.rows[self.row_of(key)] for key in keys])
        self.seen += np.bincount(keys, minlength=len(KEYS))
        for key in keys:
            if self.seen[key] >= self.promote_after:
                self.rows.setdefault(("own", key), self.rows["static", self.buckets[key]].copy())
        return found

    def apply(self, window):
        """Applies the mean of the gradients of a window: keys, their gradients, the dense one."""
        sums, dense = {}, np.zeros(DIM)
        for keys, gradients, of_dense in window:
            dense = dense + of_dense / CALLS
            for key, gradient in zip(keys, gradients, strict=True):
                row = self.row_of(key)
                sums[row] = sums.get(row, 0.0) + gradient / CALLS
        kind, bound = self.clip
        of_rows = np.sqrt(sum(np.sum(each**2) for each in sums.values()))
        of_dense = np.linalg.norm(dense) or bound
        if kind == "global_clipnorm":
            of_rows = of_dense = np.hypot(of_rows, np.linalg.norm(dense))
        for row, gradient in sums.items():
            self.rows[row] = self.rows[row] - gradient * min(1.0, bound / of_rows)
        self.dense = self.dense - dense * min(1.0, bound / of_dense)


@pytest.mark.parametrize("owner", ["model", "layer"])
@pytest.mark.parametrize("kind", ["clipnorm", "global_clipnorm"])
@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.cover("pairs")
def test_rows_equal_a_dense_twin(kind, mode, owner):
    random = np.random.default_rng(seed_of_test())
    own = keras.optimizers.SGD(1.0, **{kind: 0.8}) if owner == "layer" else None
    layer = sok.AdaptiveEmbedding(
        DIM, BUCKETS, embeddings_initializer="zeros", promote_after=3, optimizer=own
    )
    dense = keras.Variable(np.zeros(DIM, np.float32))
    layer.build()
    clips = {kind: 0.8} if own is None else {}
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=CALLS, **clips)
    variables = [layer.anchor, dense]
    optimizer.build(variables)

    def step(keys, factors, of_dense):
        with tf.GradientTape() as tape:
            vectors = layer(keys, training=True)
            loss = tf.reduce_sum(factors * vectors) + tf.reduce_sum(of_dense * dense)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return vectors

    call = tf.function(step, reduce_retracing=True) if mode == "function" else step
    twin = Twin(layer.table.buckets(KEYS), 3, (kind, 0.8))
    for _ in range(6):
        window = []
        for _ in range(CALLS):
            keys = random.integers(0, len(KEYS), 4)
            factors = random.normal(size=(4, DIM)).astype(np.float32)
            # The optimizer of a layer has a norm for itself, and that of the model has none then.
            of_dense = (random.normal(size=DIM) * (own is None)).astype(np.float32)
            vectors = call(tf.constant(keys), tf.constant(factors), tf.constant(of_dense))
            np.testing.assert_allclose(vectors, twin.look_up(keys), rtol=0, atol=2e-6)
            window.append((keys, factors.astype(np.float64), of_dense.astype(np.float64)))
        twin.apply(window)
        expected = np.stack([twin.rows[twin.row_of(key)] for key in KEYS])
        np.testing.assert_allclose(layer.table.lookup(KEYS), expected, rtol=0, atol=2e-6)
        np.testing.assert_allclose(dense.numpy(), twin.dense, rtol=0, atol=2e-6)
    assert 0 < layer.table.size()


def test_a_step_is_not_longer_than_its_norm_though_gradients_cancelled_in_a_static_row():
    """The first call has a norm of 0, as two keys of one bucket get opposite gradients."""
    layer = sok.AdaptiveEmbedding(
        DIM, 1, embeddings_initializer="zeros", promote_after=2, demote_blend=0.0
    )
    layer.build()
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2, clipnorm=0.8)
    optimizer.build([layer.anchor])
    for keys, factors in (([1, 2], [[4.0, 0.0], [-4.0, 0.0]]), ([1, 3], [[0.0, 2.0], [0.0, 0.0]])):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.constant(factors) * layer(tf.constant(keys), training=True))
        optimizer.apply(tape.gradient(loss, [layer.anchor]), [layer.anchor])
    # Key 1 has a row of its own by now, and key 2 has not. Of their mean gradients:
    own, static = np.array([2.0, 1.0]), np.array([-2.0, 0.0])
    factor = 0.8 / 3.0
    found = layer.table.lookup([1, 2])
    np.testing.assert_allclose(found, [-factor * own, -factor * static], rtol=0, atol=1e-6)
