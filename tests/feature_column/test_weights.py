"""Weights lie beside their ids, with padding, missing ids and weights of 0 and below.

The reference combines static rows in float64, of the ids that are neither missing nor padding.
"""

import numpy as np
import pytest
import tensorflow as tf
from graph_model import start, v1

from sok_embed import feature_column as fc

BUCKETS, DIM, PADDING = 7, 3, 5
STATIC = start(BUCKETS, DIM)
IDS = np.array([[5, 7, 5, 9], [5, 5, 5, 5], [3, 4, 5, 8], [-1, 7, 5, 6], [2, 3, 4, -1]])
WEIGHTS = np.array(
    [[9, 2, 8, 0.5], [1, 2, 3, 4], [0, 1, 3, -2], [4, 1, 2, 0], [0, 0, 3, 7]], np.float32
)


def _columns(kind, combiner, padding, safe=True):
    if kind == "adaptive":
        make = fc.categorical_column_with_adaptive_embedding
        column = make("a", BUCKETS, tf.int64, padding_value=padding)
    else:
        option = fc.EmbeddingVariableOption(
            init_option=fc.InitializerOption(default_value_dim=BUCKETS)
        )
        make = fc.categorical_column_with_embedding
        column = make("a", tf.int64, ev_option=option, padding_value=padding)
    weighted = tf.feature_column.weighted_categorical_column(column, "w")
    start = v1.constant_initializer(STATIC)
    return [fc.embedding_column(weighted, DIM, combiner, start, use_safe_embedding_lookup=safe)]


def _features(form, ids, weights):
    """Returns ids and weights in a form; "mixed" ids are sparse and have dense weights."""
    if form == "dense":
        return ids, weights
    there = ids != -1
    row_splits = np.concatenate([[0], there.sum(1).cumsum()])
    ragged = [tf.RaggedTensor.from_row_splits(each[there], row_splits) for each in (ids, weights)]
    sparse = [
        tf.SparseTensor(np.argwhere(there), each[there], ids.shape) for each in (ids, weights)
    ]
    return {"ragged": ragged, "sparse": sparse, "mixed": [sparse[0], weights]}[form]


def _combined(kind, combiner, padding, safe=True):
    if kind == "adaptive":
        rows = STATIC[np.array(tf.strings.to_hash_bucket_fast(tf.as_string(IDS), BUCKETS))]
    else:
        rows = STATIC[IDS % BUCKETS]
    weights = WEIGHTS.astype(np.float64) * ((IDS != -1) & (IDS != padding))
    if safe and combiner != "sum":
        weights = np.maximum(weights, 0)
    sums = (rows * weights[..., None]).sum(1)
    if combiner == "sum":
        return sums
    by = weights.sum(1) if combiner == "mean" else np.sqrt((weights**2).sum(1))
    return sums / np.where(by, by, 1)[:, None]


def _in_layer(columns, features, masks):
    # Keras takes arrays or tensors, not both.
    features = tf.nest.map_structure(tf.convert_to_tensor, features, expand_composites=True)
    return np.array(fc.DenseFeatures(columns)(features, masks))


def _in_graph(columns, features, masks):
    with tf.Graph().as_default(), v1.Session() as session:
        copies = tf.nest.map_structure(
            lambda value: tf.constant(np.array(value)), features, expand_composites=True
        )
        masks = masks and {name: tf.constant(mask) for name, mask in masks.items()}
        outputs = fc.input_layer(copies, columns, adaptive_mask_tensors=masks)
        session.run(v1.global_variables_initializer())
        return session.run(outputs)


def _masks(kind, form, ids):
    if kind != "adaptive":
        return None
    mask = np.zeros(ids.shape, np.int32)
    return {"a": mask if form == "dense" else mask[ids != -1]}


@pytest.mark.cover("values")
@pytest.mark.parametrize("run", [_in_layer, _in_graph], ids=["layer", "graph"])
@pytest.mark.parametrize("kind", ["adaptive", "embedding"])
@pytest.mark.parametrize("form", ["dense", "ragged", "sparse", "mixed"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("padding", [None, PADDING])
def test_weights_are_those_of_the_ids_that_are_combined(run, kind, form, combiner, padding):
    if run is _in_graph and form == "ragged":
        form = "sparse"  # TensorFlow's graphs take no ragged features
    ids, weights = _features(form, IDS, WEIGHTS)
    columns = _columns(kind, combiner, padding)
    found = run(columns, {"a": ids, "w": weights}, _masks(kind, form, IDS))
    np.testing.assert_allclose(found, _combined(kind, combiner, padding), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", [_in_layer, _in_graph], ids=["layer", "graph"])
@pytest.mark.parametrize("kind", ["adaptive", "embedding"])
def test_weights_of_an_unsafe_lookup(run, kind):
    """Each example has an id, as such a lookup needs; a weight of 0 or below counts."""
    columns = _columns(kind, "sum", None, safe=False)
    ids, weights = _features("dense", IDS, WEIGHTS)
    found = run(columns, {"a": ids, "w": weights}, _masks(kind, "dense", IDS))
    np.testing.assert_allclose(found, _combined(kind, "sum", None, False), rtol=1e-5, atol=1e-6)


def test_a_weight_of_0_beside_a_missing_id_is_not_taken_for_another():
    """TensorFlow leaves the 0 out, and the weight of the missing id takes its place."""
    columns = _columns("adaptive", "sum", None)
    features = {"a": np.array([[4, -1]]), "w": np.array([[0.0, 2.0]], np.float32)}
    found = _in_layer(columns, features, {"a": np.zeros((1, 2), np.int32)})
    np.testing.assert_array_equal(found, np.zeros((1, DIM)))


@pytest.mark.parametrize("kind", ["adaptive", "embedding"])
def test_weights_at_other_places_than_ids_are_refused(kind):
    ids = tf.SparseTensor([[0, 0], [1, 0]], np.array([3, 4]), [2, 2])
    weights = tf.SparseTensor([[0, 0], [0, 1]], np.float32([1, 2]), [2, 2])
    masks = {"a": np.zeros(2, np.int32)} if kind == "adaptive" else None
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights 'w' of column 'a'.*indices"):
        _in_layer(_columns(kind, "sum", None), {"a": ids, "w": weights}, masks)
    dense = np.ones((2, 1), np.float32)
    ids = tf.SparseTensor([[0, 0], [1, 1]], np.array([3, 4]), [2, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not index into param shape"):
        _in_layer(_columns(kind, "sum", None), {"a": ids, "w": dense}, masks)


def test_an_id_of_padding_gets_no_row_and_its_weight_no_gradient():
    layer = fc.DenseFeatures(_columns("embedding", "sum", PADDING))
    weights = tf.Variable(WEIGHTS)
    with tf.GradientTape() as tape:
        outputs = layer({"a": tf.constant(IDS), "w": weights.value()}, training=True)
    keys, _ = layer.tables["a_weighted_by_w_embedding"].export()
    assert set(keys) == {2, 3, 4, 6, 7, 8, 9}
    gradient = tf.convert_to_tensor(tape.gradient(outputs, weights))
    rows = STATIC[IDS % BUCKETS].sum(-1)
    np.testing.assert_allclose(
        gradient, rows * ((IDS != -1) & (IDS != PADDING)), rtol=1e-5, atol=1e-6
    )
