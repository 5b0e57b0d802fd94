"""With every mask 1 an adaptive column is a dynamic table, whose rows start as static ones."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_model import OPTIMIZERS, GraphModel, bucket_of, start, v1

import sok_embed
from sok_embed import feature_column as fc

STATIC = start(5, 3)
ROWS = [[1, 2, 2], [], [5], [-9, 2**40], [], [1, 5, 7, 8]]
WEIGHTS = [0.5, 2.0, -1.0, 1.5, 0.0, 1.0, 3.0, 0.25, -0.5, 1.0]


def dense_twin(optimizer, rows, weights, steps, **arguments):
    """Trains a variable with a row for each id, under TensorFlow's own lookup and optimizer."""
    ids = sorted({i for row in rows for i in row})
    begin = np.stack([STATIC[bucket_of(i, len(STATIC))] for i in ids])
    with tf.Graph().as_default(), v1.Session() as session:
        sparse = tf.ragged.constant([[ids.index(i) for i in r] for r in rows], dtype=tf.int64)
        sparse = sparse.to_sparse()
        sparse_weights = None
        if weights is not None:
            sparse_weights = tf.SparseTensor(
                sparse.indices, tf.constant(weights, tf.float32), sparse.dense_shape
            )
        table = v1.get_variable("table", initializer=begin, use_resource=True)
        output = v1.nn.safe_embedding_lookup_sparse(table, sparse, sparse_weights, **arguments)
        size = tf.cast(tf.size(output), tf.float32)
        target = tf.reshape(tf.sin(tf.range(size)), tf.shape(output))
        step = OPTIMIZERS[optimizer]().minimize(tf.reduce_sum(tf.square(output - target)))
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(step)
        return dict(zip(ids, session.run(table), strict=True))


@pytest.mark.cover("values")
@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_bags_of_any_size(combiner, weights):
    ours = GraphModel(STATIC, "adagrad", combiner=combiner, weighted=weights is not None)
    for _ in range(4):
        ours.train(ROWS, 1, weights)
    expected = dense_twin("adagrad", ROWS, weights, 4, combiner=combiner)
    got = ours.own_rows()
    kept = {i for i, w in zip(sum(ROWS, []), WEIGHTS, strict=True) if w > 0}
    # An id without weight is not looked up, so it has no row.
    assert set(got) == (set(expected) if weights is None or combiner == "sum" else kept)
    for key, row in got.items():
        np.testing.assert_allclose(row, expected[key], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ours.static_rows(), STATIC)


@pytest.mark.cover(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer(optimizer):
    ours = GraphModel(STATIC, optimizer)
    for _ in range(6):
        ours.train(ROWS, 1)
    expected = dense_twin(optimizer, ROWS, None, 6)
    got = ours.own_rows()
    assert set(got) == set(expected)
    for key, row in got.items():
        np.testing.assert_allclose(row, expected[key], rtol=0, atol=2e-6)


def test_longest_rows():
    ours = GraphModel(STATIC, "sgd", max_norm=0.5)
    for _ in range(3):
        ours.train(ROWS, 1)
    expected = dense_twin("sgd", ROWS, None, 3, max_norm=0.5)
    for key, row in ours.own_rows().items():
        np.testing.assert_allclose(row, expected[key], rtol=0, atol=1e-6)


def test_strings_go_by_63_bits_of_their_hash():
    ours = GraphModel(STATIC, dtype=tf.string)
    words = ["a", "bb", "c c", ""]
    ours.train([[word] for word in words], 1)
    keys = tf.strings.to_hash_bucket_fast(words, 2**63 - 1).numpy()
    assert set(ours.own_rows()) == set(keys)


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_a_layer_trains_as_a_dynamic_embedding(optimizer):
    """Under `fit`; DynamicEmbedding's rows are put where static rows start."""
    random = np.random.default_rng(2)
    ids = random.integers(0, 60, (40, 3)) * 3 - 92  # never -1, which is missing
    targets = random.normal(size=(40, 1)).astype(np.float32)
    rows = []
    for adaptive in (True, False):
        inputs = {"c": keras.Input((3,), dtype="int64", name="c")}
        if adaptive:
            column = fc.categorical_column_with_adaptive_embedding("c", 5, tf.int64)
            dense = fc.embedding_column(
                column, 3, "sum", initializer=v1.constant_initializer(STATIC)
            )
            layer = fc.DenseFeatures([dense])
            inputs["mask"] = keras.Input((3,), dtype="int32", name="mask")
            embedded = layer({"c": inputs["c"]}, {"c": inputs["mask"]})
            table = layer.tables["c_embedding"]
        else:
            layer = sok_embed.DynamicEmbedding(3)
            embedded = keras.ops.sum(layer(inputs["c"]), axis=1)
            table = layer.table
            keys = np.unique(ids)
            table.assign(keys, np.stack([STATIC[bucket_of(key, 5)] for key in keys]))
        ones = keras.initializers.Ones()
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=ones)(embedded))
        model.compile(keras.optimizers.get({"class_name": optimizer, "config": {}}), "mse")
        features = {"c": ids, "mask": np.ones_like(ids, np.int32)}
        features = {name: features[name] for name in inputs}
        model.fit(features, targets, batch_size=8, epochs=2, shuffle=False, verbose=0)
        order = np.argsort(table.export()[0])
        rows.append(tuple(array[order] for array in table.export()))
    np.testing.assert_array_equal(rows[0][0], rows[1][0])
    np.testing.assert_allclose(rows[0][1], rows[1][1], rtol=0, atol=1e-6)
