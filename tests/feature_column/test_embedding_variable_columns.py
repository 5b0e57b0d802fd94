"""`categorical_column_with_embedding`: every id has a row of its own, without masks."""

import os
import subprocess

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_model import OPTIMIZERS, sparse_value, start, v1

from sok_embed import feature_column as fc

Option = fc.EmbeddingVariableOption
START = start(20, 3)
OPTION = Option(init_option=fc.InitializerOption(v1.constant_initializer(START), len(START)))
ROWS = [[1, 2, 2], [], [5], [-9, 2**40], [], [1, 5, 7, 8]]
WEIGHTS = [0.5, 2.0, 1.0, 1.5, 0.25, 1.0, 3.0, 0.25, 0.5, 1.0]


def trained(output, variables, optimizer="adagrad", steps=4):
    """Returns the outputs of some steps of a graph, and what some tensors are after them."""
    size = tf.cast(tf.size(output), tf.float32)
    target = tf.reshape(tf.sin(tf.range(size)), tf.shape(output))
    step = OPTIMIZERS[optimizer]().minimize(tf.reduce_sum(tf.square(output - target)))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        outputs = [session.run((output, step))[0] for _ in range(steps)]
        return outputs, variables(session)


def twin(weights, combiner, optimizer="adagrad"):
    """TensorFlow's own lookup in a variable with a row for each id."""
    ids = sorted({i for row in ROWS for i in row})
    with tf.Graph().as_default():
        table = v1.get_variable("t", initializer=START[np.array(ids) % 20], use_resource=True)
        found = sparse_value([[ids.index(i) for i in row] for row in ROWS])
        places = tf.SparseTensor.from_value(found)
        given = None if weights is None else tf.SparseTensor(found.indices, weights, found[2])
        output = v1.nn.safe_embedding_lookup_sparse(table, places, given, combiner=combiner)
        outputs, rows = trained(output, lambda session: session.run(table), optimizer)
        return outputs, dict(zip(ids, rows, strict=True))


def features(weights=None):
    found = sparse_value(ROWS)
    made = {"c": tf.SparseTensor.from_value(found)}
    if weights is not None:
        made["w"] = tf.SparseTensor(found.indices, weights, found.dense_shape)
    return made


@pytest.mark.cover("values")
@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_bags_in_an_input_layer(combiner, weights):
    with tf.Graph().as_default():
        column = fc.categorical_column_with_embedding("c", tf.int64, ev_option=OPTION)
        if weights is not None:
            column = tf.feature_column.weighted_categorical_column(column, "w")
        dense = fc.embedding_column(column, 3, combiner=combiner)
        output = fc.input_layer(features(weights), [dense])
        outputs, (keys, rows) = trained(output, lambda session: fc.own_rows(dense.name, session))
    expected, expected_rows = twin(weights, combiner)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)
    assert sorted(keys) == sorted(expected_rows)
    for key, row in zip(keys, rows, strict=True):
        np.testing.assert_allclose(row, expected_rows[key], rtol=0, atol=1e-6)


@pytest.mark.cover(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer(optimizer):
    with tf.Graph().as_default():
        column = fc.categorical_column_with_embedding("c", tf.int64, ev_option=OPTION)
        output = fc.input_layer(features(), fc.embedding_column(column, 3))
        assert [v.op.name.rpartition("/")[2] for v in v1.trainable_variables()] == ["anchor"]
        outputs, _ = trained(output, lambda session: None, optimizer)
    np.testing.assert_allclose(outputs, twin(None, "mean", optimizer)[0], rtol=0, atol=1e-5)


def test_sequences_and_shared_rows():
    with tf.Graph().as_default():
        items = fc.sequence_categorical_column_with_embedding("c", tf.int64, ev_option=OPTION)
        rows, lengths = fc.sequence_input_layer(features(), [fc.embedding_column(items, 3)])
        columns = [fc.categorical_column_with_embedding(k, ev_option=OPTION) for k in ("a", "b")]
        shared = fc.shared_embedding_columns(columns, 3)
        same = {"a": tf.constant([["x"], ["y"]]), "b": tf.constant([["y"], [""]])}
        together = fc.input_layer(same, shared)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            rows, lengths, together = session.run((rows, lengths, together))
            assert len(fc.own_rows("a_b_shared_embedding", session)[0]) == 2
    np.testing.assert_array_equal(lengths, [3, 0, 1, 2, 0, 4])
    np.testing.assert_array_equal(rows[0, :3], START[[1, 2, 2]])
    np.testing.assert_array_equal(rows[3, :2], START[[-9 % 20, 2**40 % 20]])
    np.testing.assert_array_equal(together[0, 3:], together[1, :3])
    np.testing.assert_array_equal(together[1, 3:], [0, 0, 0])


def test_a_keras_layer_trains_and_saves_it(tmp_path):
    option = Option(init_option=fc.InitializerOption(tf.zeros_initializer(), 50, 0.25))
    column = fc.categorical_column_with_embedding("c", tf.int64, ev_option=option)
    layer = fc.DenseFeatures([fc.embedding_column(column, 3)])
    given = {"c": keras.Input([2], dtype="int64", name="c")}
    model = keras.Model(given, keras.layers.Dense(1)(layer(given)))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    ids = {"c": np.array([[1, 2], [2, -1], [2**50, 7]])}
    model.fit(ids, np.ones([3, 1]), epochs=2, batch_size=3, verbose=0)
    assert sorted(layer.tables["c_embedding"].export()[0]) == [1, 2, 7, 2**50]
    np.testing.assert_array_equal(layer.static_rows("c_embedding"), np.zeros([50, 3]))
    assert np.abs(layer.tables["c_embedding"].lookup([1])).max() > 0.05
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), model.predict(ids, verbose=0))
    (kept,) = again.layers[1].feature_columns
    assert type(kept.categorical_column) is type(column)
    assert kept.categorical_column.get_config() == column.get_config()


@pytest.mark.parametrize("absent", [None, 0.5])
def test_a_keras_layer_gives_the_default_to_ids_that_a_filter_holds_back(absent):
    initializer = fc.InitializerOption(tf.ones_initializer(), 10, absent)
    option = Option(filter_option=fc.CounterFilter(2), init_option=initializer)
    column = fc.categorical_column_with_embedding("c", tf.int64, ev_option=option)
    layer = fc.DenseFeatures([fc.embedding_column(column, 1)])
    ids = {"c": np.array([[3]])}
    seen = [layer(ids, training=training).numpy()[0, 0] for training in (False, True, True, False)]
    assert seen == [absent or 0, absent or 0, 1, 1]


def test_an_adaptive_column_and_one_of_its_own_rows_side_by_side():
    with tf.Graph().as_default(), v1.Session() as session:
        adaptive = fc.categorical_column_with_adaptive_embedding("a", 4096, tf.int64, slots="zero")
        variable = fc.categorical_column_with_embedding("b", tf.int64)
        assert adaptive._replace(key="b") != variable
        columns = [fc.embedding_column(column, 2) for column in (adaptive, variable)]
        given = {key: tf.constant([[1], [2]], tf.int64) for key in "ab"}
        with pytest.raises(ValueError, match="Received: a mask of 'b'"):
            fc.input_layer(given, columns, adaptive_mask_tensors={"a": [1, 0], "b": [1, 0]})
        output = fc.input_layer(given, columns, adaptive_mask_tensors={"a": [1, 0]})
        session.run(v1.global_variables_initializer())
        session.run(output)
        assert sorted(fc.own_rows("a_embedding", session)[0]) == [1]
        assert sorted(fc.own_rows("b_embedding", session)[0]) == [1, 2]


def test_an_indicator_of_it_is_an_error_and_not_a_collision():
    column = fc.categorical_column_with_embedding("c", tf.int64)
    dense = tf.feature_column.indicator_column(column)
    with tf.Graph().as_default(), pytest.raises((ValueError, OverflowError, TypeError)):
        fc.input_layer({"c": tf.constant([[1]], tf.int64)}, [dense])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fc.categorical_column_with_embedding(3), "key must be a string"),
        (lambda: fc.categorical_column_with_embedding("c", tf.float32), "string or integer"),
        (
            lambda: fc.categorical_column_with_embedding("c", partition_num=0),
            "partition_num of column 'c'.*Received: 0",
        ),
        (lambda: fc.categorical_column_with_embedding("c", ev_option=3), "ev_option to be"),
        (
            lambda: fc.embedding_column(
                fc.categorical_column_with_embedding("c"), 2, "mean", None, "folder", "name"
            ),
            "Column 'c': expected no ckpt_to_load_from.*tf.compat.v1.train.Saver",
        ),
    ],
)
def test_what_has_no_meaning_is_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_regularizer_of_the_scope_is_an_error():
    dense = fc.embedding_column(fc.categorical_column_with_embedding("c", tf.int64), 2)
    with tf.Graph().as_default():
        given = {"c": tf.constant([[1]], tf.int64)}
        with v1.variable_scope("m", regularizer=tf.nn.l2_loss):
            with pytest.raises(ValueError, match="no regularizer of a variable scope"):
                fc.input_layer(given, [dense])
        with v1.variable_scope("n", regularizer=v1.no_regularizer):
            fc.input_layer(given, [dense])


# This is DeepRec's documentation of embedding variables, but for the import and `install()`, for
# another optimizer than Ftrl, whose rule differs there, and for keeping what it prints.
BEGIN = """
import sys, numpy
import tensorflow.compat.v1 as tf
import sok_embed.feature_column
sok_embed.feature_column.install()
tf.disable_v2_behavior()
"""
END = """
fun = tf.multiply(emb, 2.0, name='multiply')
loss = tf.reduce_sum(fun, name='reduce_sum')
opt = tf.train.AdagradOptimizer(0.1)

g_v = opt.compute_gradients(loss)
train_op = opt.apply_gradients(g_v)

init = tf.global_variables_initializer()

sess_config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
with tf.Session(config=sess_config) as sess:
  sess.run([init])
  seen = [sess.run([emb, train_op, loss]) for _ in range(3)]
numpy.savez(sys.argv[1], emb=[e for e, _, _ in seen], loss=[l for _, _, l in seen])
"""
VARIABLE = """
var = tf.get_embedding_variable("var_0",
                                embedding_dim=3,
                                initializer=tf.ones_initializer(tf.float32),
                                partitioner=tf.fixed_size_partitioner(num_shards=4))

shape = [var1.total_count() for var1 in var]

emb = tf.nn.embedding_lookup(var, tf.cast([0,1,2,5,6,7], tf.int64))
"""
COLUMN = """
columns = tf.feature_column.categorical_column_with_embedding("col_emb", dtype=tf.dtypes.int64)
W = tf.feature_column.embedding_column(categorical_column=columns,
            dimension=3,
            initializer=tf.ones_initializer(tf.dtypes.float32))

ids={}
ids["col_emb"] = tf.SparseTensor(indices=[[0,0],[1,1],[2,2],[3,3],[4,4]], values=tf.cast([1,2,3,4,5], tf.dtypes.int64), dense_shape=[5, 5])

emb = tf.feature_column.input_layer(ids, [W])
"""  # noqa: E501


@pytest.mark.cover(1)
@pytest.mark.parametrize("script", [VARIABLE, COLUMN], ids=["get_embedding_variable", "column"])
def test_a_documented_example_of_deeprec_gives_what_numpy_gives(script, tmp_path):
    result = subprocess.run(
        forked.program(BEGIN + script + END, tmp_path / "out.npz"),
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    got = np.load(tmp_path / "out.npz")
    value, accumulator = 1.0, 0.1
    for emb, loss in zip(got["emb"], got["loss"], strict=True):
        np.testing.assert_allclose(emb, np.full(emb.shape, value), rtol=0, atol=1e-6)
        np.testing.assert_allclose(loss, 2 * value * emb.size, rtol=1e-6)
        accumulator += 4.0
        value -= 0.1 * 2.0 / np.sqrt(accumulator)
