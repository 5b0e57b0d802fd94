"""Lookups of TFRA's names return and train what TensorFlow's do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tfra

de = tfra.dynamic_embedding
ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
SPARSE = tf.SparseTensor(
    [[0, 0], [0, 1], [1, 0], [3, 2]], tf.constant([4, 0, 4, 5], tf.int64), [4, 3]
)
WEIGHTS = SPARSE.with_values([1.0, 0.5, 2.0, 3.0])


@pytest.fixture
def variable():
    made = de.get_variable("looked_up", dim=3)
    made.upsert(tf.range(6, dtype=tf.int64), ROWS)
    return made


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_lookups_are_tensorflows(variable, max_norm):
    ids = tf.constant([[1, 4], [4, 0]], tf.int64)
    expected = tf.nn.embedding_lookup(ROWS, ids, max_norm=max_norm)
    for lookup in (de.embedding_lookup, de.embedding_lookup_unique):
        close(lookup(variable, ids, name="a", max_norm=max_norm), expected)


@pytest.mark.cover("values")
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("default_id", [None, 2])
def test_sparse_lookups_are_tensorflows(variable, combiner, weights, max_norm, default_id):
    expected = tf.nn.safe_embedding_lookup_sparse(
        ROWS, SPARSE, weights, combiner, default_id, max_norm
    )
    found = de.safe_embedding_lookup_sparse(
        variable, SPARSE, weights, combiner, default_id, max_norm=max_norm
    )
    close(found, expected)
    if default_id is None:
        close(
            de.embedding_lookup_sparse(
                [variable], SPARSE, weights, combiner=combiner, max_norm=max_norm
            ),
            expected,
        )


def test_weights_that_are_not_positive_are_left_out_of_means_and_negative_keys_are_keys(variable):
    ids = tf.SparseTensor([[0, 0, 0], [0, 1, 1]], tf.constant([-5, 1], tf.int64), [1, 2, 2])
    variable.upsert(tf.constant([-5], tf.int64), [[9.0, 9.0, 9.0]])
    weights = ids.with_values([1.0, -1.0])
    found = de.safe_embedding_lookup_sparse(variable, ids, weights)
    assert found.shape == (1, 2, 3)
    close(found, [[[9, 9, 9], [0, 0, 0]]])
    close(de.safe_embedding_lookup_sparse(variable, ids, weights, "sum")[0, 1], -ROWS[1])


def test_rows_train_as_a_matrix_does(variable):
    """By lookups of two names, whose weight a script adds to the list each time."""
    matrix = tf.Variable(ROWS)
    ids = tf.constant([1, 4, 1], tf.int64)
    optimizers = keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)
    optimizer = de.DynamicEmbeddingOptimizer(optimizers[0])
    for _ in range(3):
        with tf.GradientTape() as tape:
            one, weight = de.embedding_lookup(variable, ids, name="one", return_trainable=True)
            two, again = de.safe_embedding_lookup_sparse(
                variable, SPARSE, WEIGHTS, name="two", return_trainable=True
            )
            loss = tf.reduce_sum(one**2) + tf.reduce_sum(two**3)
        weights = [*variable.trainable_variables, weight, again]
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            one = tf.nn.embedding_lookup(matrix, ids)
            two = tf.nn.safe_embedding_lookup_sparse(matrix, SPARSE, WEIGHTS)
            loss = tf.reduce_sum(one**2) + tf.reduce_sum(two**3)
        optimizers[1].apply_gradients([(tf.convert_to_tensor(tape.gradient(loss, matrix)), matrix)])
    trained = [0, 1, 4, 5]
    close(variable.lookup(tf.constant(trained, tf.int64)), matrix.numpy()[trained])
    assert list(variable.trainable_store) == ["one", "two"]
    assert variable.get_trainable_by_name("one") is weight
    assert de.trainable_wrapper_filter(weight)
    assert not de.trainable_wrapper_filter(matrix)
    with pytest.raises(ValueError, match="'three'"):
        variable.get_trainable_by_name("three")


def test_nothing_is_trained_in_inference_mode(variable):
    de.enable_inference_mode()
    try:
        assert de.get_model_mode() == "inference"
        with tf.GradientTape() as tape:
            vectors, weight = de.embedding_lookup(
                variable, tf.constant([77], tf.int64), name="a", return_trainable=True
            )
        assert tape.gradient(vectors, weight) is None
        variable(tf.constant([78], tf.int64), training=True)
        assert int(variable.size()) == 6
    finally:
        de.enable_train_mode()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda v: de.embedding_lookup(ROWS, [1]), TypeError, "Expected a Variable"),
        (lambda v: de.embedding_lookup([v, v], [1]), ValueError, "Expected one variable"),
        (lambda v: de.embedding_lookup(v, [1.5]), ValueError, "integer"),
        (
            lambda v: de.embedding_lookup_sparse(v, SPARSE, None, combiner="max"),
            ValueError,
            "sqrtn",
        ),
        (lambda v: de.embedding_lookup_sparse(v, tf.constant([1]), None), TypeError, "dense"),
        (lambda v: de.safe_embedding_lookup_sparse(v, [[1]]), TypeError, "from_dense"),
    ],
)
def test_what_cannot_be_looked_up_is_refused(variable, call, error, text):
    with pytest.raises(error, match=text):
        call(variable)
