"""Ids that a model casts from floats itself are checked; computed ones are not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import sok_embed as sok
from sok_embed.feature_column import (
    DenseFeatures,
    categorical_column_with_embedding,
    embedding_column,
)

BIG = 2**25
IDS = np.array([[BIG + 1, 0.5], [BIG + 2, 0.25], [3, 2.0**30]])  # beside a column of numbers
SMALL = np.array([[2**24 - 1, 0.5], [-4, 0.25], [3, 2.0**30]])
TARGETS = np.ones((3, 1), np.float32)
CAST = "ids that the cast from float32 in the model keeps apart"
LAYERS = {
    "dynamic": lambda: sok.DynamicEmbedding(2, seed=1),
    "combiner": lambda: sok.DynamicEmbedding(2, seed=1, combiner="sum"),
    "all2all": lambda: sok.All2AllDenseEmbedding(64, 2, 1, 1, dynamic_input=True),
    "adaptive": lambda: sok.AdaptiveEmbedding(2, static_buckets=4),
    "hashed": lambda: sok.HashedEmbedding(2**40, 2, 1e-10),
    "bag": lambda: sok.HashedEmbeddingBag(2**40, 2, 1e-10),
    "collection": lambda: sok.DistributedEmbedding(
        sok.FeatureConfig("a", sok.TableConfig("t", None, 2))
    ),
}
BAGS = ("combiner", "bag")


def functional(layer, cast, bags=False):
    """Makes a model of a matrix of floats, whose first column has ids."""
    matrix = keras.Input((2,), name="matrix")
    vectors = layer(cast(matrix[:, :1] if bags else matrix[:, 0]))
    return compiled(keras.Model(matrix, keras.layers.Dense(1)(vectors)))


def compiled(model, eagerly=False):
    model.compile("sgd", "mse", run_eagerly=eagerly)
    return model


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    """The same as a class."""

    def __init__(self, layer, cast, bags):
        super().__init__()
        self.layer, self.cast, self.bags = layer, cast, bags
        self.dense = keras.layers.Dense(1)

    def call(self, matrix):
        return self.dense(self.layer(self.cast(matrix[:, :1] if self.bags else matrix[:, 0])))


def to_int64(floats):
    return ops.cast(floats, "int64")


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_a_cast_that_merged_ids_ends_training(name, kind):
    layer = LAYERS[name]()
    if kind == "functional":
        model = functional(layer, to_int64, name in BAGS)
    else:
        model = compiled(Subclassed(layer, to_int64, name in BAGS))
    with pytest.raises(tf.errors.InvalidArgumentError, match=CAST):
        model.fit(IDS, TARGETS, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=CAST):
        model.predict(IDS, verbose=0)
    if hasattr(layer, "table"):
        assert layer.table.size() == 0


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", list(LAYERS))
def test_ids_that_floats_hold_are_taken(name):
    layer = LAYERS[name]()
    ids = np.abs(SMALL)
    model = functional(layer, to_int64, name in BAGS)
    model.fit(ids, TARGETS, verbose=0)
    model(ids.astype(np.float32))
    if name in ("dynamic", "combiner", "all2all"):
        assert sorted(layer.table.export()[0]) == [3, 4, 2**24 - 1]


def test_a_functional_model_that_runs_eagerly_is_checked_too():
    layer = LAYERS["dynamic"]()
    model = functional(layer, to_int64)
    with pytest.raises(ValueError, match=CAST):
        model(IDS.astype(np.float32), training=True)
    model.run_eagerly = True
    with pytest.raises(ValueError, match=CAST):
        model.fit(IDS, TARGETS, verbose=0)
    assert layer.table.size() == 0


MOVES = {
    "round": lambda x: ops.cast(ops.round(x), "int64"),
    "tf": lambda x: tf.cast(x, tf.int64),
    "int32": lambda x: ops.cast(ops.cast(x, "int32"), "int64"),
    "stack": lambda x: ops.stack([ops.cast(x, "int64"), ops.ones_like(x, "int64") * 2**40], 1)[
        :, 0
    ],
    "concatenate": lambda x: ops.concatenate([ops.cast(x, "int64"), ops.cast(x, "int64")])[:3],
    "where": lambda x: tf.where(x < 0, tf.zeros_like(x, tf.int64), tf.cast(x, tf.int64)),
    "double": lambda x: ops.cast(ops.cast(x, "float64"), "int64"),
    "shift": lambda x: ops.cast(x, "int64") + 1,
    "shift of a column": lambda x: ops.cast(ops.stack([x, x], 1), "int64")[:, 0] - 2**40,
    "shift before": lambda x: ops.cast(x + 1.0, "int64"),
    "bound": lambda x: ops.maximum(ops.cast(x, "int64"), 0),
    "clip before": lambda x: ops.cast(ops.clip(x, 0, 2**30), "int64"),
    "reshape": lambda x: ops.reshape(ops.cast(ops.reshape(x, (-1, 1)), "int64"), (-1,)),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", list(MOVES))
def test_casts_are_found_behind_ops_that_move_values(name):
    layer = LAYERS["dynamic"]()
    model = compiled(Subclassed(layer, MOVES[name], False))
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids that the cast from"):
        model.fit(IDS, TARGETS, verbose=0)
    assert layer.table.size() == 0


@pytest.mark.parametrize("floats", [np.nan, np.inf, -np.inf, -(2.0**24)])
def test_what_is_not_a_number_of_an_id_is_found(floats):
    model = functional(LAYERS["dynamic"](), to_int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=CAST):
        model.predict(np.array([[floats, 0]]), verbose=0)


@pytest.mark.parametrize(
    "dtype, limit", [("float16", 2**11), ("bfloat16", 2**8), ("float64", 2**31)]
)
def test_the_bound_is_that_of_the_narrower_type(dtype, limit):
    layer = LAYERS["dynamic"]()

    @tf.function
    def look_up(floats):
        return layer(tf.cast(floats, tf.int32), training=True)

    look_up(tf.constant([limit - 1], dtype))
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids that the cast from"):
        look_up(tf.constant([limit], dtype))


def test_a_cast_of_ids_to_fewer_bits_is_found():
    layer = LAYERS["dynamic"]()
    ids = keras.Input((), dtype="int64")
    model = compiled(keras.Model(ids, keras.layers.Dense(1)(layer(ops.cast(ids, "int32")))))
    model.fit(np.array([1, 2**31 - 1, -(2**31)]), TARGETS, verbose=0)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="cast from int64 in the model keeps apart"
    ):
        model.fit(np.array([1, 2**31, 5]), TARGETS, verbose=0)


COMPUTED = {
    "a bound that ids hold": lambda x: ops.minimum(ops.cast(x, "int64"), 99),
    "a bound over a choice": lambda x: ops.minimum(tf.where(x > 0, ops.cast(x, "int64"), 0), 99),
    "a bound over a part": lambda x: ops.clip(
        ops.concatenate([ops.cast(x, "int64"), ops.cast(x, "int64")]), 0, 99
    )[:3],
    "a bound before": lambda x: ops.cast(ops.clip(x, 0, 99), "int64"),
    "buckets": lambda x: ops.cast(ops.floor(x * 1e6), "int64"),
    "digits": lambda x: ops.cast(x / 10, "int64"),
    "argmax": lambda x: ops.argmax(ops.stack([x, -x], 1), 1),
    "discretization": lambda x: keras.layers.Discretization([1.0, 2.0**26])(x),
    "hash": lambda x: tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), 2**60),
    "bits": lambda x: tf.cast(tf.bitcast(tf.cast(x, tf.float32), tf.int32), tf.int64) * 2**30,
    "searchsorted": lambda x: ops.searchsorted(ops.convert_to_tensor([1.0, 2.0**26]), x),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", list(COMPUTED))
def test_ids_that_are_computed_from_numbers_raise_no_alarm(name):
    layer = LAYERS["dynamic"]()
    model = compiled(Subclassed(layer, COMPUTED[name], False))
    model.fit(IDS, TARGETS, verbose=0)
    assert layer.table.size() > 0


@pytest.mark.cover(2)
@pytest.mark.parametrize("by", [1, -1, 2**40, -(2**40)])
def test_shifted_ids_that_floats_hold_are_taken(by):
    layer = LAYERS["dynamic"]()
    model = compiled(Subclassed(layer, lambda x: ops.cast(x, "int64") + by, False))
    model.fit(SMALL, TARGETS, verbose=0)
    assert sorted(layer.table.export()[0]) == [by - 4, by + 3, by + 2**24 - 1]


def test_numbers_beside_the_ids_may_be_large():
    layer = LAYERS["dynamic"]()
    matrix = keras.Input((2,))
    ids = ops.cast(matrix, "int64")[:, 0]  # the cast has seen all columns
    model = compiled(keras.Model(matrix, keras.layers.Dense(1)(layer(ids))))
    model.fit(SMALL, TARGETS, verbose=0)
    assert sorted(layer.table.export()[0]) == [-4, 3, 2**24 - 1]


def test_columns_find_casts_too():
    item = categorical_column_with_embedding("item", dtype=tf.int64)
    features = DenseFeatures([embedding_column(item, 2)])
    matrix = keras.Input((2,))
    model = compiled(keras.Model(matrix, features({"item": ops.cast(matrix[:, 0], "int64")})))
    model.predict(np.abs(SMALL), verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Column .*item.*{CAST}"):
        model.predict(IDS, verbose=0)


def test_columns_refuse_an_input_that_cuts_ids_off():
    item = categorical_column_with_embedding("item", dtype=tf.int64)
    age = tf.feature_column.numeric_column("age", dtype=tf.int32)
    features = DenseFeatures([embedding_column(item, 2), age])
    inputs = {name: keras.Input((1,), dtype="int32", name=name) for name in ("item", "age")}
    model = keras.Model(inputs, features(inputs))
    narrow = {"item": np.array([[5]], np.int32), "age": np.array([[30]])}  # the age is no id
    model.predict(narrow, verbose=0)
    with pytest.raises(ValueError, match="ids in input 'item' .* int32. Received: int64"):
        model.predict({**narrow, "item": np.array([[2**32 + 5]])}, verbose=0)


def test_a_graph_of_many_concatenations_is_looked_through_once():
    layer = LAYERS["dynamic"]()

    @tf.function
    def look_up(floats):
        ids = tf.cast(floats, tf.int64)
        for _ in range(60):  # 2**60 ways lead back to the cast
            ids = tf.concat([ids, ids], 0)[: tf.shape(floats)[0]]
        return layer(ids, training=True)

    look_up(tf.constant([1.0, 2.0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=CAST):
        look_up(tf.constant([BIG * 1.0, 2.0]))


def test_a_graph_of_many_choices_and_shifts_is_looked_through_once():
    layer = LAYERS["dynamic"]()

    def shifted(x):
        ids = ops.cast(x, "int64")
        for bound in range(30):
            ids = tf.where(x > bound, ids + 1, ids)
        return ids

    traced = tf.function(lambda x: layer(shifted(x), training=True))
    graph = traced.get_concrete_function(tf.TensorSpec((3,))).graph
    assert len(graph.get_operations()) < 500
