"""One layer of many tables gives what NumPy says of its rows."""

from __future__ import annotations

import collections
import dataclasses
import sys
import types
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from collection_cases import (
    BATCH,
    CASES,
    DIMS,
    KEYS,
    assert_pooled,
    both,
    data_of,
    inputs_of,
    make_layer,
    one_table,
    random_batch,
    start_of,
    symbolic_inputs,
    weights_of,
)
from keras import optimizers as ko

from sok_embed import DistributedEmbedding, FeatureConfig, tf_ops
from sok_embed.configs import configs


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_every_feature_is_what_numpy_makes_of_its_rows(wrap):
    batch, layer = random_batch(), make_layer()
    outputs = wrap(lambda keys, weights: layer(keys, weights))(inputs_of(batch), weights_of(batch))
    assert_pooled(outputs, batch, start_of())


def test_the_static_twin_of_these_tests_is_what_numpy_says():
    batch = random_batch()
    *_, theirs = both(start_of())
    outputs = theirs.layer(inputs_of(batch), weights_of(batch))
    assert_pooled(outputs, batch, start_of())


def test_a_graph_that_knows_no_batch_size_gives_the_same():
    batch, layer = random_batch(), make_layer()
    spec = data_of(BATCH).element_spec[0]
    traced = tf.function(
        lambda given: layer(given["keys"], given["weights"]), input_signature=[spec]
    )
    outputs = traced({"keys": inputs_of(batch), "weights": weights_of(batch)})
    assert_pooled(outputs, batch, start_of())


def test_empty_bags_and_bags_whose_weights_sum_to_zero_are_zeros():
    table = one_table()
    combiners = ("sum", "mean", "sqrtn", "max")
    layer = DistributedEmbedding(
        {name: FeatureConfig(name, table, combiner=name) for name in combiners}
    )
    layer.tables["t"].assign([5, 7], [[-1.0, -2.0], [-3.0, -1.0]])
    keys = tf.ragged.constant([[], [5, 7], [5]], dtype=tf.int64)
    # Weights that add up to 0 matter where their sum is a divisor, which it is not for "sum".
    weights = {
        "sum": keys.with_values([0.5, -0.5, 0.0]),
        "mean": keys.with_values([0.5, -0.5, 0.0]),
        "sqrtn": keys.with_values([0.0, 0.0, 2.0]),
    }
    outputs = layer(dict.fromkeys(combiners, keys), weights)
    np.testing.assert_array_equal(outputs["sum"], [[0, 0], [1, -0.5], [0, 0]])
    np.testing.assert_array_equal(outputs["mean"], np.zeros((3, 2)))
    np.testing.assert_array_equal(outputs["sqrtn"], [[0, 0], [0, 0], [-1, -2]])
    np.testing.assert_array_equal(outputs["max"], [[0, 0], [-1, -1], [-1, -2]])


@pytest.mark.parametrize(
    ("combiner", "form"),
    [
        (combiner, form)
        for combiner in ("sum", "mean", "sqrtn", "max", None)
        for form in ("flat", "dense", "ragged", "sparse")
        if (combiner, form) != (None, "sparse")  # it is refused
    ],
)
def test_a_batch_without_examples_has_an_empty_output(combiner, form):
    keys = {
        "flat": np.zeros([0], np.int64),
        "dense": np.zeros([0, 3], np.int64),
        "ragged": tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), [0]),
        "sparse": tf.SparseTensor(np.zeros([0, 2], np.int64), np.zeros([0], np.int64), [0, 3]),
    }[form]
    output = DistributedEmbedding(FeatureConfig("f", one_table(combiner=combiner)))(keys)
    if combiner is None and form != "flat":
        assert output.shape[0] == 0 and output.shape[-1] == 2
    else:
        assert output.shape == (0, 2)


def test_bags_of_no_keys_in_a_dense_input_are_zeros():
    layer = DistributedEmbedding(FeatureConfig("f", one_table(combiner="mean")))
    np.testing.assert_array_equal(layer(np.zeros([3, 0], np.int64)), np.zeros([3, 2]))


@pytest.mark.parametrize("output", ["concat", "stack"])
def test_outputs_in_one_tensor_are_those_of_the_structure_in_their_order(output):
    names = tuple(name for name, case in CASES.items() if case.combiner and case.table != "items")
    batch = {name: bags for name, bags in random_batch().items() if name in names}
    apart = make_layer(names=names)(inputs_of(batch), weights_of(batch))
    layer = make_layer(names=names, output=output)
    found = layer(inputs_of(batch), weights_of(batch))
    parts = [apart[name] for name in sorted(names)]
    expected = tf.concat(parts, 1) if output == "concat" else tf.stack(parts, 1)
    np.testing.assert_array_equal(found, expected)
    shapes = {name: keys.shape for name, keys in inputs_of(batch).items()}
    assert layer.compute_output_shape(shapes) == found.shape


def test_concatenated_outputs_may_differ_in_their_length():
    names = ("item", "item_best", "user")
    batch = {name: bags for name, bags in random_batch().items() if name in names}
    found = make_layer(names=names, output="concat")(inputs_of(batch))
    apart = make_layer(names=names)(inputs_of(batch))
    np.testing.assert_array_equal(found, tf.concat([apart[name] for name in names], 1))


def test_configs_and_inputs_may_be_any_nest_of_dicts_and_lists():
    table = one_table(combiner="sum")
    f = [FeatureConfig(f"f{i}", table) for i in range(5)]
    layer = DistributedEmbedding({"b": [f[0], (f[1], {"x": f[2]})], "a": f[3], "c": [f[4]]})
    layer.tables["t"].assign(range(10), np.arange(20.0).reshape(10, 2))
    keys = [np.array([[i, 9 - i]]) for i in range(5)]
    weights = [np.array([[1.0, 10.0 * i]]) for i in range(5)]
    outputs = layer(
        {"a": keys[3], "b": [keys[0], (keys[1], {"x": keys[2]})], "c": [keys[4]]},
        {"a": weights[3], "b": [weights[0], (None, {"x": weights[2]})]},
    )
    assert isinstance(outputs["b"][1], tuple)
    found = [outputs["b"][0], *outputs["b"][1][:1], outputs["b"][1][1]["x"]]
    for i, output in enumerate([*found, outputs["a"], outputs["c"][0]]):
        factor = 1 if i in (1, 4) else 10 * i
        first, second = np.array([2 * i, 2 * i + 1]), np.array([18 - 2 * i, 19 - 2 * i])
        np.testing.assert_array_equal(output, [first + factor * second])


def test_weights_of_features_in_a_nest_may_come_by_their_names():
    table = one_table(combiner="sum")
    layer = DistributedEmbedding({"x": [FeatureConfig("a", table), FeatureConfig("b", table)]})
    layer.tables["t"].assign([1], [[1.0, 2.0]])
    keys = np.array([1, 1])
    first, second = layer({"x": [keys, keys]}, {"b": np.array([3.0, 4.0])})["x"]
    np.testing.assert_array_equal(first, [[1, 2], [1, 2]])
    np.testing.assert_array_equal(second, [[3, 6], [4, 8]])


def test_a_single_config_takes_and_gives_a_single_tensor():
    layer = DistributedEmbedding(FeatureConfig("f", one_table(combiner="sum")))
    layer.tables["t"].assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(layer(np.array([[1, 2], [2, 2]])), [[4, 6], [6, 8]])
    np.testing.assert_array_equal(layer(np.array([1, 2]), np.array([2.0, 0.5])), [[2, 4], [1.5, 2]])


def test_an_ordered_dict_of_configs_is_a_dict_of_sorted_keys():
    # keras.tree keeps the order of an OrderedDict, and a file has plain dicts.
    features = {
        "b": FeatureConfig("b", one_table("t", 2, combiner="sum")),
        "a": FeatureConfig("a", one_table("u", 3, combiner="sum")),
    }
    layer = DistributedEmbedding(collections.OrderedDict(features), output="concat", name="same")
    again = DistributedEmbedding.from_config(layer.get_config())
    keys = collections.OrderedDict(b=np.array([1]), a=np.array([2]))
    outputs = layer(keys, collections.OrderedDict(b=np.array([2.0]), a=np.array([0.5])))
    expected = [0.5 * layer.tables["u"].lookup([2])[0], 2 * layer.tables["t"].lookup([1])[0]]
    np.testing.assert_array_equal(outputs[0], np.concatenate(expected))
    np.testing.assert_array_equal(layer(keys), again(keys))


@dataclasses.dataclass
class KerasRsTableConfig:
    name: str
    vocabulary_size: int
    embedding_dim: int
    initializer: Any = "uniform"
    optimizer: Any = None
    combiner: str = "mean"
    placement: str = "auto"
    max_ids_per_partition: int = 256
    max_unique_ids_per_partition: int = 256


@dataclasses.dataclass
class KerasRsFeatureConfig:
    name: str
    table: KerasRsTableConfig
    input_shape: Any
    output_shape: Any


@pytest.fixture
def keras_rs(monkeypatch):
    """The classes of keras-rs 0.4.0 as far as we read them, under its name."""
    module = types.ModuleType("keras_rs")
    for cls in (KerasRsTableConfig, KerasRsFeatureConfig):
        monkeypatch.setattr(cls, "__module__", "keras_rs.src.layers.embedding.config")
    module.TableConfig, module.FeatureConfig = KerasRsTableConfig, KerasRsFeatureConfig
    monkeypatch.setitem(sys.modules, "keras_rs", module)
    monkeypatch.setattr(configs, "_notices", {"optimizer"})
    return module


def test_configs_of_keras_rs_are_taken_as_they_are(keras_rs):
    table = keras_rs.TableConfig("t", 50, 3, "ones", "adagrad", "sum", max_ids_per_partition=8)
    layer = DistributedEmbedding(
        {
            "a": keras_rs.FeatureConfig("a", table, (None, 2), (None, 3)),
            "b": keras_rs.FeatureConfig("b", table, (None, 1), (None, 3)),
        }
    )
    outputs = layer({"a": np.array([[1, 2]]), "b": np.array([[49]])})
    np.testing.assert_array_equal(outputs["a"], [[2.0] * 3])
    np.testing.assert_array_equal(outputs["b"], [[1.0] * 3])
    (config,) = layer._collection.configs
    assert (config.vocabulary_size, config.combiner) == (50, "sum")
    assert isinstance(config.optimizer, ko.Adagrad)
    assert list(layer.tables) == ["t"]
    again = DistributedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def test_an_own_optimizer_of_keras_rs_is_noticed_once(keras_rs, monkeypatch):
    monkeypatch.setattr(configs, "_notices", set())

    def layer_of(*tables):
        features = [keras_rs.FeatureConfig(t.name, t, (None,), (None, 3)) for t in tables]
        return DistributedEmbedding(features)

    makes = keras_rs.TableConfig
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer_of(makes("none", 50, 3, "ones", None))
    with pytest.warns(UserWarning, match="'a' of keras-rs: its own optimizer, Adagrad") as found:
        layer_of(makes("a", 50, 3, "ones", "adagrad"), makes("b", 50, 3, "ones", "adam"))
        layer_of(makes("c", 50, 3, "ones", "adam"))
    assert len(found) == 1


def test_a_table_of_keras_rs_in_two_layers_of_a_model_is_refused(keras_rs):
    table = keras_rs.TableConfig("t", 50, 3)
    models = []
    for optimizer in ("sgd", "adam"):
        ids = [keras.Input((), dtype="int64", name=name) for name in ("a", "b")]
        vectors = [
            DistributedEmbedding(keras_rs.FeatureConfig(each.name, table, (None,), (None, 3)))(each)
            for each in ids
        ]
        models.append(keras.Model(ids, keras.layers.Dot(axes=1)(vectors)))
        models[-1].compile(optimizer, "mse")
        table = keras_rs.TableConfig("t", 50, 3)
    for model in models:  # another object of the same contents is another table
        with pytest.raises(ValueError, match="TableConfig 't' in one layer of a model"):
            model.fit([np.arange(3)] * 2, np.ones(3), verbose=0)


def test_a_table_of_keras_rs_that_was_changed_is_read_again(keras_rs):
    table = keras_rs.TableConfig("t", 50, 3)
    feature = keras_rs.FeatureConfig("a", table, (None,), (None, 3))
    assert DistributedEmbedding(feature)(np.arange(2)).shape == (2, 3)
    table.embedding_dim = 4
    assert DistributedEmbedding(feature)(np.arange(2)).shape == (2, 4)


def test_a_placement_of_keras_rs_that_does_not_exist_is_refused(keras_rs):
    table = keras_rs.TableConfig("t", 50, 3, placement="moon")
    with pytest.raises(ValueError, match="'t': expected placement.*sparsecore.*Received: 'moon'"):
        DistributedEmbedding(keras_rs.FeatureConfig("a", table, (None,), (None, 3)))


@pytest.mark.parametrize("form", ["int32", "int64", "uint64", "list", "numpy"])
def test_keys_of_every_type_find_the_same_rows(form):
    layer = make_layer(names=("user_pair", "place"))
    keys = {"user_pair": [[0, 11], [5, 5]], "place": [[0, 1, 2], [2, 2, 1]]}
    expected = layer({name: tf.constant(k, tf.int64) for name, k in keys.items()})
    if form == "numpy":
        given = {name: np.array(k, np.int16) for name, k in keys.items()}
    elif form == "list":
        given = keys
    else:
        given = {name: tf.constant(k, form) for name, k in keys.items()}
    found = layer(given)
    for name, output in expected.items():
        np.testing.assert_array_equal(found[name], output)


def test_uint64_keys_are_the_bits_of_int64_keys():
    layer = DistributedEmbedding(FeatureConfig("f", one_table()))
    layer.tables["t"].assign([-1, -(2**63)], [[1.0, 2.0], [3.0, 4.0]])
    found = layer(tf.constant([2**64 - 1, 2**63], tf.uint64))
    np.testing.assert_array_equal(found, [[1, 2], [3, 4]])


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_ragged_and_sparse_keys_are_of_any_integer_type(kind, dtype):
    layer = DistributedEmbedding(FeatureConfig("f", one_table(combiner="sum")))
    layer.tables["t"].assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    keys = tf.ragged.constant([[1, 2], [], [2]], dtype=dtype)
    if kind == "sparse":
        keys = keys.to_sparse()
    else:
        keys = keys.with_row_splits_dtype(tf.int32)
    np.testing.assert_array_equal(layer(keys), [[4, 6], [0, 0], [3, 4]])


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_flat_weights_beside_ragged_and_sparse_keys_are_one_a_key(kind):
    layer = DistributedEmbedding(FeatureConfig("f", one_table(combiner="sum")))
    layer.tables["t"].assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    keys = tf.ragged.constant([[1, 2], [], [2]], dtype=tf.int64)
    keys = keys if kind == "ragged" else keys.to_sparse()
    np.testing.assert_array_equal(
        layer(keys, np.array([2.0, 10.0, 0.5])), [[32, 44], [0, 0], [1.5, 2]]
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_outputs_of_half_precision_are_rounded_once(dtype):
    batch = random_batch()
    given = inputs_of(batch), weights_of(batch)
    full, half = make_layer()(*given), make_layer(dtype=f"mixed_{dtype}")(*given)
    for name, output in half.items():
        assert output.dtype == dtype
        expected = tf.cast(full[name], dtype)
        if isinstance(output, tf.RaggedTensor):
            np.testing.assert_array_equal(output.row_splits, expected.row_splits)
            output, expected = output.flat_values, expected.flat_values
        np.testing.assert_array_equal(output, expected)


def test_shapes_and_types_are_known_before_a_batch_is():
    batch = random_batch()
    layer = make_layer(dtype="mixed_bfloat16")
    symbolic = symbolic_inputs(batch)
    outputs = layer(symbolic["keys"], symbolic["weights"])
    for name, case in CASES.items():
        assert outputs[name].dtype == "bfloat16"
        kept = {None: {"dense": (case.length,), "ragged": (None,)}}.get(case.combiner, {})
        assert outputs[name].shape == (None, *kept.get(case.form, ()), DIMS[case.table])
    shapes = {name: (None, *bags.keys().shape[1:]) for name, bags in batch.items()}
    expected = {name: tuple(output.shape) for name, output in outputs.items()}
    assert layer.compute_output_shape(shapes) == expected


def test_without_training_no_row_is_made_and_vectors_are_those_that_training_starts_from():
    layer = DistributedEmbedding(
        {name: FeatureConfig(name, one_table(name, seed=1)) for name in ("a", "b")}
    )
    keys = {"a": np.array([1, 2, 1]), "b": np.array([3, 3, 4])}
    before = layer(keys, training=False)
    assert [len(table) for table in layer.tables.values()] == [0, 0]
    after = layer(keys, training=True)
    assert [len(table) for table in layer.tables.values()] == [2, 2]
    for name in keys:
        np.testing.assert_array_equal(before[name], after[name])
    assert len(np.unique(np.concatenate([*before.values()]), axis=0)) == 4


def test_the_rows_of_all_tables_can_be_read():
    start, layer = start_of(), make_layer()
    found = layer.get_embedding_tables()
    assert set(found) == set(KEYS) == set(layer.tables)
    for name, (keys, rows) in found.items():
        order = np.argsort(keys)
        np.testing.assert_array_equal(keys[order], KEYS[name])
        np.testing.assert_array_equal(rows[order], start[name])


def test_a_summary_counts_the_numbers_of_all_rows():
    layer = make_layer()
    layer.build()
    assert layer.count_params() == sum(len(keys) * DIMS[name] for name, keys in KEYS.items())


def test_the_only_weight_is_an_anchor_that_stays_zero():
    ours = next(both(start_of()))
    ours.compile("adam", "mse", run_eagerly=True)
    ours.fit(data_of(2 * BATCH), shuffle=False, verbose=0)
    (anchor,) = ours.layer.weights
    np.testing.assert_array_equal(anchor, np.zeros(tf_ops.ANCHOR_SIZE))
