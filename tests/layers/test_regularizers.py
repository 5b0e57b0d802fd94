"""Regularizers of rows: the losses and rows are those of static Keras layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from static_twins import IDS, LABELS, LAYERS, Static, dynamic, train

import sok_embed as sok

REGULARIZERS = {
    "l1": lambda: keras.regularizers.L1(0.01),
    "l2": lambda: keras.regularizers.L2(0.02),
    "l1l2": lambda: keras.regularizers.L1L2(0.01, 0.02),
    "function": lambda: lambda rows: 0.01 * tf.reduce_sum(tf.abs(rows) ** 3),
}


@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.cover(1)
def test_rows_are_regularized_as_keras_regularizes_a_matrix(kind, regularizer):
    """After 50 steps of Adam losses and rows differ by float32's rounding of sums: 1e-5."""
    expected = Static(regularizer=REGULARIZERS[regularizer]())
    embedding = LAYERS[kind](regularizer=REGULARIZERS[regularizer]())
    (losses, model), (got, ours) = train(expected), train(embedding)
    np.testing.assert_allclose(got, losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(embedding.trained(), expected.trained(), rtol=1e-5, atol=1e-5)
    evaluated = [each.evaluate(IDS[0], LABELS[0], verbose=0) for each in (model, ours)]
    assert evaluated[1] == pytest.approx(evaluated[0], rel=1e-5)


def test_rows_are_regularized_eagerly_too():
    expected, embedding = Static(regularizer="l2"), dynamic("mean", regularizer="l2")
    losses = [train(each, run_eagerly=True, steps=3)[0] for each in (expected, embedding)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


def test_only_rows_of_the_batch_are_regularized_and_each_once():
    layer = sok.DynamicEmbedding(2, embeddings_regularizer=lambda rows: tf.reduce_sum(rows))
    layer.table.assign([1, 2, 3], [[1.0, 1], [10, 10], [100, 100]])
    layer(np.array([[2, 1], [2, 2]]))
    assert float(layer.losses[0]) == 22


def test_a_regularizer_sees_float32_under_mixed_precision():
    seen = []

    def note(rows):
        seen.append(rows.dtype)
        return tf.reduce_sum(rows)

    for combiner in (None, "sum"):
        layer = sok.DynamicEmbedding(
            2, combiner=combiner, embeddings_regularizer=note, dtype="mixed_bfloat16"
        )
        assert layer(np.array([[1, 2]])).dtype == tf.bfloat16
    assert seen == [tf.float32] * 2


def test_keys_are_counted_once_by_an_admission():
    admission = sok.admission.FrequencyAdmission(2)
    layer = sok.DynamicEmbedding(2, "uniform", admission=admission, embeddings_regularizer="l2")
    layer(np.array([1]), training=True)
    assert layer.table.size() == 0
    layer(np.array([1]), training=True)
    assert layer.table.size() == 1


def test_an_adaptive_embedding_counts_a_static_row_once_a_key():
    layer = sok.AdaptiveEmbedding(2, 1, embeddings_regularizer=lambda rows: tf.reduce_sum(rows**2))
    vectors = layer(np.array([5, 6, 6]))
    assert float(layer.losses[0]) == pytest.approx(2 * float(tf.reduce_sum(vectors[0] ** 2)))


@pytest.mark.parametrize("kind", ["dynamic", "adaptive", "all2all", "collection"])
def test_configs_keep_regularizers(kind):
    layer = {
        "dynamic": lambda it: sok.DynamicEmbedding(2, embeddings_regularizer=it),
        "adaptive": lambda it: sok.AdaptiveEmbedding(2, 3, embeddings_regularizer=it),
        "all2all": lambda it: sok.All2AllDenseEmbedding(9, 2, 1, 1, embeddings_regularizer=it),
        "collection": lambda it: sok.DistributedEmbedding(
            [sok.FeatureConfig("f", sok.TableConfig("t", None, 2, regularizer=it))]
        ),
    }[kind](keras.regularizers.L2(0.5))
    again = type(layer).from_config(layer.get_config())
    if kind == "collection":
        found = again.get_config()["feature_configs"]
        assert "'l2': 0.5" in str(found)
    else:
        assert again.embeddings_regularizer.l2 == 0.5


# Weights do not go with "max".
@pytest.mark.cover(5)
@pytest.mark.parametrize(
    "combiner, weighted",
    [("sum", False), ("mean", False), ("sqrtn", False), ("max", False)]
    + [("sum", True), ("mean", True), ("sqrtn", True)],
)
@pytest.mark.parametrize("form", ["dense", "ragged"])
def test_bags_are_pooled_as_without_a_regularizer(combiner, form, weighted):
    ids = tf.ragged.constant([[1, 2, 2], [], [3]], dtype=tf.int64)
    weights = ids.with_values(tf.constant([0.5, -1.0, 2.0, 0.0]))
    if form == "dense":
        ids, weights = ids.to_tensor(7), weights.to_tensor(1.5)
    outputs, gradients = [], []
    for regularizer in (None, lambda rows: 0.0 * tf.reduce_sum(rows)):
        layer = sok.DynamicEmbedding(
            3, combiner=combiner, embeddings_regularizer=regularizer, seed=1
        )
        table = sok.TableConfig("t", None, 3, combiner=combiner, regularizer=regularizer, seed=1)
        collection = sok.DistributedEmbedding([sok.FeatureConfig("f", table)])
        given = weights if weighted else None
        for call in (layer, lambda ids, weights: collection([ids], [weights])[0]):  # noqa: B023
            with tf.GradientTape() as tape:
                factors = None if given is None else tf.nest.map_structure(tf.identity, given)
                flat = getattr(factors, "flat_values", factors)
                if flat is not None:
                    tape.watch(flat)
                vectors = call(ids, factors)
                loss = tf.reduce_sum(vectors**2)
            outputs.append(vectors)
            gradients.append(tape.gradient(loss, flat) if weighted else tf.zeros(1))
    for ours, plain in ((2, 0), (3, 1)):
        np.testing.assert_allclose(outputs[ours], outputs[plain], rtol=1e-6)
        np.testing.assert_allclose(gradients[ours], gradients[plain], rtol=1e-5, atol=1e-6)
