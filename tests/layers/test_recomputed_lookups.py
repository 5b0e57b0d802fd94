"""A lookup that is computed again for its gradient counts its keys once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import feature_column as fc

TIMES = 4  # how often a key is seen before it gets a row


def collection(**options):
    table = sok.TableConfig("table", None, 2, combiner="sum", **options)
    return sok.DistributedEmbedding([sok.FeatureConfig("ids", table)], output="concat")


def column():
    option = fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(filter_freq=TIMES))
    ids = fc.categorical_column_with_embedding("ids", tf.int64, ev_option=option)
    return fc.DenseFeatures([fc.embedding_column(ids, 2)])


FREQUENCY = sok.admission.FrequencyAdmission(TIMES)
BLOOM = sok.admission.CountingBloomAdmission(TIMES, capacity=1000)

# A layer, and the call of it that returns vectors of ids [B, L].
LAYERS = {
    "frequency": lambda: (sok.DynamicEmbedding(2, seed=1, admission=FREQUENCY), lambda ids: ids),
    "bloom": lambda: (sok.DynamicEmbedding(2, seed=1, admission=BLOOM), lambda ids: ids),
    "pooled": lambda: (
        sok.DynamicEmbedding(2, seed=1, admission=FREQUENCY, combiner="sum"),
        lambda ids: ids,
    ),
    "adaptive": lambda: (sok.AdaptiveEmbedding(2, 5, seed=1, promote_after=TIMES), lambda ids: ids),
    "collection": lambda: (collection(admission=FREQUENCY), lambda ids: [ids]),
    "column": lambda: (column(), lambda ids: {"ids": ids}),
}


def table_of(layer):
    if isinstance(layer, sok.DistributedEmbedding):
        return layer.tables["table"]
    return layer.table if hasattr(layer, "table") else next(iter(layer.tables.values()))


class Model(keras.Model):
    """A model whose lookup is computed again in the backward pass."""

    def __init__(self, kind, again):
        super().__init__()
        self.layer, self.inputs_of = LAYERS[kind]()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.vectors = again(lambda ids: self.layer(self.inputs_of(ids), training=True))

    def call(self, ids, training=False):
        vectors = self.vectors(ids) if training else self.layer(self.inputs_of(ids))
        return self.dense(tf.reshape(vectors, [tf.shape(ids)[0], -1])[:, :2])


def step(model, ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(ids, training=True))
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


def trained(model, mode, batches):
    """Yields after each step."""
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model(tf.zeros([1, 2], tf.int64))  # builds it
    model.optimizer.build(model.trainable_variables)
    in_graph = tf.function(lambda ids: step(model, ids))
    for ids in batches:
        if mode == "fit":
            model.fit(ids, np.ones([len(ids), 1]), verbose=0)
        elif mode == "function":
            in_graph(tf.constant(ids))
        else:
            step(model, tf.constant(ids))
        yield


AGAIN = {"recompute_grad": tf.recompute_grad, "remat": keras.remat}


@pytest.mark.cover(6)
@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("mode", ["eager", "function", "fit"])
@pytest.mark.parametrize("kind", LAYERS)
def test_keys_get_rows_when_they_were_seen_often_enough(kind, mode, again):
    random = np.random.default_rng(5)
    batches = random.integers(1, 12, (6, 3, 2))
    model = Model(kind, AGAIN[again])
    seen = np.zeros(12, int)
    for ids, _ in zip(batches, trained(model, mode, batches), strict=True):
        seen += np.bincount(ids.ravel(), minlength=12)
        keys, _ = table_of(model.layer).export()
        assert sorted(keys) == [key for key in range(12) if seen[key] >= TIMES]
    assert 0 < len(keys) < 11


@pytest.mark.cover(2)
@pytest.mark.parametrize("mode", ["eager", "function", "fit"])
@pytest.mark.parametrize("kind", ["frequency", "adaptive"])
def test_rows_are_those_of_a_model_that_computes_nothing_again(kind, mode):
    batches = np.random.default_rng(5).integers(1, 12, (6, 3, 2))
    found = []
    for again in (tf.recompute_grad, lambda lookup: lookup):
        keras.utils.set_random_seed(1)
        model = Model(kind, again)
        for _ in trained(model, mode, batches):
            pass
        found.append(table_of(model.layer).lookup(np.arange(12)))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6)


def test_a_lookup_within_two_that_are_computed_again_counts_once():
    model = Model("adaptive", lambda lookup: tf.recompute_grad(tf.recompute_grad(lookup)))
    for number, _ in enumerate(trained(model, "function", np.full((TIMES, 1, 1), 7))):
        assert table_of(model.layer).size() == (number + 1 == TIMES)
