"""With every mask 0 an adaptive column is TensorFlow's own over hash buckets."""

import numpy as np
import pytest
import tensorflow as tf
from graph_model import OPTIMIZERS, GraphModel, start, v1
from tensorflow.python.feature_column import feature_column as fc_v1

from sok_embed import feature_column as fc

STATIC = start(7, 3)
ROWS = [[1, 2, 2], [], [5], [-9, 2**40], [], [1, 5, 7, 8]]
WEIGHTS = [0.5, 2.0, -1.0, 1.5, 0.0, 1.0, 3.0, 0.25, -0.5, 1.0]
WORDS = [["a", "b", "b"], [], ["c"], ["", "d d"], [], ["a", "c", "e", "ü"]]
SEQUENCE = [[[1, 2], [3]], [[4]], [[5, 6, 7], [8], [9, 1]]]


def assert_trains_alike(static, optimizer, rows, weights=None, steps=4, atol=1e-6, **arguments):
    """Outputs, lengths and static rows of both, step by step."""
    arguments["weighted"] = weights is not None
    column = arguments.pop("column", None)
    ours = GraphModel(static, optimizer, column=column, **arguments)
    theirs = GraphModel(static, optimizer, plain=True, **arguments)
    for _ in range(steps):
        got = ours.train(rows, 0, weights)
        np.testing.assert_allclose(got, theirs.train(rows, 0, weights), rtol=0, atol=atol)
    np.testing.assert_allclose(ours.static_rows(), theirs.static_rows(), rtol=0, atol=atol)
    assert np.abs(ours.static_rows() - static).max() > 100 * atol
    assert ours.own_rows() == {}


@pytest.mark.cover("values")
@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_bags_of_any_size(combiner, weights):
    assert_trains_alike(STATIC, "adagrad", ROWS, weights, combiner=combiner)


@pytest.mark.cover(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer(optimizer):
    assert_trains_alike(STATIC, optimizer, ROWS)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_strings(weights):
    assert_trains_alike(STATIC, "adam", WORDS, weights, dtype=tf.string)


def test_ids_of_int32():
    assert_trains_alike(STATIC, "sgd", [[1, -2], [3]], dtype=tf.int32)


@pytest.mark.cover("values")
@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_longest_rows(combiner, weights):
    assert_trains_alike(STATIC, "sgd", ROWS, weights, combiner=combiner, max_norm=0.7)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_the_lookup_that_is_not_safe(weights):
    rows = [[1, 2, 2], [5], [-9, 2**40], [1, 5, 7, 8]]
    assert_trains_alike(STATIC, "sgd", rows, weights, use_safe_embedding_lookup=False)


def test_no_ids_at_all():
    ours, theirs = GraphModel(STATIC), GraphModel(STATIC, plain=True)
    for model in (ours, theirs):
        np.testing.assert_array_equal(model.train([[], []]), np.zeros([2, 3]))
    np.testing.assert_array_equal(ours.static_rows(), STATIC)


def sequence_output(library, columns, features, masks=None):
    """Returns what TensorFlow's sequence columns give, which have no layer any more."""
    if library is fc:
        return fc.sequence_input_layer(features, columns, adaptive_mask_tensors=masks)
    return columns[0]._get_sequence_dense_tensor(fc_v1._LazyBuilder(features))


@pytest.mark.parametrize("rank", [2, 3])
def test_sequences(rank):
    rows = [[1, 2], [3], [4, 5, 6]] if rank == 2 else SEQUENCE
    ids = tf.ragged.constant(rows, dtype=tf.int64)
    outputs = []
    for library in (fc, tf.feature_column):
        with tf.Graph().as_default(), v1.Session() as session:
            features = {"c": tf.ragged.constant(rows, dtype=tf.int64).to_sparse()}
            if library is fc:
                column = fc.sequence_categorical_column_with_adaptive_embedding("c", 7, tf.int64)
            else:
                column = tf.feature_column.sequence_categorical_column_with_hash_bucket(
                    "c", 7, tf.int64
                )
            dense = library.embedding_column(column, 3, initializer=v1.constant_initializer(STATIC))
            mask = tf.zeros([ids.flat_values.shape[0]], tf.int32)
            output, lengths = sequence_output(library, [dense], features, {"c": mask})
            (weights,) = [v for v in v1.global_variables() if v.shape.rank == 2]
            gradient = tf.convert_to_tensor(v1.gradients(tf.reduce_sum(output**2), weights)[0])
            session.run(v1.global_variables_initializer())
            outputs.append(session.run((output, lengths, gradient)))
    for ours, theirs in zip(*outputs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_shared_columns():
    outputs = []
    for library in (fc, v1.feature_column):
        with tf.Graph().as_default(), v1.Session() as session:
            features = {
                "a": tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64).to_sparse(),
                "b": tf.ragged.constant([[2], [4, 9], [3]], dtype=tf.int64).to_sparse(),
            }
            make = (
                fc.categorical_column_with_adaptive_embedding
                if library is fc
                else tf.feature_column.categorical_column_with_hash_bucket
            )
            columns = library.shared_embedding_columns(
                [make(key, 7, dtype=tf.int64) for key in "ba"],
                3,
                initializer=v1.constant_initializer(STATIC),
            )
            masks = {key: tf.zeros([n], tf.int32) for key, n in (("a", 3), ("b", 4))}
            arguments = {"adaptive_mask_tensors": masks} if library is fc else {}
            output = library.input_layer(features, columns, **arguments)
            (weights,) = [v for v in v1.global_variables() if v.shape.rank == 2]
            optimizer = v1.train.AdagradOptimizer(0.1)
            step = optimizer.minimize(tf.reduce_sum((output - 1) ** 2))
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(step)
            outputs.append((weights.op.name, *session.run((output, weights))))
    assert outputs[0][0] == outputs[1][0]
    for ours, theirs in zip(outputs[0][1:], outputs[1][1:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_static_rows_have_tensorflows_name_and_collections():
    for trainable in (True, False):
        ours = GraphModel(STATIC, trainable=trainable)
        theirs = GraphModel(STATIC, plain=True, trainable=trainable)
        assert ours.static.name == theirs.static.name
        for graph_keys in (v1.GraphKeys.MODEL_VARIABLES, v1.GraphKeys.TRAINABLE_VARIABLES):
            names = [v.name for v in ours.graph.get_collection(graph_keys)]
            expected = {v.name for v in theirs.graph.get_collection(graph_keys)}
            assert expected <= set(names)


def test_tensorflows_columns_are_tensorflows():
    hashed = tf.feature_column.categorical_column_with_hash_bucket("c", 7)
    column = fc.embedding_column(hashed, 3)
    assert type(column) is type(tf.feature_column.embedding_column(hashed, 3))


@pytest.mark.parametrize(
    "wrap",
    [
        tf.feature_column.indicator_column,
        lambda column: tf.feature_column.indicator_column(
            tf.feature_column.weighted_categorical_column(column, "w")
        ),
        lambda column: tf.feature_column.embedding_column(
            column, 3, initializer=v1.constant_initializer(STATIC)
        ),
    ],
)
def test_to_tensorflows_dense_columns_it_is_a_hash_bucket_column(wrap):
    outputs = []
    for make in (
        fc.categorical_column_with_adaptive_embedding,
        tf.feature_column.categorical_column_with_hash_bucket,
    ):
        with tf.Graph().as_default(), v1.Session() as session:
            ids = tf.ragged.constant(ROWS, dtype=tf.int64).to_sparse()
            weights = tf.SparseTensor(ids.indices, tf.constant(WEIGHTS), ids.dense_shape)
            output = fc.input_layer({"c": ids, "w": weights}, [wrap(make("c", 7, dtype=tf.int64))])
            session.run(v1.global_variables_initializer())
            outputs.append(session.run(output))
    np.testing.assert_array_equal(*outputs)
