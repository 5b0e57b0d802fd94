"""Ids are refused that a model casts before a layer sees them, where others come out."""

from __future__ import annotations

import platform

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import Table
from sok_embed.initializers import RowInitializer

BIG = 2**24 + 1  # float32 makes 2**24 of it
IDS = np.array([[BIG, 3]])
TARGETS = np.ones((1, 1), np.float32)
LAYERS = {
    "dynamic": lambda: sok.DynamicEmbedding(2, seed=1),
    "adaptive": lambda: sok.AdaptiveEmbedding(2, static_buckets=4),
    "hashed": lambda: sok.HashedEmbedding(2**26, 2, 1e-5),
    "bag": lambda: sok.HashedEmbeddingBag(2**26, 2, 1e-5),
}
FLOATS = {
    "float32": IDS.astype(np.float32),
    "float64": IDS.astype(np.float64),
    "nan": np.full((1, 2), np.nan),
    "tensor": tf.constant(IDS, tf.float32),
    "sparse": tf.sparse.from_dense(tf.constant(IDS, tf.float32)),
}
MESSAGE = r"2\*\*24 exactly, float64 up to 2\*\*53, and NaN is not an id.*astype\('int64'\)"


def functional(layer, dtype="int64"):
    inputs = keras.Input((2,), dtype=dtype, name="ids")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile("sgd", "mse")
    return model


def sequential(layer):
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int64", name="ids"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


def nested(layer):
    inputs = keras.Input((2,), dtype="int64", name="ids")
    model = keras.Model(inputs, functional(layer)(keras.layers.Identity()(inputs)))
    model.compile("sgd", "mse")
    return model


def uses(model, floats):
    return {
        "fit": lambda: model.fit(floats, TARGETS, verbose=0),
        "predict": lambda: model.predict(floats, verbose=0),
        "call": lambda: model(floats, training=True),
        "dataset": lambda: model.fit(tf.data.Dataset.from_tensors((floats, TARGETS)), verbose=0),
    }


@pytest.mark.cover("values")
@pytest.mark.parametrize("make", [functional, sequential, nested])
@pytest.mark.parametrize("use", ["fit", "predict", "call", "dataset"])
@pytest.mark.parametrize("floats", ["float32", "float64", "nan"])
def test_a_model_that_casts_floats_is_refused_and_no_row_is_made(make, use, floats):
    layer = LAYERS["dynamic"]()
    model = make(layer)
    with pytest.raises(ValueError, match=f"input 'ids.*int64. Received: float.*{MESSAGE}"):
        uses(model, FLOATS[floats])[use]()
    assert layer.table.size() == 0


@pytest.mark.cover("values")
@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("floats", list(FLOATS))
@pytest.mark.parametrize("eagerly", [False, True])
def test_every_layer_refuses(name, floats, eagerly):
    model = functional(LAYERS[name]())
    model.run_eagerly = eagerly
    with pytest.raises(ValueError, match=MESSAGE):
        model.fit(FLOATS[floats], TARGETS, verbose=0)


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("floats", ["float32", "float64", "nan", "tensor"])
def test_a_layer_alone_says_why_floats_are_no_ids(name, floats):
    with pytest.raises(ValueError, match=MESSAGE):
        LAYERS[name]()(FLOATS[floats])


# --- integers that an input of another width cuts off ---------------------------------------------

WIDE = np.array([[5, 2**32 + 5]])  # as int32 both are 5
NARROW = {"int64": "int32", "uint64": "uint32", "uint32": "int32", "int32": "int16"}
INTEGERS = {
    "array": WIDE,
    "tensor": tf.constant(WIDE),
    "sparse": tf.sparse.from_dense(tf.constant(WIDE)),
}
LOSES = "ids in input 'ids.*that its dtype holds, {}. Received: {}.*dtype='{}'"


@pytest.mark.cover("values")
@pytest.mark.parametrize("use", ["fit", "predict", "call", "dataset"])
@pytest.mark.parametrize("ids", list(INTEGERS))
@pytest.mark.parametrize("make", [functional, nested])
def test_an_input_that_cuts_ids_off_is_refused_and_no_row_is_made(make, ids, use):
    layer = sok.DynamicEmbedding(2, seed=1, combiner="sum" if ids == "sparse" else None)
    inputs = keras.Input((2,), dtype="int32", name="ids", sparse=ids == "sparse")
    model = keras.Model(inputs, keras.layers.Flatten()(layer(inputs)))
    if make is nested:
        outer = keras.Input((2,), dtype="int64", name="outer", sparse=ids == "sparse")
        model = keras.Model(outer, model(outer))
    model.compile("sgd", "mse")
    targets = np.ones((1, model.output_shape[-1]), np.float32)
    given = INTEGERS[ids]
    calls = {
        "fit": lambda: model.fit(given, targets, verbose=0),
        "predict": lambda: model.predict(given, verbose=0),
        "call": lambda: model(given, training=True),
        "dataset": lambda: model.fit(tf.data.Dataset.from_tensors((given, targets)), verbose=0),
    }
    with pytest.raises(ValueError, match=LOSES.format("int32", "int64", "int64")):
        calls[use]()
    assert layer.table.size() == 0


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("eagerly", [False, True])
def test_every_layer_refuses_an_input_that_cuts_ids_off(name, eagerly):
    model = functional(LAYERS[name](), "int32")
    model.run_eagerly = eagerly
    with pytest.raises(ValueError, match=LOSES.format("int32", "int64", "int64")):
        model.fit(WIDE, TARGETS, verbose=0)


def test_ragged_ids_that_an_input_cuts_off_are_refused():
    inputs = keras.Input((None,), dtype="int32", name="ids", ragged=True)
    layer = sok.DynamicEmbedding(2, combiner="mean")
    model = keras.Model(inputs, layer(inputs))
    with pytest.raises(ValueError, match=LOSES.format("int32", "int64", "int64")):
        model(tf.RaggedTensor.from_tensor(tf.constant(WIDE)), training=True)
    assert layer.table.size() == 0


def test_a_collection_refuses_an_input_that_cuts_ids_off():
    layer = sok.DistributedEmbedding(
        {"a": sok.FeatureConfig("a", sok.TableConfig("t", None, 2, combiner="sum"))}
    )
    inputs = {"a": keras.Input((2,), dtype="int32", name="ids")}
    model = keras.Model(inputs, layer(inputs)["a"])
    with pytest.raises(ValueError, match=LOSES.format("int32", "int64", "int64")):
        model.predict({"a": WIDE}, verbose=0)


def test_a_layer_that_is_called_by_name_refuses_too():
    inputs = keras.Input((2,), dtype="int32", name="ids")
    model = keras.Model(inputs, sok.DynamicEmbedding(2)(inputs=inputs))
    with pytest.raises(ValueError, match=LOSES.format("int32", "int64", "int64")):
        model.predict(WIDE, verbose=0)


@pytest.mark.parametrize("given, cast", NARROW.items())
def test_every_pair_of_dtypes_that_loses_ids_is_refused(given, cast):
    model = functional(sok.DynamicEmbedding(2), cast)
    with pytest.raises(ValueError, match=LOSES.format(cast, given, given)):
        model.predict(np.array([[1, 2]], given), verbose=0)


@pytest.mark.cover("values")
@pytest.mark.parametrize("given", ["int64", "uint64"])
@pytest.mark.parametrize("cast", ["int64", "uint64"])
def test_casts_between_64_bits_keep_every_key(given, cast):
    ids = np.array([[2**63 + 5, 7]], np.uint64).view(given)
    layer = sok.DynamicEmbedding(2, seed=1)
    model = functional(layer, cast)
    model.fit(ids, TARGETS, verbose=0)
    assert sorted(layer.table.export()[0]) == sorted(ids.view(np.int64)[0])


class Subclassed(keras.Model):
    """A model that hands its inputs on as they are."""

    def __init__(self):
        super().__init__()
        self.layer = sok.DynamicEmbedding(2, seed=1)
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(keras.ops.reshape(self.layer(ids), (-1, 4)))


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_subclassed_model_keeps_every_bit_of_an_id(eagerly):
    model = Subclassed()
    model.compile("sgd", "mse", run_eagerly=eagerly)
    model.fit(WIDE, TARGETS, verbose=0)
    assert sorted(model.layer.table.export()[0]) == [5, 2**32 + 5]


@pytest.mark.cover("values")
@pytest.mark.parametrize("make", [functional, sequential, nested])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_integers_of_every_width_are_taken_as_they_are(make, dtype):
    layer = LAYERS["dynamic"]()
    make(layer).fit(IDS.astype(dtype), TARGETS, verbose=0)
    assert sorted(layer.table.export()[0]) == [3, BIG]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="NaN is another integer there")
def test_a_missing_id_that_numpy_cast_has_the_key_that_messages_and_pages_name():
    layer = LAYERS["dynamic"]()
    with pytest.warns(RuntimeWarning, match="invalid value"):
        ids = np.array([[7.0, np.nan]]).astype("int64")
    functional(layer).fit(ids, TARGETS, verbose=0)
    assert layer.table.contains([-(2**63), 7]).all()
    with pytest.raises(ValueError, match=r"makes the key -2\*\*63 of NaN"):
        layer.table.lookup(np.array([np.nan]))


def test_floats_beside_the_ids_are_nobodys_business():
    ids = keras.Input((2,), dtype="int64", name="ids")
    small = keras.Input((1,), dtype="int32", name="small")  # Keras casts what it is given
    number = keras.Input((1,), name="number")
    layer = LAYERS["dynamic"]()
    flat = keras.layers.Flatten()(layer(ids))
    plain = keras.layers.Flatten()(keras.layers.Embedding(5, 2)(small))
    outputs = keras.layers.Dense(1)(keras.layers.concatenate([flat, plain, number]))
    model = keras.Model({"ids": ids, "small": small, "number": number}, outputs)
    model.compile("sgd", "mse")
    beside = {"small": np.ones((1, 1)), "number": np.ones((1, 1))}
    model.fit({"ids": IDS, **beside}, TARGETS, verbose=0)
    assert sorted(layer.table.export()[0]) == [3, BIG]
    with pytest.raises(ValueError, match="input 'ids"):
        model.fit({"ids": IDS * 1.0, **beside}, TARGETS, verbose=0)


def test_ids_that_are_computed_from_floats_on_purpose_are_taken():
    inputs = keras.Input((2,), name="price")
    layer = LAYERS["dynamic"]()
    buckets = keras.layers.Discretization([1.0, 2.0])(inputs)
    model = keras.Model(inputs, keras.layers.Flatten()(layer(buckets)))
    model(np.array([[0.5, 2.5]], np.float32), training=True)
    assert sorted(layer.table.export()[0]) == [0, 2]


@pytest.mark.parametrize(
    "wrong", [[1.0], np.array([1.0]), np.array([np.nan], np.float32), tf.constant([1.0])]
)
def test_a_table_refuses_floats(wrong):
    table = Table(2, RowInitializer("constant", 0.0, 0.0, None))
    for call in (
        table.lookup,
        table.contains,
        table.remove,
        lambda keys: table.assign(keys, np.zeros((1, 2), np.float32)),
    ):
        with pytest.raises(ValueError, match=MESSAGE):
            call(wrong)
    assert table.size() == 0
