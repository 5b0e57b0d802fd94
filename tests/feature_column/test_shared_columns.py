"""Columns that share rows are looked up as one, in layers and in graphs, in either order."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_model import v1

from sok_embed import feature_column as fc

# The gradients of the two features.
SCALES = {"a": 1.0, "b": 10.0}
KEY = 7


def _columns(kind, names, sequence=False, **options):
    option = fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(2))
    prefix = "sequence_" if sequence else ""
    if kind == "adaptive":
        make = getattr(fc, f"{prefix}categorical_column_with_adaptive_embedding")
        made = [make(name, 5, tf.int64, ev_option=option) for name in names]
    else:
        make = getattr(fc, f"{prefix}categorical_column_with_embedding")
        made = [make(name, tf.int64, ev_option=option) for name in names]
    start = v1.constant_initializer(0.0)
    return fc.shared_embedding_columns(made, 1, "sum", start, "shared", **options)


def _loss(outputs, names):
    """Returns the loss of outputs `[..., features]`, in the order of the sorted names."""
    scales = [SCALES[feature] for _, feature in sorted(names.items())]
    return tf.reduce_sum(outputs * tf.constant(scales))


def _in_layer(kind, names, sequence):
    layer = (fc.SequenceFeatures if sequence else fc.DenseFeatures)(
        _columns(kind, names, sequence), name="layer"
    )
    features = {name: tf.sparse.from_dense([[KEY], [0]]) for name in names}
    features = {name: tf.cast(each, tf.int64) for name, each in features.items()}
    masks = {name: np.array([1], np.int32) for name in names} if kind == "adaptive" else None
    with tf.GradientTape() as tape:
        outputs = layer(features, masks, training=True)
        loss = _loss(outputs[0] if sequence else outputs, names)
    weights = layer.trainable_variables
    keras.optimizers.SGD(1.0).apply(tape.gradient(loss, weights), weights)
    return layer.tables["shared"].export()[:2], np.array(layer.static_rows("shared"))


def _in_graph(kind, names, sequence):
    with tf.Graph().as_default(), v1.Session() as session:
        features = {name: tf.SparseTensor([[0, 0]], [np.int64(KEY)], [2, 1]) for name in names}
        masks = {name: tf.constant([1]) for name in names} if kind == "adaptive" else None
        columns = _columns(kind, names, sequence)
        if sequence:
            outputs, _ = fc.sequence_input_layer(features, columns, adaptive_mask_tensors=masks)
        else:
            outputs = fc.input_layer(features, columns, adaptive_mask_tensors=masks)
        train = v1.train.GradientDescentOptimizer(1.0).minimize(_loss(outputs, names))
        session.run(v1.global_variables_initializer())
        session.run(train)
        static = v1.get_collection("shared")[0]
        return fc.own_rows("shared", session), session.run(static)


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("run", [_in_layer, _in_graph], ids=["layer", "graph"])
@pytest.mark.parametrize("kind", ["adaptive", "embedding"])
@pytest.mark.parametrize("sequence", [False, True], ids=["bags", "sequences"])
@pytest.mark.parametrize("swapped", [False, True], ids=["in order", "swapped"])
def test_a_key_that_two_columns_admit_gets_the_gradients_of_both(run, kind, sequence, swapped):
    """The filter lets the key in by one occurrence in each column, in one step."""
    names = {"x": "b", "y": "a"} if swapped else {"x": "a", "y": "b"}
    (keys, rows), static = run(kind, names, sequence)
    np.testing.assert_array_equal(keys, [KEY])
    np.testing.assert_array_equal(rows, [[-11.0]])
    np.testing.assert_array_equal(static, np.zeros_like(static))


RULES = {
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
}
IDS = {"a": np.array([[1, 2, 3], [2, 2, 9]]), "b": np.array([[3, 4, 1], [2, 8, 8]])}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["adaptive", "hashed", "vocabulary"])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.cover("values")
def test_static_rows_train_as_those_of_a_dense_table(rule, kind, combiner):
    """An index that two columns have is one index, the gradient of which is the sum.

    The reference is a table with a dense gradient, by the same optimizer of Keras; the difference
    is that of the order of sums.
    """
    if kind == "adaptive":
        made = [fc.categorical_column_with_adaptive_embedding(name, 5, tf.int64) for name in IDS]
        masks = {name: np.zeros([2, 3], np.int32) for name in IDS}
    elif kind == "hashed":
        column = tf.feature_column.categorical_column_with_hash_bucket
        made, masks = [column(name, 5, tf.int64) for name in IDS], None
    else:  # ids that are not in the vocabulary are -1, which has no row
        column = tf.feature_column.categorical_column_with_vocabulary_list
        made, masks = [column(name, [1, 2, 3, 4, 5], tf.int64) for name in IDS], None
    rng = np.random.default_rng(5)
    start, kernel = rng.normal(size=(5, 2)), rng.normal(size=(2, 4)).astype(np.float32)
    initializer = v1.constant_initializer(start)
    layer = fc.DenseFeatures(fc.shared_embedding_columns(made, 2, combiner, initializer, "shared"))

    def counts(ids):
        """Returns how often each example has each row, `[batch, rows]`, divided for a mean."""
        if kind == "vocabulary":
            rows = np.where(ids <= 5, ids - 1, -1)
        else:
            rows = np.array(tf.strings.to_hash_bucket_fast(tf.as_string(ids), 5))
        found = (rows[..., None] == np.arange(5)).sum(1).astype(np.float32)
        return found / np.maximum(found.sum(1, keepdims=True), 1) if combiner == "mean" else found

    table = keras.Variable(start.astype(np.float32))
    optimizers = RULES[rule](), RULES[rule]()
    for _ in range(3):
        with tf.GradientTape() as tape:
            outputs = layer(IDS, masks, training=True)
            loss = tf.reduce_sum((outputs * kernel) ** 2)
        weights = layer.trainable_variables
        optimizers[0].apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            expected = tf.concat([tf.matmul(counts(ids), table.value) for ids in IDS.values()], 1)
            loss = tf.reduce_sum((expected * kernel) ** 2)
        optimizers[1].apply([tf.convert_to_tensor(tape.gradient(loss, table.value))], [table])
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)
    name = "shared"
    np.testing.assert_allclose(layer.static_rows(name), table.numpy(), rtol=0, atol=1e-5)
    assert np.abs(table.numpy() - start).max() > 0.05
