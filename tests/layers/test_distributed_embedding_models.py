"""Models of every form, precision and strategy train a layer of many tables."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from collection_cases import (
    BATCH,
    CASES,
    KEYS,
    Model,
    StaticTables,
    assert_trained_alike,
    both,
    data_of,
    fit_few,
    functional_model,
    inputs_of,
    joined,
    make_layer,
    one_table,
    random_batch,
    start_of,
    step_of,
    table_configs,
    weights_of,
)
from keras import optimizers as ko
from keras_reference import OPTIMIZERS, mirrored

from sok_embed import DistributedEmbedding, FeatureConfig
from sok_embed.admission import FrequencyAdmission


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


@pytest.mark.cover(1)
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


@pytest.mark.cover(1)
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
