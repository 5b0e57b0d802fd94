"""Constraints of rows: rows are those of static Keras layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from static_twins import LAYERS, Static, dynamic, train

import sok_embed as sok

CONSTRAINTS = {
    "non_neg": lambda: keras.constraints.NonNeg(),
    "max_norm": lambda: keras.constraints.MaxNorm(0.7, axis=1),
    "unit_norm": lambda: keras.constraints.UnitNorm(axis=-1),
    "min_max_norm": lambda: keras.constraints.MinMaxNorm(0.5, 0.9, rate=0.5, axis=[1]),
    "function": lambda: lambda rows: tf.clip_by_value(rows, -0.2, 0.4),
}


def _static(constraint):
    # A loss of the whole matrix makes Keras sum gradients of equal ids before Adam squares them.
    return Static(constraint=constraint, regularizer=lambda rows: 0.0 * tf.reduce_sum(rows))


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.cover(2)
def test_rows_are_constrained_as_keras_constrains_a_matrix(kind, constraint):
    """After 50 steps of Adam losses and rows differ by float32's rounding of sums: 1e-5."""
    expected = _static(CONSTRAINTS[constraint]())
    embedding = LAYERS[kind](constraint=CONSTRAINTS[constraint]())
    (losses, _), (got, _) = train(expected), train(embedding)
    np.testing.assert_allclose(got, losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(embedding.trained(), expected.trained(), rtol=1e-5, atol=1e-5)


def test_rows_are_constrained_eagerly_too():
    expected, embedding = _static("non_neg"), dynamic("mean", constraint="non_neg")
    losses = [train(each, run_eagerly=True, steps=3)[0] for each in (expected, embedding)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


def _fit(layer, keys, *, optimizer="sgd", run_eagerly=True):
    """Trains a layer by a gradient of 1 for each element of each key's row."""
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(optimizer, lambda labels, vectors: tf.reduce_sum(vectors, -1))
    model.run_eagerly = run_eagerly
    model.fit(np.array(keys), np.zeros(len(keys)), batch_size=len(keys), verbose=0)


def test_rows_that_a_step_leaves_alone_are_not_constrained():
    layer = sok.DynamicEmbedding(2, "zeros", embeddings_constraint="non_neg")
    layer.table.assign([1, 2], [[-1.0, 1], [-1, 1]])
    _fit(layer, [1, 3], optimizer=keras.optimizers.SGD(0.5))
    np.testing.assert_array_equal(layer.table.lookup([1, 2, 3]), [[0, 0.75], [-1, 1], [0, 0]])
    assert layer.table.metadata([1, 2]).update_nums.tolist() == [1, 0]


def test_keys_that_get_no_row_stay_without():
    admission = sok.admission.FrequencyAdmission(2)
    layer = sok.DynamicEmbedding(2, admission=admission, embeddings_constraint="non_neg")
    _fit(layer, [7, 8, 8])
    assert layer.table.export()[0].tolist() == [8]


def test_rows_that_a_step_evicts_stay_away():
    layer = sok.DynamicEmbedding(
        2, "zeros", eviction=sok.eviction.MinNorm(0.5, every=1), embeddings_constraint="non_neg"
    )
    layer.table.assign([2], [[3.0, 3]])
    _fit(layer, [1, 2])
    assert layer.table.export()[0].tolist() == [2]


def test_rows_wait_for_the_step_that_accumulates_their_gradients():
    optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    layer = sok.DynamicEmbedding(2, "zeros", embeddings_constraint="non_neg")
    layer.table.assign([1], [[-1.0, 1]])
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(optimizer, lambda labels, vectors: tf.reduce_sum(vectors, -1))
    rows = []
    for _ in range(2):
        model.train_on_batch(np.array([1]), np.zeros(1))
        rows.append(layer.table.lookup([1])[0].tolist())
    assert rows == [[-1, 1], [0, 0.5]]


def test_rows_of_a_storage_are_constrained(tmp_path):
    with sok.Storage(tmp_path / "rows") as storage:
        layer = sok.DynamicEmbedding(2, "zeros", storage=storage, embeddings_constraint="non_neg")
        layer.table.assign([1], [[-1.0, 1]])
        _fit(layer, [1], optimizer=keras.optimizers.SGD(0.5))
        storage.flush()
        np.testing.assert_array_equal(layer.table.lookup([1]), [[0, 0.5]])


def test_own_and_static_rows_of_an_adaptive_embedding_are_constrained():
    layer = sok.AdaptiveEmbedding(
        2, 3, embeddings_constraint=keras.constraints.UnitNorm(axis=1), promote_after=2
    )
    for keys in ([1, 2], [1, 3]):  # in the second step key 1 gets its own row
        _fit(layer, keys, run_eagerly=False)
    found = layer.table.snapshot()
    assert found.own.keys.tolist() == [1]
    for rows in (found.own.embeddings, found.static.embeddings):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-4)


def test_optimizers_of_tf1_constrain_rows():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        layer = sok.DynamicEmbedding(2, "zeros", embeddings_constraint="non_neg")
        loss = tf.reduce_sum(layer(tf.constant([1, 2]), training=True))
        step = tf.compat.v1.train.GradientDescentOptimizer(0.5).minimize(
            loss, var_list=[each.value for each in layer.trainable_variables]
        )
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step)
        found = session.run(layer(tf.constant([1, 2]), training=False))
    np.testing.assert_array_equal(found, np.zeros((2, 2)))


@pytest.mark.parametrize("given", ["max_norm", keras.constraints.UnitNorm, "MinMaxNorm"])
def test_a_constraint_of_the_whole_table_is_refused_with_the_axis_to_give(given):
    for make in (
        lambda: sok.DynamicEmbedding(2, embeddings_constraint=given),
        lambda: sok.TableConfig("t", None, 2, constraint=given),
    ):
        with pytest.raises(ValueError, match=r"needs all rows.*keras\.constraints\.\w+\(axis=1\)"):
            make()


@pytest.mark.parametrize("given", [3, "no such", {"class_name": "no"}])
def test_what_is_not_a_constraint_is_refused(given):
    with pytest.raises(ValueError, match="^Expected a constraint: None"):
        sok.DynamicEmbedding(2, embeddings_constraint=given)


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_a_config_of_a_lambda_is_refused_with_what_to_use():
    for name in ("constraint", "regularizer"):
        layer = dynamic(None, **{name: lambda rows: rows}).layer
        with pytest.raises(ValueError, match="(?s)^Expected a .*Use a named function"):
            type(layer).from_config(layer.get_config())


def test_a_constraint_that_changes_the_shape_is_refused():
    layer = sok.DynamicEmbedding(2, embeddings_constraint=lambda rows: rows[:, :1])
    with pytest.raises(ValueError, match="expected a constraint to return rows of the shape"):
        _fit(layer, [1])


@pytest.mark.parametrize("kind", ["dynamic", "adaptive", "all2all", "collection"])
def test_configs_keep_constraints(kind):
    layer = {
        "dynamic": lambda it: sok.DynamicEmbedding(2, embeddings_constraint=it),
        "adaptive": lambda it: sok.AdaptiveEmbedding(2, 3, embeddings_constraint=it),
        "all2all": lambda it: sok.All2AllDenseEmbedding(9, 2, 1, 1, embeddings_constraint=it),
        "collection": lambda it: sok.DistributedEmbedding(
            [sok.FeatureConfig("f", sok.TableConfig("t", None, 2, constraint=it))]
        ),
    }[kind](keras.constraints.MaxNorm(0.5, axis=1))
    again = type(layer).from_config(layer.get_config())
    table = again.tables["t"] if kind == "collection" else again.table
    assert (table.constraint.max_value, table.constraint.axis) == (0.5, 1)
