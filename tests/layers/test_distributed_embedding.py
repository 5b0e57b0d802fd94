"""One layer of many tables gives and learns what NumPy and static Keras layers say."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import types
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
    Model,
    StaticTables,
    assert_pooled,
    assert_trained_alike,
    both,
    data_of,
    functional_model,
    inputs_of,
    joined,
    make_layer,
    random_batch,
    rows_of,
    start_of,
    step_of,
    symbolic_inputs,
    table_configs,
    weights_of,
)
from keras import optimizers as ko
from keras_reference import OPTIMIZERS, mirrored

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig, tf_ops
from sok_embed.admission import FrequencyAdmission

RULES = ("sgd", "momentum", "adagrad", "adam", "ftrl")


def one_table(name: str = "t", dim: int = 2, **arguments: Any) -> TableConfig:
    return TableConfig(name, None, dim, **arguments)


def metadata_of(layer: DistributedEmbedding, table: str) -> Any:
    return layer.tables[table].metadata(KEYS[table])


# Lookups.


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


# Training.


@pytest.mark.parametrize("rule", RULES)
def test_fit_trains_all_tables_like_static_layers(rule):
    start = start_of()
    models = []
    for model in both(start):
        model.compile(OPTIMIZERS[rule](), "mse")
        model.fit(data_of(), shuffle=False, verbose=0)
        models.append(model)
    assert_trained_alike(*models, start)
    assert [table.stats()["steps"] for table in models[0].layer.tables.values()] == [50] * 3


def fit_few(model: Any, optimizer: Any, data: Any) -> None:
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(data, shuffle=False, verbose=0)


def loop_of(wrap: Any) -> Any:
    def train(model: Any, optimizer: Any, data: Any) -> None:
        model(next(iter(data))[0])
        optimizer.build(model.trainable_variables)
        step = wrap(step_of(model, optimizer))
        for given, targets in data:
            step(given, targets)

    return train


def epoch_in_a_function(model: Any, optimizer: Any, data: Any) -> None:
    model(next(iter(data))[0])
    optimizer.build(model.trainable_variables)
    step = step_of(model, optimizer)

    @tf.function
    def epoch() -> None:
        for given, targets in data:
            step(given, targets)

    epoch()


@pytest.mark.parametrize(
    "train",
    [fit_few, loop_of(lambda f: f), loop_of(tf.function), epoch_in_a_function],
    ids=["run_eagerly", "eager", "function", "loop_in_function"],
)
def test_every_kind_of_loop_trains_alike(train):
    start, models = start_of(), []
    for model in both(start):
        train(model, ko.Adam(0.01), data_of(4 * BATCH))
        models.append(model)
    assert_trained_alike(*models, start)


def train_few(
    make_optimizer: Any, start: Any, steps: int = 4, atol: float = 1e-5, **arguments: Any
) -> list[Any]:
    """Trains our model and the static one a few steps, and compares them."""
    models = []
    names = arguments.get("names", tuple(CASES))
    for model in both(start, **arguments):
        fit_few(model, make_optimizer(), data_of(steps * BATCH, names=names))
        models.append(model)
    assert_trained_alike(*models, start, atol)
    return models


def test_gradients_are_accumulated_as_those_of_static_layers_are():
    ours, _ = train_few(lambda: ko.Adam(0.02, gradient_accumulation_steps=2), start_of())
    assert [table.stats()["steps"] for table in ours.layer.tables.values()] == [2] * 3


@pytest.mark.parametrize(
    "clip", [{"global_clipnorm": 0.3}, {"clipvalue": 0.02}], ids=["global_clipnorm", "clipvalue"]
)
def test_gradients_are_clipped_as_those_of_static_layers_are(clip):
    start = start_of()
    ours, _ = train_few(lambda: ko.SGD(0.1, **clip), start)
    # The same without clipping leads elsewhere.
    free = next(both(start))
    fit_few(free, ko.SGD(0.1), data_of(4 * BATCH))
    assert np.abs(free.rows()["items"] - ours.rows()["items"]).max() > 1e-3


def test_clipnorm_takes_a_collection_of_one_table_for_one_variable():
    start = {"items": start_of()["items"]}
    names = ("item", "item_log", "item_best")
    ours, _ = train_few(lambda: ko.SGD(0.1, clipnorm=0.2), start, names=names)
    free = next(both(start, names=names))
    fit_few(free, ko.SGD(0.1), data_of(4 * BATCH, names=names))
    assert np.abs(free.rows()["items"] - ours.rows()["items"]).max() > 1e-3


class OneVariable(keras.layers.Layer):
    """The tables of the collection, end to end in one variable."""

    def __init__(self, start: dict[str, Any]) -> None:
        super().__init__(autocast=False)
        flat = np.concatenate([rows.ravel() for rows in start.values()])
        self.rows = self.add_weight(shape=flat.shape, initializer="zeros")
        self.rows.assign(flat)
        self.shapes = {name: rows.shape for name, rows in start.items()}

    def call(self, numbers: Any) -> Any:
        begin, parts = 0, []
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            rows = tf.reshape(self.rows[begin : begin + size], shape)
            parts.append(tf.gather(rows, numbers[name]))
            begin += size
        return tf.concat(parts, 1)


def test_clipnorm_takes_all_tables_of_a_collection_for_one_variable():
    # The anchor is one variable for Keras, so that the norm is that of all tables.
    start = start_of()
    layer = make_layer(names=("user", "item", "place"), output="concat")
    for name, rows in start.items():
        layer.tables[name].assign(KEYS[name], rows)
    twin = OneVariable({name: start[name] for name in ("items", "places", "users")})
    random = np.random.default_rng(0)
    optimizers = ko.SGD(0.5, clipnorm=0.3), ko.SGD(0.5, clipnorm=0.3)
    for _ in range(3):
        numbers = {name: random.integers(0, len(keys), BATCH) for name, keys in KEYS.items()}
        keys = {name: KEYS[name][numbers[name]] for name in KEYS}
        given = {"user": keys["users"][:, None], "item": keys["items"]}
        given["place"] = keys["places"][:, None]
        for optimizer, trained, inputs in zip(
            optimizers, (layer, twin), (given, numbers), strict=True
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(trained(inputs) - 1.0))
            optimizer.apply(
                tape.gradient(loss, trained.trainable_variables), trained.trainable_variables
            )
    rows = rows_of(layer)
    found = np.concatenate([rows[name].ravel() for name in ("items", "places", "users")])
    # This allows for float32: a norm of 128 numbers, in another order.
    np.testing.assert_allclose(found, twin.rows, rtol=0, atol=2e-6)
    first = np.concatenate([start[name].ravel() for name in ("items", "places", "users")])
    assert 0.1 < np.linalg.norm(found - first) < 3 * 0.5 * 0.3 + 1e-4


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_rows_of_features_whose_output_nobody_uses_rest(rule):
    # "place" has a table of its own; "user_pair" shares that of "user", and has keys 8 to 11 alone.
    start = start_of()
    layer = make_layer(start, names=("user", "user_pair", "place", "item"))
    model = Model(layer, used=("user", "item"))
    optimizer = OPTIMIZERS[rule]()
    step = tf.function(step_of(model, optimizer))
    random = np.random.default_rng(3)
    for number in range(4):
        keys = {
            "user": random.integers(0, 8, (BATCH, 3)),
            "user_pair": random.integers(8, 12, (BATCH, 2)),
            "place": KEYS["places"][random.integers(0, 6, (BATCH, 3))],
            "item": KEYS["items"][random.integers(0, 10, BATCH)],
        }
        if number == 0:
            keys["user"] = np.arange(24).reshape(BATCH, 3) % 8
            model({"keys": keys})
            optimizer.build(model.trainable_variables)
        step({"keys": {k: tf.constant(v) for k, v in keys.items()}}, tf.ones([BATCH, 1]))
    rows = rows_of(layer)
    np.testing.assert_array_equal(rows["places"], start["places"])
    np.testing.assert_array_equal(rows["users"][8:], start["users"][8:])
    assert (np.abs(rows["users"][:8] - start["users"][:8]).max(axis=1) > 1e-4).all()
    assert not metadata_of(layer, "places").update_nums.any()
    counts = metadata_of(layer, "users").update_nums
    assert not counts[8:].any() and (counts[:8] >= 1).all()
    assert layer.tables["places"].stats()["steps"] == 0
    assert layer.tables["users"].stats()["steps"] == 4


def test_rows_of_a_feature_of_one_tensor_train_even_by_a_gradient_of_zero():
    # concat has one gradient for all: what is multiplied by 0 was used.
    layer = make_layer(names=("user_pair",))
    with tf.GradientTape() as tape:
        loss = 0.0 * tf.reduce_sum(layer({"user_pair": np.array([[1, 2]])})["user_pair"])
    ko.SGD(0.1).apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    assert metadata_of(layer, "users").update_nums.tolist() == [0, 1, 1] + [0] * 9


def test_a_frozen_table_makes_no_rows_and_the_others_train():
    start = start_of()
    tables = table_configs(items={"trainable": False})
    ours = Model(make_layer(start, tables=tables))
    ours.layer.tables["items"].remove(KEYS["items"][:1])
    unseen = ours.layer.tables["items"].lookup(KEYS["items"])
    fit_few(ours, ko.Adam(0.01), data_of(3 * BATCH))
    rows, table = ours.rows(), ours.layer.tables["items"]
    assert len(table) == 9 and table.stats()["steps"] == 0
    np.testing.assert_array_equal(rows["items"], unseen)
    for name in ("users", "places"):
        assert (np.abs(rows[name] - start[name]).max(axis=1) > 1e-4).all()


def test_a_frozen_table_trains_the_others_like_static_layers():
    start, models = start_of(), []
    for model in both(start):
        if not models:
            model.layer = make_layer(start, tables=table_configs(items={"trainable": False}))
        else:
            model.layer.embeddings["items"].trainable = False
        fit_few(model, ko.Adam(0.01), data_of(3 * BATCH))
        models.append(model)
    ours, theirs = (model.rows() for model in models)
    for name in KEYS:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-5)


def test_a_layer_whose_tables_are_all_frozen_trains_what_is_after_it():
    frozen = one_table(trainable=False)
    layer = DistributedEmbedding(FeatureConfig("f", frozen))
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    kernel = model.layers[-1].get_weights()[0]
    model.fit(np.arange(4), np.ones((4, 1)), shuffle=False, verbose=0)
    assert len(layer.tables["t"]) == 0
    assert layer.trainable_weights == []
    assert np.abs(model.layers[-1].get_weights()[0] - kernel).max() > 1e-4


def test_a_frozen_layer_makes_no_rows_and_does_not_train():
    start = start_of()
    model = Model(make_layer(start))
    model.layer.trainable = False
    fit_few(model, ko.SGD(0.1), data_of(2 * BATCH))
    for name, rows in model.rows().items():
        np.testing.assert_array_equal(rows, start[name])


def test_a_table_with_an_optimizer_of_its_own_follows_it_and_the_others_that_of_the_model():
    start = start_of()
    tables = table_configs(items={"optimizer": ko.Adagrad(0.3)}, users={"optimizer": "sgd"})
    models = []
    for model in both(start, tables=tables):
        if not models:
            fit_few(model, ko.Adam(0.01), data_of(5 * BATCH))
        else:
            own = {"items": ko.Adagrad(0.3), "users": ko.SGD(0.01)}
            rest = ko.Adam(0.01)
            for given, targets in data_of(5 * BATCH):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(given) - targets))
                variables = model.trainable_variables
                pairs = list(zip(tape.gradient(loss, variables), variables, strict=True))
                tables_of = {
                    id(each.embeddings): name for name, each in model.layer.embeddings.items()
                }
                for optimizer in (*own.values(), rest):
                    mine = [
                        pair
                        for pair in pairs
                        if own.get(tables_of.get(id(pair[1])), rest) is optimizer
                    ]
                    optimizer.apply([g for g, _ in mine], [v for _, v in mine])
        models.append(model)
    assert_trained_alike(*models, start)
    rules = {name: t.export(slots=True).rule for name, t in models[0].layer.tables.items()}
    assert rules == {"users": b"sgd", "items": b"adagrad", "places": b"adam"}


def test_tables_with_one_optimizer_of_their_own_follow_its_schedule_by_their_own_steps():
    own = ko.SGD(ko.schedules.PiecewiseConstantDecay([0], [1.0, 0.25]))
    layer = DistributedEmbedding(
        {
            name: FeatureConfig(name, one_table(name, 1, initializer="zeros", optimizer=own))
            for name in ("a", "b")
        }
    )
    optimizer = ko.SGD(0.0)
    for used in ("a", "ab", "b"):
        with tf.GradientTape() as tape:
            outputs = layer({"a": np.array([1]), "b": np.array([1])})
            loss = tf.add_n([-tf.reduce_sum(outputs[name]) for name in used])
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply(gradients, layer.trainable_variables)
    # The first step of each is of a rate of 1, the second of 0.25.
    assert [table.lookup([1]).item() for table in layer.tables.values()] == [1.25, 1.25]


def test_gradients_of_weights_are_those_of_a_dense_gather_in_float64():
    batch, start = random_batch(), start_of()
    inputs, weights = inputs_of(batch), weights_of(batch)
    # Sums and sums of squares that are 0 have no derivative: they are the subject of another test.
    weights["place"] = tf.where(tf.abs(weights["place"]) == 0.5, 0.7, weights["place"] + 0.1)
    weights["item_log"] = weights["item_log"].with_values(weights["item_log"].values + 0.1)
    layer = make_layer(start)
    flat = {name: w if name == "place" else w.values for name, w in weights.items()}
    random = np.random.default_rng(1)
    upstream = {name: random.normal(size=(BATCH, DIMS[CASES[name].table])) for name in flat}
    with tf.GradientTape() as tape:
        tape.watch(flat)
        given = {
            name: w if name == "place" else weights[name].with_values(w) for name, w in flat.items()
        }
        outputs = layer(inputs, given)
        loss = tf.add_n(
            [tf.reduce_sum(outputs[n] * tf.cast(upstream[n], tf.float32)) for n in flat]
        )
    found = tape.gradient(loss, flat)
    for name, values in flat.items():
        case, w = CASES[name], tf.cast(values, tf.float64)
        bags = batch[name].numbers
        owners = tf.constant(np.repeat(np.arange(BATCH), [len(bag) for bag in bags]))
        rows = tf.constant(start[case.table].astype(np.float64))
        with tf.GradientTape() as tape:
            tape.watch(w)
            one = tf.reshape(w, [-1])[:, None]
            x = one * tf.gather(rows, tf.constant(np.concatenate(bags).astype(np.int64)))
            y = tf.math.unsorted_segment_sum(x, owners, BATCH)
            square = tf.math.unsorted_segment_sum(one**2, owners, BATCH)
            total = tf.math.unsorted_segment_sum(one, owners, BATCH)
            divisor = {"sum": tf.ones_like(total), "mean": total, "sqrtn": square**0.5}
            # Bags without keys would have 0 / 0.
            d = tf.where(square > 0, divisor[case.combiner], tf.ones_like(total))
            loss = tf.reduce_sum(y / d * upstream[name])
        expected = tape.gradient(loss, w)
        assert np.abs(expected).max() > 0.1
        # Sums of up to 6 products of up to 2, less another such sum, in float32.
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("form", ["flat", "dense", "ragged"])
def test_weights_scale_the_vector_of_each_key_where_nothing_is_combined(form):
    layer = DistributedEmbedding(FeatureConfig("f", one_table(combiner=None)))
    layer.tables["t"].assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    keys, weights = tf.constant([1, 2, 2, 1], tf.int64), tf.constant([0.5, 0.0, -2.0, 8.0])
    shapes = {
        "flat": lambda x: x,
        "dense": lambda x: tf.reshape(x, [2, 2]),
        "ragged": lambda x: tf.RaggedTensor.from_row_lengths(x, [3, 0, 1]),
    }
    shaped = shapes[form]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        output = layer(shaped(keys), shaped(weights))
        flat = output.flat_values if form == "ragged" else tf.reshape(output, [4, 2])
        loss = tf.reduce_sum(flat * [1.0, 10.0])
    np.testing.assert_array_equal(flat, [[0.5, 1], [0, 0], [-6, -8], [8, 16]])
    np.testing.assert_array_equal(tape.gradient(loss, weights), [21, 43, 43, 21])


def test_a_tables_own_optimizer_clips_the_values_of_that_table_alone():
    own = ko.SGD(1.0, clipvalue=0.25)
    layer = DistributedEmbedding(
        {
            "a": FeatureConfig("a", one_table("a", initializer="zeros", optimizer=own)),
            "b": FeatureConfig("b", one_table("b", initializer="zeros")),
        }
    )
    with tf.GradientTape() as tape:
        outputs = layer({"a": np.array([1]), "b": np.array([1])})
        loss = tf.reduce_sum((outputs["a"] + outputs["b"]) * [3.0, -0.125])
    ko.SGD(0.5).apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    np.testing.assert_array_equal(layer.tables["a"].lookup([1]), [[-0.25, 0.125]])
    np.testing.assert_array_equal(layer.tables["b"].lookup([1]), [[-1.5, 0.0625]])


def test_weights_of_bags_that_are_zeros_have_a_gradient_of_zero_and_their_rows_too():
    table = one_table(combiner="mean")
    layer = DistributedEmbedding(FeatureConfig("f", table))
    weights = tf.constant([[0.5, -0.5]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(layer(np.array([[1, 2]]), weights))
    of_weights, of_anchor = tape.gradient(loss, [weights, layer.anchor.value])
    np.testing.assert_array_equal(of_weights, [[0, 0]])
    before = layer.tables["t"].lookup([1, 2])
    ko.SGD(1.0).apply([of_anchor], [layer.anchor])
    np.testing.assert_array_equal(layer.tables["t"].lookup([1, 2]), before)


def test_learned_weights_train_by_fit():
    class Weighing(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = DistributedEmbedding(FeatureConfig("f", one_table(combiner="mean")))
            self.scores = keras.layers.Embedding(10, 1, embeddings_initializer="ones")
            self.dense = keras.layers.Dense(1)

        def call(self, keys):
            return self.dense(self.layer(keys, self.scores(keys)[:, :, 0]))

    model = Weighing()
    model.compile(ko.SGD(0.5), "mse")
    keys = np.random.default_rng(0).integers(0, 10, (16, 3))
    model.fit(keys, np.linspace(-3, 3, 16)[:, None], verbose=0, epochs=2)
    assert (np.abs(model.scores.get_weights()[0] - 1) > 1e-6).mean() > 0.8


def test_a_layer_that_is_called_twice_in_a_step_takes_both_gradients():
    start = {"items": start_of()["items"]}
    names = ("item", "item_best")
    batches = [
        {name: bags for name, bags in random_batch(seed).items() if name in names}
        for seed in (1, 2)
    ]
    rows = []
    for model in both(start, names=names):
        optimizer = ko.Adam(0.05)
        for _ in range(3):
            with tf.GradientTape() as tape:
                outputs = [joined(model.layer(inputs_of(batch))) for batch in batches]
                loss = tf.reduce_sum(outputs[0] ** 2) + 3 * tf.reduce_sum(outputs[1] * outputs[0])
            variables = model.layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        rows.append(model.rows()["items"])
    # As in assert_trained_alike.
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=1e-5)
    assert (np.abs(rows[1] - start["items"]).max(axis=1) > 1e-3).all()


def test_an_output_that_is_used_twice_has_the_sum_of_its_gradients():
    layer = DistributedEmbedding(
        {name: FeatureConfig(name, one_table(name, 1, initializer="zeros")) for name in "ab"}
    )

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            outputs = layer({"a": keys, "b": keys})
            loss = tf.reduce_sum(2 * outputs["a"]) + tf.reduce_sum(3 * outputs["a"])
            loss += tf.reduce_sum(7 * outputs["b"])
        return tape.gradient(loss, layer.anchor.value)

    layer.build()
    optimizer = ko.SGD(1.0)
    optimizer.build([layer.anchor])
    optimizer.apply([step(tf.constant([4, 4]))], [layer.anchor])
    found = [table.lookup([4]).item() for table in layer.tables.values()]
    assert found == [-10, -14]


def test_a_step_that_is_skipped_leaves_rows_and_no_gradients():
    start = start_of()
    model = Model(make_layer(start))
    optimizer = ko.Adam(0.01)
    data = list(data_of(2 * BATCH))
    model(data[0][0])
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(given: Any, targets: Any, take: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(given, training=True) - targets))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        tf.cond(take, lambda: optimizer.apply(gradients, variables), lambda: None)

    step(*data[0], tf.constant(False))
    for name, rows in model.rows().items():
        np.testing.assert_array_equal(rows, start[name])
    assert [table.stats()["steps"] for table in model.layer.tables.values()] == [0] * 3
    step(*data[1], tf.constant(True))
    other = Model(make_layer(start))
    other.dense.build((None, model.dense.kernel.shape[0]))
    other(data[0][0])
    other.dense.set_weights([model_start_kernel(model), np.zeros(1, np.float32)])
    step_of(other, ko.Adam(0.01))(*data[1])
    for name, rows in other.rows().items():
        np.testing.assert_allclose(model.rows()[name], rows, rtol=0, atol=1e-6)
        assert np.abs(rows - start[name]).max() > 1e-3


def model_start_kernel(model: Any) -> Any:
    """What the kernel of a `Model` starts from: its initializer has a seed."""
    return np.asarray(keras.initializers.RandomNormal(0.0, 0.3, 3)(model.dense.kernel.shape))


def test_a_functional_model_takes_inputs_of_every_form_and_trains():
    start, batch = start_of(), random_batch()
    layer = make_layer(start)
    model = functional_model(layer, batch)
    given = {"keys": inputs_of(batch), "weights": weights_of(batch)}
    # The same head on vectors of the layer itself.
    outputs = layer(given["keys"], given["weights"], training=False)
    flat = tf.concat(
        [tf.reshape(outputs[name], [BATCH, -1]) for name in CASES if name != "place_log"], 1
    )
    np.testing.assert_allclose(model(given), model.get_layer("dense")(flat), rtol=0, atol=1e-5)
    model.compile("adam", "mse")
    model.fit(data_of(2 * BATCH), shuffle=False, verbose=0)
    for name in ("users", "items"):
        moved = np.abs(layer.tables[name].lookup(KEYS[name]) - start[name]).max(axis=1)
        assert (moved > 1e-4).all()
    assert layer.tables["users"].stats()["steps"] == 2


def test_a_sequential_model_of_a_single_feature_trains_like_static_embeddings():
    start = start_of()["users"]
    keys = np.random.default_rng(0).permutation(np.resize(np.arange(12), (8, 3)).ravel())
    keys = np.concatenate([keys.reshape(8, 3)] * 3)
    targets = np.linspace(-1, 1, 24)[:, None]
    single = DistributedEmbedding(FeatureConfig("user", table_configs()["users"], combiner="mean"))
    single.tables["users"].assign(KEYS["users"], start)
    theirs = keras.layers.Embedding(12, 4)
    for layers in ([single], [theirs, keras.layers.GlobalAveragePooling1D()]):
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((3,), dtype="int64"), *layers, dense])
        if theirs in layers:
            theirs.set_weights([start])
        model.compile(ko.SGD(0.5), "mse", run_eagerly=True)
        model.fit(keys, targets, batch_size=8, shuffle=False, verbose=0)
    rows = [single.tables["users"].lookup(KEYS["users"]), theirs.get_weights()[0]]
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=1e-5)
    assert (np.abs(rows[1] - start).max(axis=1) > 1e-3).all()


@contextlib.contextmanager
def policy(name: str):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains_float32_rows_like_full_precision_within_its_rounding(name):
    start, rows = start_of(), []
    for one in ("float32", name):
        with policy(one):
            model = next(both(start))
            fit_few(model, ko.SGD(0.1), data_of(4 * BATCH))
        rows.append(model.rows())
    # Activations have 8 bits of bfloat16, 11 of float16: gradients differ by 2^-9 or 2^-12 of
    # themselves at each of a handful of roundings, and what they move is below 0.1.
    atol = {"mixed_bfloat16": 2e-3, "mixed_float16": 2e-4}[name]
    for table, expected in rows[0].items():
        assert rows[1][table].dtype == np.float32
        np.testing.assert_allclose(rows[1][table], expected, rtol=0, atol=atol)
        assert np.abs(expected - start[table]).max() > 10 * atol


def test_a_loss_scale_is_divided_out_and_an_overflow_leaves_rows_alone():
    start = start_of()
    model = Model(make_layer(start))
    optimizer = ko.LossScaleOptimizer(ko.SGD(0.1), initial_scale=2.0**10)
    data = list(data_of(2 * BATCH))
    model(data[0][0])
    optimizer.build(model.trainable_variables)
    step = tf.function(step_of(model, optimizer))
    step(data[0][0], data[0][1] * np.inf)
    for name, rows in model.rows().items():
        np.testing.assert_array_equal(rows, start[name])
    step(*data[1])
    plain = Model(make_layer(start))
    plain(data[0][0])
    step_of(plain, ko.SGD(0.1))(*data[1])
    for name, rows in plain.rows().items():
        # The scale is a power of two: nothing is rounded by it, but sums have another order.
        np.testing.assert_allclose(model.rows()[name], rows, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_two_replicas_train_like_static_layers_under_the_same_strategy(rule):
    # fit splits dense batches alone, and knows the dtypes of a functional model.
    names = ("item", "item_best", "user")
    start = {name: rows for name, rows in start_of().items() if name != "places"}
    batch = {name: bags for name, bags in random_batch(examples=8 * BATCH).items() if name in names}
    targets = np.random.default_rng(0).normal(size=(8 * BATCH, 1)).astype(np.float32)
    keys = {name: given.numpy() for name, given in inputs_of(batch).items()}
    models = []
    for ours in (True, False):
        with mirrored().scope():
            layer = make_layer(start, names=names) if ours else StaticTables(start, names)
            inputs = {
                name: keras.Input(given.shape[1:], dtype="int64", name=name)
                for name, given in keys.items()
            }
            vector = keras.layers.Concatenate()([layer(inputs)[name] for name in names])
            dense = keras.layers.Dense(1, kernel_initializer="ones")
            model = keras.Model(inputs, dense(vector))
            model.compile(OPTIMIZERS[rule](), "mse")
        model.layer, model.dense = layer, dense
        model.rows = lambda layer=layer: Model.rows(types.SimpleNamespace(layer=layer))
        # Two batches of BATCH, each with every key, make one.
        model.fit(keys, targets, batch_size=2 * BATCH, shuffle=False, verbose=0)
        models.append(model)
    assert_trained_alike(*models, start)
    assert models[0].layer.tables["items"].stats()["steps"] == 4


def small_model(optimizer: Any = "sgd", layer: Any = None) -> Any:
    """A model of one feature, and keys for it."""
    layer = layer or DistributedEmbedding(FeatureConfig("f", one_table(combiner="sum")))
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


SMALL_KEYS, SMALL_TARGETS = np.arange(8).reshape(4, 2), np.ones((4, 1))


@pytest.mark.parametrize("method", ["predict", "evaluate", "test_on_batch", "predict_on_batch"])
def test_inference_makes_no_rows(method):
    model = small_model()
    targets = [SMALL_TARGETS] if method in ("evaluate", "test_on_batch") else []
    quiet = {} if method.endswith("on_batch") else {"verbose": 0}
    getattr(model, method)(SMALL_KEYS, *targets, **quiet)
    assert len(model.layers[0].tables["t"]) == 0
    assert model.layers[0].tables["t"].stats()["pending_gradients"] == 0


def test_a_layer_that_is_thawed_trains_again():
    model = small_model()
    table = model.layers[0].tables["t"]
    for trainable, rows in ((False, 0), (True, 8)):
        model.layers[0].trainable = trainable
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(SMALL_KEYS, SMALL_TARGETS, verbose=0)
        assert len(table) == rows


def test_compiling_again_with_another_optimizer_restarts_slots_and_steps_and_keeps_rows():
    model = small_model(ko.Adam(0.01))
    table = model.layers[0].tables["t"]
    model.fit(SMALL_KEYS, SMALL_TARGETS, epochs=2, verbose=0)
    rows = table.lookup(np.arange(8))
    model.compile(ko.Adagrad(0.0, initial_accumulator_value=0.25), "mse", run_eagerly=True)
    model.fit(SMALL_KEYS, SMALL_TARGETS, verbose=0)
    contents = table.export(slots=True)
    assert (contents.rule, contents.steps) == (b"adagrad", 1)
    assert contents.slots.shape == (8, 2) and (contents.slots >= 0.25).all()
    np.testing.assert_array_equal(table.lookup(np.arange(8)), rows)


def test_two_models_can_share_a_layer():
    layer = DistributedEmbedding(FeatureConfig("f", one_table(combiner="sum")))
    for number in (1, 2):
        small_model(layer=layer).fit(SMALL_KEYS, SMALL_TARGETS, verbose=0)
        assert (layer.tables["t"].metadata(np.arange(8)).update_nums == number).all()
        assert layer.tables["t"].stats()["pending_gradients"] == 0


def test_the_compiler_of_tensorflow_is_not_used():
    model = small_model()
    assert model.layers[0].supports_jit is False
    assert model.jit_compile is False


def test_a_table_that_admits_keys_late_and_one_that_evicts_do_so_in_a_collection():
    tables = {
        "late": one_table("late", admission=FrequencyAdmission(2)),
        "few": one_table("few", max_rows=4, eviction="lru"),
    }
    layer = DistributedEmbedding({name: FeatureConfig(name, t) for name, t in tables.items()})
    for keys in ([1, 2], [2, 3], [4, 5]):
        layer({name: np.array(keys) for name in tables}, training=True)
    assert layer.tables["late"].contains([1, 2, 3, 4]).tolist() == [False, True, False, False]
    assert len(layer.tables["few"]) <= 4
    assert layer.tables["few"].contains([4, 5]).all()
