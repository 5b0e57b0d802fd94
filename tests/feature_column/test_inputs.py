"""Own rows of all kinds of columns: weighted, sequences, shared; and of variables' scopes."""

import numpy as np
import pytest
import tensorflow as tf
from graph_model import GraphModel, bucket_of, start, v1

from sok_embed import feature_column as fc
from sok_embed import tf_ops

STATIC = start(5, 3)


def table_of(ids, rows):
    """Row i is the own row of ids[i], or its static row."""
    return np.stack([rows.get(i, STATIC[bucket_of(i, 5)]) for i in ids])


def test_bags_of_both_kinds_of_rows():
    """Multi-valued and empty rows, weights, all combiners, against NumPy."""
    rows = [[1, 2, 2], [], [3], [4, 1]]
    flat = [1, 2, 2, 3, 4, 1]
    mask = [1, 0, 0, 0, 1, 1]
    weights = np.array([0.5, 2.0, 1.0, 3.0, 0.25, 4.0])
    for combiner in ("mean", "sqrtn", "sum"):
        for weighted in (False, True):
            model = GraphModel(STATIC, "sgd", combiner=combiner, weighted=weighted)
            for _ in range(2):
                model.train(rows, mask, weights)
            own = model.own_rows()
            assert set(own) == {1, 4}
            static = model.static_rows()
            w = weights if weighted else np.ones(6)
            expected, at = [], 0
            for row in rows:
                places = range(at, at + len(row))
                at += len(row)
                if not row:
                    expected.append(np.zeros(3))
                    continue
                values = [
                    own[flat[i]] if mask[i] else static[bucket_of(flat[i], 5)] for i in places
                ]
                total = sum(w[i] * v for i, v in zip(places, values, strict=True))
                divisor = {
                    "mean": sum(w[i] for i in places),
                    "sqrtn": np.sqrt(sum(w[i] ** 2 for i in places)),
                    "sum": 1.0,
                }[combiner]
                expected.append(total / divisor)
            got = model.embed(rows, mask, weights)
            np.testing.assert_allclose(got, np.stack(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_sequences_of_both_kinds_of_rows(weighted):
    rows = [[1, 2], [], [3, 1, 4]]
    mask = [1, 0, 0, 1, 1]
    model = GraphModel(STATIC, "sgd", sequence=True, weighted=weighted)
    for _ in range(2):
        model.train(rows, mask, np.ones(5))
    own, static = model.own_rows(), model.static_rows()
    assert set(own) == {1, 4}
    expected = np.zeros([3, 3, 3])
    expected[0, 0] = expected[2, 1] = own[1]
    expected[2, 2] = own[4]
    expected[0, 1], expected[2, 0] = static[bucket_of(2, 5)], static[bucket_of(3, 5)]
    np.testing.assert_allclose(model.embed(rows, mask, np.ones(5)), expected, rtol=0, atol=1e-6)
    lengths = model.session.run(model.lengths, model.feed(rows, mask, np.ones(5)))
    np.testing.assert_array_equal(lengths, [2, 0, 3])


def test_sequence_features_are_those_of_the_graph():
    column = fc.sequence_categorical_column_with_adaptive_embedding("c", 5, tf.int64)
    dense = fc.embedding_column(column, 3, initializer=v1.constant_initializer(STATIC))
    price = tf.feature_column.sequence_numeric_column("price")
    layer = fc.SequenceFeatures([dense, price])
    features = {
        "c": tf.ragged.constant([[1, 2], [3]], dtype=tf.int64),
        "price": tf.ragged.constant([[0.5, 1.5], [2.5]]),
    }
    rows, lengths = layer(features, {"c": [1, 0, 0]}, training=True)
    assert layer.tables["c_embedding"].export()[0] == [1]
    expected = np.zeros([2, 2, 4])
    expected[0, :, :3] = STATIC[[bucket_of(1, 5), bucket_of(2, 5)]]
    expected[1, 0, :3] = STATIC[bucket_of(3, 5)]
    expected[..., 3] = [[0.5, 1.5], [2.5, 0]]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(lengths, [2, 1])
    again = fc.SequenceFeatures.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def test_sequence_layers_take_only_sequences():
    column = fc.categorical_column_with_adaptive_embedding("c", 5, tf.int64)
    layer = fc.SequenceFeatures([fc.embedding_column(column, 3)])
    with pytest.raises(ValueError, match="expected a sequence_categorical_column_with_"):
        layer({"c": np.array([[1]])}, {"c": [0]})
    with pytest.raises(ValueError, match="Expected dense columns over sequence"):
        fc.SequenceFeatures([tf.feature_column.numeric_column("x")])


def test_shared_columns_share_own_rows():
    items = [fc.categorical_column_with_adaptive_embedding(k, 5, tf.int64) for k in ("a", "b")]
    columns = fc.shared_embedding_columns(
        items, 3, initializer=v1.constant_initializer(STATIC), shared_embedding_collection_name="s"
    )
    layer = fc.DenseFeatures(columns)
    features = {"a": np.array([[7], [8]]), "b": np.array([[8], [7]])}
    layer(features, {"a": [1, 0], "b": [0, 0]}, training=True)
    assert list(layer.tables) == ["s"] and layer.tables["s"].export()[0] == [7]
    layer.tables["s"].assign([7], np.array([[1, 2, 3]], np.float32))
    got = layer(features, {"a": [1, 0], "b": [0, 1]})
    np.testing.assert_array_equal(got[0], [1, 2, 3, *STATIC[bucket_of(8, 5)]])
    np.testing.assert_array_equal(got[1], [*STATIC[bucket_of(8, 5)], 1, 2, 3])
    start_of_7 = STATIC[bucket_of(7, 5)]
    with tf.Graph().as_default(), v1.Session() as session:
        tensors = {name: tf.constant(ids) for name, ids in features.items()}
        masks = {"a": tf.constant([1, 0]), "b": tf.constant([0, 1])}
        output = fc.input_layer(tensors, columns, adaptive_mask_tensors=masks)
        step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(output))
        session.run(v1.global_variables_initializer())
        session.run((output, step))
        keys, rows = fc.own_rows("s")
        assert keys == [7]
        # The gradients of both columns are summed.
        np.testing.assert_allclose(rows[0], start_of_7 - 0.2, rtol=0, atol=1e-6)
        assert len([v for v in v1.global_variables() if v.shape.rank == 2]) == 1


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint64, tf.string])
def test_ids_of_each_type(dtype):
    column = fc.categorical_column_with_adaptive_embedding("c", 5, dtype)
    dense = fc.embedding_column(column, 3, initializer=v1.constant_initializer(STATIC))
    layer = fc.DenseFeatures([dense])
    if dtype == tf.string:
        ids = tf.constant([["x"], ["y"]])
        keys = tf.strings.to_hash_bucket_fast(["x"], 2**63 - 1).numpy()
        texts = ["x", "y"]
    elif dtype == tf.uint64:
        ids = tf.constant([[2**64 - 2], [3]], tf.uint64)
        keys, texts = [-2], [2**64 - 2, 3]
        ids = tf.SparseTensor([[0, 0], [1, 0]], ids[:, 0], [2, 1])
    else:
        ids = tf.constant([[-7], [3]], dtype)
        keys, texts = [-7], [-7, 3]
    got = layer({"c": ids}, {"c": [1, 0]}, training=True)
    np.testing.assert_array_equal(got, STATIC[[bucket_of(text, 5) for text in texts]])
    np.testing.assert_array_equal(layer.tables["c_embedding"].export()[0], keys)


def test_own_rows_by_the_name_of_their_variable():
    column = fc.categorical_column_with_adaptive_embedding("c", 5, tf.int64)
    with tf.Graph().as_default(), v1.Session() as session:
        for mask in ([1, 0], [0, 1]):
            output = fc.input_layer(
                {"c": tf.constant([[1], [2]], tf.int64)},
                [fc.embedding_column(column, 3)],
                adaptive_mask_tensors={"c": tf.constant(mask)},
            )
            session.run(v1.global_variables_initializer())
            session.run(output)
        with pytest.raises(ValueError, match="input_layer_1/.*'c_embedding', which fits 2"):
            fc.own_rows("c_embedding")
        name = "c_embedding/embedding_weights"
        assert fc.own_rows(f"input_layer/{name}")[0] == [1]
        assert fc.own_rows(f"input_layer_1/{name}", session)[0] == [2]
        with pytest.raises(ValueError, match="'d_embedding', which fits 0"):
            fc.own_rows("d_embedding")
    with pytest.raises(ValueError, match="a session, or a default session"):
        fc.own_rows("c_embedding")


def test_a_scope_that_is_reused_has_the_same_rows():
    column = fc.categorical_column_with_adaptive_embedding("c", 5, tf.int64)
    dense = fc.embedding_column(column, 3)

    def call(mask):
        features = {"c": tf.constant([[1], [2]], tf.int64)}
        return fc.input_layer(features, [dense], adaptive_mask_tensors={"c": tf.constant(mask)})

    with tf.Graph().as_default(), v1.Session() as session:
        template = v1.make_template("model", call)
        outputs = [template([1, 0]), template([1, 1])]
        assert len(v1.trainable_variables()) == 2
        session.run(v1.global_variables_initializer())
        first, second = (session.run(output) for output in outputs)
        np.testing.assert_array_equal(first, second)
        assert sorted(fc.own_rows("c_embedding")[0]) == [1, 2]


def test_a_partitioner_leaves_static_rows_in_one_piece():
    column = fc.categorical_column_with_adaptive_embedding("c", 50, tf.int64)
    with tf.Graph().as_default():
        with v1.variable_scope("m", partitioner=v1.fixed_size_partitioner(4)):
            fc.input_layer(
                {"c": tf.constant([[1]], tf.int64)},
                [fc.embedding_column(column, 3)],
                adaptive_mask_tensors={"c": tf.constant([0])},
            )
            assert v1.get_variable_scope().partitioner is not None
        assert [v.shape for v in v1.trainable_variables()] == [[50, 3], [tf_ops.ANCHOR_SIZE]]


def test_static_rows_start_from_a_checkpoint(tmp_path):
    model = GraphModel(STATIC, plain=True)
    with model.graph.as_default():
        saver = v1.train.Saver([model.static])
        path = saver.save(model.session, str(tmp_path / "model"))
    name = model.static.op.name
    column = fc.categorical_column_with_adaptive_embedding("c", 5, tf.int64)
    dense = fc.embedding_column(column, 3, ckpt_to_load_from=path, tensor_name_in_ckpt=name)
    layer = fc.DenseFeatures([dense])
    np.testing.assert_array_equal(layer.static_rows("c_embedding"), STATIC)
    other = GraphModel(np.zeros_like(STATIC), ckpt_to_load_from=path, tensor_name_in_ckpt=name)
    np.testing.assert_array_equal(other.static_rows(), STATIC)


def test_other_places_are_refused(request):
    column = fc.categorical_column_with_adaptive_embedding("c", 5, tf.int64)
    dense, mask = fc.embedding_column(column, 3), {"c": np.array([0], np.int32)}
    with pytest.raises(ValueError, match="in a TF1 graph.*Use sok_embed.feature_column.DenseF"):
        fc.input_layer({"c": np.array([[1]])}, [dense], adaptive_mask_tensors=mask)
    request.getfixturevalue("first_of_two")
    with pytest.raises(ValueError, match="one worker in a TF1 graph. Received: 2"):
        GraphModel(STATIC)


def test_parsed_examples():
    column = fc.categorical_column_with_adaptive_embedding("c", 5, tf.int64)
    dense = fc.embedding_column(tf.feature_column.weighted_categorical_column(column, "w"), 3)
    spec = tf.feature_column.make_parse_example_spec([dense])
    assert spec == {"c": tf.io.VarLenFeature(tf.int64), "w": tf.io.VarLenFeature(tf.float32)}
    with tf.Graph().as_default():
        assert v1.feature_column.make_parse_example_spec([dense]) == spec
