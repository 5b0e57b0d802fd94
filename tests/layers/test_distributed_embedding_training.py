"""One layer of many tables learns what static Keras layers learn."""

from __future__ import annotations

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
    assert_trained_alike,
    both,
    data_of,
    fit_few,
    inputs_of,
    make_layer,
    one_table,
    random_batch,
    rows_of,
    start_of,
    step_of,
    table_configs,
    weights_of,
)
from keras import optimizers as ko
from keras_reference import OPTIMIZERS

from sok_embed import DistributedEmbedding, FeatureConfig

RULES = ("sgd", "momentum", "adagrad", "adam", "ftrl")


def metadata_of(layer: DistributedEmbedding, table: str) -> Any:
    return layer.tables[table].metadata(KEYS[table])


@pytest.mark.cover(1)
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


@pytest.mark.cover(1)
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


@pytest.mark.long
def test_gradients_are_accumulated_as_those_of_static_layers_are():
    ours, _ = train_few(lambda: ko.Adam(0.02, gradient_accumulation_steps=2), start_of())
    assert [table.stats()["steps"] for table in ours.layer.tables.values()] == [2] * 3


@pytest.mark.cover(1)
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


@pytest.mark.long
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
