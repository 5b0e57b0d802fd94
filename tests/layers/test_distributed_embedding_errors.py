"""Each wrong use of a layer of many tables gives one clear error that names layer or feature."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig, kv
from sok_embed.eviction import MaxAge
from sok_embed.kv.table_spec import TableOptions


def table(name="t", dim=2, **arguments):
    return TableConfig(name, arguments.pop("vocabulary_size", None), dim, **arguments)


def feature(name, of=None, **arguments):
    return FeatureConfig(name, of or table(), **arguments)


def layer_of(*features, **arguments):
    return DistributedEmbedding({each.name: each for each in features}, name="fields", **arguments)


KEYS = np.array([1, 2])
RAGGED = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)


@pytest.fixture
def pair():
    shared = table(combiner="sum")
    return layer_of(feature("a", shared), feature("b", shared))


# Configs.


@pytest.mark.parametrize("configs", [None, 3, {"a": "t"}, [table()]], ids=repr)
def test_what_is_no_config_is_refused(configs):
    with pytest.raises(ValueError, match="Expected feature_configs to be a nest.*Received"):
        DistributedEmbedding(configs)


def test_keys_of_a_dict_that_are_no_strings_are_refused():
    with pytest.raises(
        ValueError, match=r"dicts in feature_configs.*strings. Received: 1 \(of type"
    ):
        DistributedEmbedding({"x": {1: feature("a")}})


@pytest.mark.parametrize("configs", [{}, [], {"a": []}], ids=repr)
def test_no_features_at_all_are_refused(configs):
    with pytest.raises(ValueError, match="Expected at least one FeatureConfig. Received: none"):
        DistributedEmbedding(configs)


def test_two_features_of_one_name_are_refused():
    with pytest.raises(ValueError, match="feature to have a name of its own. Received: 'a' twice"):
        DistributedEmbedding([feature("a"), feature("a")])


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"dim": 3}, "embedding_dim"),
        ({"initializer": "ones"}, "initializer"),
        ({"vocabulary_size": 5, "seed": 1}, "vocabulary_size, seed"),
        ({"optimizer": ko.SGD(0.1)}, "optimizer"),
        ({"trainable": False}, "trainable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_two_tables_of_one_name_that_differ_are_refused(other, text):
    one = feature("a", table(optimizer=ko.SGD(0.5) if "optimizer" in other else None))
    with pytest.raises(ValueError, match=f"one config of the table 't'. .* differ in {text}. Give"):
        layer_of(one, feature("b", table(**other)))


def test_two_equal_tables_of_one_name_are_one():
    makers = lambda: table(optimizer=ko.Adam(0.1), initializer=keras.initializers.Ones())  # noqa: E731
    layer = layer_of(feature("a", makers()), feature("b", makers()))
    assert list(layer.tables) == ["t"]


def test_a_key_of_the_dict_that_is_the_name_of_another_feature_is_refused():
    with pytest.raises(ValueError, match=r"'fields': expected feature_configs\['b'\] to be"):
        DistributedEmbedding({"b": feature("a"), "c": feature("b")}, name="fields")


def test_an_exchange_of_another_type_is_refused():
    with pytest.raises(ValueError, match="exchange_dtype to be one of .*'float16'"):
        layer_of(feature("a"), exchange_dtype="float16")


@pytest.mark.parametrize("output", ["concat", "stack"])
def test_features_without_a_combiner_do_not_fit_into_one_tensor(output):
    apart = feature("apart", combiner=None)
    with pytest.raises(
        ValueError, match=f"'fields': expected a combiner.*output='{output}'.*None of apart"
    ):
        layer_of(feature("a"), apart, output=output)


def test_tables_of_different_lengths_are_not_stacked():
    with pytest.raises(
        ValueError, match=r"'fields': expected tables of one.*\[2, 3\]. Use output='concat'"
    ):
        layer_of(feature("a"), feature("b", table("u", 3)), output="stack")


def test_an_output_of_another_name_is_refused():
    with pytest.raises(ValueError, match="output to be one of .*'structure'.*Received: 'sum'"):
        layer_of(feature("a"), output="sum")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, "TableConfig: expected a name"),
        ({"name": 3}, "TableConfig: expected a name"),
        ({"dim": 0}, "embedding_dim"),
        ({"vocabulary_size": 0}, "vocabulary_size"),
        ({"combiner": "min"}, "'t': expected combiner to be one of .*'min'"),
        ({"combiner": "table"}, "'t': expected combiner to be one of .*'table'"),
        ({"placement": "row"}, "'t': expected placement to be one of .*'row'"),
        ({"worker": 1}, "'t': expected placement='worker' beside worker.*'auto', worker=1"),
        ({"placement": "key", "worker": 0}, "'t': expected placement='worker'.*'key', worker=0"),
        ({"placement": "worker", "worker": -1}, "worker to be .*Received: -1"),
        ({"placement": "worker", "worker": True}, "worker to be .*Received: True"),
        ({"max_rows": 0}, "max_rows"),
        ({"seed": 1.5}, "seed"),
        ({"storage": "rows"}, "'t': expected storage to be a sok_embed.kv.Storage.*'rows'"),
        ({"group": 1}, "'t': expected a storage with group=1. Received: storage=None"),
        ({"optimizer": "no such"}, "no such"),
        ({"optimizer": ko.Adam}, "class Adam"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_argument_of_a_table_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        table(**arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": None}, "FeatureConfig: expected a name"),
        ({"of": "t"}, "'a': expected table to be a TableConfig. Received: 't'"),
        ({"combiner": "min"}, "'a': expected combiner to be one of .*'min'"),
        ({"max_length": 0}, "max_length to be .*Received: 0"),
    ],
    ids=["name", "table", "combiner", "max_length"],
)
def test_a_wrong_argument_of_a_feature_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        feature(**{"name": "a", **arguments})


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_an_optimizer_of_a_tables_own_that_clips_by_norm_is_refused(option):
    own = table(optimizer=ko.SGD(0.1, **{option: 1.0}))
    with pytest.raises(ValueError, match=f"'t': .*without {option}. Received: {option}=1.0"):
        layer_of(feature("a", own))


def test_a_group_out_of_range_is_refused(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage, pytest.raises(ValueError, match="group=256"):
        table(storage=storage, group=256)


def test_a_wrong_config_from_a_file_raises_what_the_constructor_raises():
    config = layer_of(feature("a"), output="concat").get_config()
    config["output"] = "sum"
    with pytest.raises(ValueError, match="^Expected output to be one of"):
        DistributedEmbedding.from_config(config)


def test_a_dtype_that_rows_cannot_have_is_refused():
    with pytest.raises(ValueError, match="float64"):
        layer_of(feature("a"), dtype="float64")


# Inputs.


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"a": KEYS, "b": KEYS, "c": KEYS}, "with the keys 'a', 'b' .*Received: 'a', 'b', 'c'"),
        ([KEYS, KEYS], "in a dict with 'a', 'b' .*Received: list"),
        (KEYS, "in a dict with 'a', 'b' .*Received: ndarray"),
        ({"a": KEYS, "b": None}, "of the feature 'b'. Received: None"),
    ],
    ids=["unknown", "list", "tensor", "none"],
)
def test_inputs_of_another_nest_are_refused(pair, inputs, text):
    with pytest.raises(ValueError, match=f"'fields': expected inputs {text}"):
        pair(inputs)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"x": [KEYS]}, r"in a list of 2 \(\['x'\]\). Received: 1"),
        ({"x": KEYS}, r"in a list of 2 \(\['x'\]\). Received: ndarray"),
        ({"x": [KEYS, {"z": KEYS}]}, r"with the keys 'y' \(\['x'\]\[1\]\). Received: 'z'"),
    ],
    ids=["short", "tensor", "key"],
)
def test_a_part_of_a_nest_that_differs_is_named(inputs, text):
    layer = DistributedEmbedding({"x": [feature("a"), {"y": feature("b")}]}, name="fields")
    with pytest.raises(ValueError, match=f"'fields': expected inputs {text}"):
        layer(inputs)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (np.array([1.0, 2.0]), "[Ee]xpected integer keys.*float64"),
        ([1.5, 2.0], "[Ee]xpected integer keys"),
        (tf.constant([1.0]), "expected integer keys or strings. Received: float32"),
        (RAGGED.with_values(tf.zeros(3)), "expected integer keys or strings. Received: float32"),
        (
            np.zeros((2, 2, 2), np.int64),
            r"expected an input of shape \[B\] or \[B, L\].*\(2, 2, 2\)",
        ),
        (np.int64(3), r"expected an input of shape \[B\] or \[B, L\]"),
        (tf.ragged.constant([[[1]]], dtype=tf.int64), "expected"),
    ],
    ids=["float64", "list", "float32", "ragged", "rank3", "scalar", "two ragged"],
)
def test_keys_of_another_type_or_shape_are_refused(pair, keys, text):
    with pytest.raises(ValueError, match=f"Layer 'fields': feature 'b': {text}"):
        pair({"a": KEYS, "b": keys})


def test_symbolic_keys_of_floats_are_refused(pair):
    with pytest.raises(ValueError, match=r"'fields': feature 'b': expected integer.*dtype='int64'"):
        pair({"a": keras.Input((), dtype="int64"), "b": keras.Input(())})


def test_floats_that_a_model_would_cast_are_refused(pair):
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in "ab"}
    model = keras.Model(inputs, pair(inputs)["a"])
    with pytest.raises(ValueError, match="'fields': expected integer ids in input 'b'.*float"):
        model({"a": KEYS, "b": np.array([0.5, 2**30 + 1])})


def test_sparse_keys_have_no_vector_each():
    layer = layer_of(feature("a", combiner=None))
    with pytest.raises(ValueError, match="feature 'a': expected a dense or a ragged.*from_sparse"):
        layer({"a": RAGGED.to_sparse()})


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("key", [5, -1, 2**40])
def test_keys_out_of_a_vocabulary_are_refused(wrap, key):
    layer = layer_of(feature("a"), feature("b", table("u", vocabulary_size=5)))
    given = {"a": tf.constant([key, 0], tf.int64), "b": tf.constant([4, key], tf.int64)}
    text = rf"feature 'b': expected keys of table 'u' in \[0, 5\), got key {key}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        wrap(lambda keys: layer(keys, training=True))(given)
    # Nothing was made for the other table either.
    assert len(layer.tables["t"]) == 0


def test_a_batch_that_would_exceed_max_rows_is_refused():
    layer = layer_of(feature("a", table(max_rows=2)))
    layer({"a": KEYS}, training=True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="table 't'.*2"):
        layer({"a": KEYS + 7}, training=True)
    assert len(layer.tables["t"]) == 2


def test_features_of_different_numbers_of_examples_are_not_concatenated():
    layer = layer_of(feature("a"), feature("b"), output="concat")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="2 of feature 'a' and 3 of feature 'b'"
    ):
        layer({"a": KEYS, "b": np.array([1, 2, 3])})


def test_splits_that_do_not_fit_the_keys_are_refused(pair):
    broken = tf.RaggedTensor.from_row_splits(
        tf.constant([1, 2], tf.int64), tf.constant([0, 1, 3], tf.int64), validate=False
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="feature 'b': "):
        pair({"a": KEYS, "b": broken})


# Weights.


@pytest.mark.parametrize(
    ("keys", "weights", "text"),
    [
        (KEYS, np.array([1.0]), r"expected weights of the shape of the input, \(2,\)"),
        (KEYS, np.ones((2, 1)), r"expected weights of the shape of the input, \(2,\)"),
        (KEYS, np.array([1, 2]), "expected weights to be floats. Received: int64"),
        (KEYS, RAGGED.with_values(tf.ones(3)), "expected weights of the shape of the input"),
        (RAGGED, np.ones((2, 2)), r"expected weights as the input, a RaggedTensor.*\(2, 2\)"),
        (RAGGED, RAGGED.with_values(tf.ones(3)).to_sparse(), "expected weights as the input"),
    ],
    ids=["length", "rank", "integers", "ragged", "dense", "sparse"],
)
def test_weights_that_do_not_lie_as_the_input_are_refused(pair, keys, weights, text):
    with pytest.raises(ValueError, match=f"Layer 'fields': feature 'b': {text}"):
        pair({"a": KEYS, "b": keys}, {"b": weights})


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_weights_of_other_places_are_refused(pair, kind):
    weights = tf.ragged.constant([[1.0], [2.0, 3.0]])
    keys, places = RAGGED, "row_splits"
    if kind == "sparse":
        keys, weights, places = keys.to_sparse(), weights.to_sparse(), "indices"
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"weights of feature 'b' with the {places}"
    ):
        pair({"a": KEYS, "b": keys}, {"b": weights})


def test_flat_weights_of_another_number_are_refused(pair):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="feature 'b': expected one weight a key.* 3, got"
    ):
        pair({"a": KEYS, "b": RAGGED}, {"b": np.ones(2)})


def test_weights_of_a_feature_that_is_combined_by_max_are_refused():
    layer = layer_of(feature("a", combiner="max"))
    with pytest.raises(ValueError, match="feature 'a': expected no weights.*max"):
        layer({"a": KEYS}, {"a": np.ones(2)})


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"c": np.ones(2)}, "with the keys 'a', 'b' .*Received: 'c'"),
        ([np.ones(2), None], "in a dict with 'a', 'b'"),
        (np.ones(2), "in a dict with 'a', 'b'"),
    ],
    ids=["name", "list", "tensor"],
)
def test_weights_of_another_nest_are_refused(pair, weights, text):
    with pytest.raises(ValueError, match=f"'fields': expected weights {text}"):
        pair({"a": KEYS, "b": KEYS}, weights)


def test_an_example_of_more_keys_than_the_feature_may_have_is_refused():
    layer = layer_of(feature("a", max_length=2))
    assert layer({"a": tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)})["a"].shape[0] == 3
    for bags in (tf.ragged.constant([[1], [1, 2, 3]], dtype=tf.int64), np.ones((2, 3), np.int64)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="'a': expected at most max_len"):
            layer({"a": bags})


# Training, saving and workers.


def test_a_step_of_no_optimizer_is_refused(pair):
    pair({"a": KEYS, "b": KEYS})
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(pair({"a": KEYS, "b": KEYS})["a"])
    gradient = tape.gradient(loss, pair.anchor.value)
    with pytest.raises(ValueError, match="'fields'.*anchor.*optimizer"):
        pair.anchor.assign_sub(0.1 * gradient)


def test_a_file_without_rows_is_refused(tmp_path, pair):
    pair.build()
    static = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    static.save_weights(tmp_path / "static.weights.h5")
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in "ab"}
    model = keras.Model(inputs, pair(inputs)["a"])
    with pytest.raises(ValueError, match="'fields'|fields"):
        model.load_weights(tmp_path / "static.weights.h5")


def test_setting_dense_weights_alone_is_refused(pair):
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in "ab"}
    model = keras.Model(inputs, pair(inputs)["a"])
    with pytest.raises(ValueError, match="'fields': expected to set rows and dense weights"):
        model.set_weights([])


def test_a_keras_file_of_one_of_several_workers_is_refused(first_of_two, tmp_path):
    layer = layer_of(feature("a"))
    layer.build()
    with pytest.raises(ValueError, match=re.escape("'fields' is sharded over 2 workers")):
        layer.save_own_variables({})


def test_keys_of_another_worker_are_not_assigned_here(first_of_two):
    layer = layer_of(feature("a"))
    with pytest.raises(ValueError, match="'t': expected keys of worker 0.*lives on worker 1"):
        layer.tables["t"].assign(np.arange(50), np.zeros((50, 2)))


def test_a_worker_that_is_not_there_cannot_hold_a_table(first_of_two):
    table = TableConfig("t", None, 2, placement="worker", worker=2)
    with pytest.raises(ValueError, match="worker of the table 't' to be one of the 2 workers"):
        DistributedEmbedding(FeatureConfig("f", table))


def test_a_process_alone_has_every_table():
    table = TableConfig("t", None, 2, "ones", placement="worker", worker=7)
    layer = DistributedEmbedding(FeatureConfig("f", table))
    np.testing.assert_array_equal(layer(KEYS), np.ones((2, 2)))
    assert layer.plan["t"].placement == "key"


def test_keys_of_a_table_on_another_worker_are_not_assigned_here(first_of_two):
    table = TableConfig("t", None, 2, placement="worker", worker=1)
    layer = DistributedEmbedding(FeatureConfig("f", table))
    with pytest.raises(ValueError, match="'t': expected keys of worker 0.*lives on worker 1"):
        layer.tables["t"].assign([5], np.zeros((1, 2)))


def test_every_worker_takes_all_keys_of_a_replicated_table(first_of_two):
    table = TableConfig("t", 50, 2, placement="replicated")
    layer = DistributedEmbedding(FeatureConfig("f", table))
    layer.tables["t"].assign(np.arange(50), np.zeros((50, 2)))
    assert len(layer.tables["t"]) == 50


@pytest.mark.parametrize("name", ["storage", "eviction"])
def test_a_replicated_table_whose_rows_go_by_a_clock_is_refused(name, tmp_path):
    given = {
        "storage": lambda: kv.Storage(tmp_path / "rows"),
        "eviction": lambda: MaxAge(seconds=5),
    }[name]()
    with pytest.raises(ValueError, match=f"'t': expected no {name} whose rows go by a clock"):
        TableConfig("t", None, 2, placement="replicated", **{name: given})
    by_steps = MaxAge(steps=5)
    TableConfig("t", None, 2, placement="replicated", eviction=by_steps)


@pytest.mark.parametrize("option", [*TableOptions.names(), "initializer", "optimizer"])
def test_an_option_of_a_table_is_sent_to_its_config(option):
    with pytest.raises(ValueError, match=f"{option}.*TableConfig"):
        layer_of(feature("a"), **{option: None})
