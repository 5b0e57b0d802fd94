"""A mask that is missing, short, of a wrong type or of wrong values is a clear error."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_model import GraphModel, start, v1

from sok_embed import feature_column as fc

STATIC = start(5, 3)


def columns(weighted=False):
    column = fc.categorical_column_with_adaptive_embedding("c", 5, tf.int64)
    if weighted:
        column = tf.feature_column.weighted_categorical_column(column, "w")
    return [fc.embedding_column(column, 3)]


def sparse_features():
    ids = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64).to_sparse()
    return {"c": ids, "w": tf.SparseTensor(ids.indices, [1.0, 0.0, 2.0], ids.dense_shape)}


def in_graph(masks):
    with tf.Graph().as_default():
        fc.input_layer(sparse_features(), columns(), adaptive_mask_tensors=masks())


def in_layer(masks):
    fc.DenseFeatures(columns())(sparse_features(), masks())


each = pytest.mark.parametrize("call", [in_graph, in_layer])


@each
@pytest.mark.parametrize("masks", [None, {}])
def test_missing(call, masks):
    with pytest.raises(
        ValueError, match="Column 'c': expected a mask.*Received: no mask.*'c': mask"
    ):
        call(lambda: masks)


@each
@pytest.mark.parametrize("length", [0, 2, 4])
def test_of_another_length(call, length):
    with pytest.raises(ValueError, match=rf"Column 'c'.*shape \(3,\).*Received: shape \({length},"):
        call(lambda: {"c": tf.zeros([length], tf.int32)})


@each
def test_of_another_rank(call):
    with pytest.raises(ValueError, match=r"Column 'c'.*Received: shape \(3, 1\)"):
        call(lambda: {"c": tf.zeros([3, 1], tf.int32)})


@each
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.bool_, np.int8])
def test_of_another_type(call, dtype):
    name = np.dtype(dtype).name
    with pytest.raises(ValueError, match=f"Column 'c': expected a mask of int32.*{name}.*tf.cast"):
        call(lambda: {"c": np.zeros(3, dtype)})


@each
def test_of_an_unknown_column(call):
    with pytest.raises(ValueError, match=r"\['c'\].*Received: a mask of 'd'"):
        call(lambda: {"c": np.zeros(3, np.int32), "d": np.zeros(3, np.int32)})


@each
def test_no_dict(call):
    with pytest.raises(ValueError, match="adaptive_mask_tensors to be a dict"):
        call(lambda: np.zeros(3, np.int32))


@pytest.mark.parametrize("value", [2, -1, 2**31 - 1])
def test_of_other_values(value):
    layer = fc.DenseFeatures(columns(), name="features")
    mask = np.array([0, value, 1], np.int32)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"features.c_embedding.*got {value} at position 1"
    ):
        layer(sparse_features(), {"c": mask}, training=True)
    assert layer.tables["c_embedding"].size() == 0
    model = GraphModel(STATIC)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"c_embedding.*got {value} at position 1"
    ):
        model.train([[1, 2], [], [3]], mask)
    np.testing.assert_array_equal(model.static_rows(), STATIC)


def test_of_other_values_for_an_id_without_weight():
    layer = fc.DenseFeatures(columns(weighted=True), name="features")
    mask = np.array([0, 7, 1], np.int32)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="(?s)'c_weighted_by_w_embedding'.*of 1"
    ):
        layer(sparse_features(), {"c": mask})


@pytest.mark.parametrize("length", [1, 4])
def test_of_another_length_that_is_known_late(length):
    model = GraphModel(STATIC)
    feed = model.feed([[1, 2], [], [3]], 0)
    feed[model.mask] = np.zeros(length, np.int32)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"(?s)Column .*c.*: expected a mask with an entry"
    ):
        model.session.run(model.output, feed)


@pytest.mark.parametrize("name", ["c", "c_weighted_by_w"])
def test_a_weighted_column_goes_by_either_name(name):
    layer = fc.DenseFeatures(columns(weighted=True))
    layer(sparse_features(), {name: np.array([1, 1, 0], np.int32)}, training=True)
    keys, _ = layer.tables["c_weighted_by_w_embedding"].export()
    np.testing.assert_array_equal(keys, [1])  # 2 has no weight


def test_two_masks_of_one_column():
    layer = fc.DenseFeatures(columns(weighted=True))
    mask = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="one mask of column 'c'"):
        layer(sparse_features(), {"c": mask, "c_weighted_by_w": mask})


def test_python_integers_are_a_mask():
    layer = fc.DenseFeatures(columns())
    layer(sparse_features(), {"c": [0, 1, 0]}, training=True)
    assert layer.tables["c_embedding"].export()[0] == [2]


def test_of_a_sparse_or_ragged_tensor_values_count():
    for masks in (tf.ragged.constant([[0, 1], [], [1]]), None):
        features = sparse_features()
        if masks is None:
            masks = tf.SparseTensor(features["c"].indices, [0, 1, 1], features["c"].dense_shape)
        layer = fc.DenseFeatures(columns())
        layer(features, {"c": masks}, training=True)
        assert sorted(layer.tables["c_embedding"].export()[0]) == [2, 3]


def test_of_a_dense_feature():
    """Its shape, or one of the values that are there."""
    ids = np.array([[4, -1], [5, 6]])
    for mask in ([[0, 1], [0, 1]], [0, 0, 1]):
        layer = fc.DenseFeatures(columns())
        layer({"c": ids}, {"c": np.array(mask, np.int32)}, training=True)
        np.testing.assert_array_equal(layer.tables["c_embedding"].export()[0], [6])
    layer = fc.DenseFeatures(columns())
    layer({"c": np.array([4, -1, 5])}, {"c": np.array([0, 1, 1], np.int32)}, training=True)
    np.testing.assert_array_equal(layer.tables["c_embedding"].export()[0], [5])
    with pytest.raises(ValueError, match=r"shape \(2, 2\).*Received: shape \(2, 3\)"):
        layer({"c": ids}, {"c": np.zeros([2, 3], np.int32)})


def test_of_a_symbolic_call():
    inputs = {"c": keras.Input((2,), dtype="int64")}
    layer = fc.DenseFeatures(columns())
    with pytest.raises(ValueError, match="Column 'c': expected a mask.*Received: no mask"):
        layer(inputs)
    with pytest.raises(ValueError, match="Column 'c': expected a mask of int32.*int64"):
        layer(inputs, {"c": keras.Input((2,), dtype="int64")})
    with pytest.raises(ValueError, match=r"\['c'\].*a mask of 'x'"):
        layer(inputs, {"x": keras.Input((2,), dtype="int32")})


def test_columns_keep_nothing():
    """The same column in two graphs and a layer, with a mask each."""
    (column,) = columns()
    before = (dict(vars(column)), dict(vars(column.categorical_column)))
    for mask in ([1, 0, 0], [0, 0, 1]):
        with tf.Graph().as_default(), v1.Session() as session:
            output = fc.input_layer(
                sparse_features(), [column], adaptive_mask_tensors={"c": tf.constant(mask)}
            )
            session.run(v1.global_variables_initializer())
            session.run(output)
            assert fc.own_rows("c_embedding")[0] == [[1, 2, 3][mask.index(1)]]
    layer = fc.DenseFeatures([column])
    layer(sparse_features(), {"c": [0, 1, 0]}, training=True)
    assert layer.tables["c_embedding"].export()[0] == [2]
    assert (dict(vars(column)), dict(vars(column.categorical_column))) == before
