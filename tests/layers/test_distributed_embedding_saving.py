"""Rows, slots and step counts of all tables come back in each way to save a model."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from collection_cases import (
    BATCH,
    DIMS,
    KEYS,
    data_of,
    feature_configs,
    functional_model,
    inputs_of,
    make_layer,
    random_batch,
    table_configs,
)
from keras import optimizers as ko

from sok_embed import DistributedEmbedding, DynamicEmbedding, FeatureConfig, TableConfig, kv

BATCHES = list(data_of(2 * BATCH))
TABLES = ("users", "items", "places")


def make_model(optimizer: Any = None, **arguments: Any) -> Any:
    """A model with a table that follows the model's optimizer, one with its own, and one frozen."""
    of_tables = {"items": {"optimizer": ko.Adagrad(0.1)}, "places": {"trainable": False}}
    tables = table_configs(**of_tables)
    layer = make_layer(tables=tables, name="fields", **arguments)
    model = functional_model(layer, random_batch())
    model.compile(optimizer or ko.Adam(0.05), "mse", run_eagerly=True)
    return model


def train(model: Any) -> None:
    for given, targets in BATCHES:
        model.train_on_batch(given, targets)


@pytest.fixture
def model():
    made = make_model()
    train(made)
    return made


def answers(model: Any) -> Any:
    return model(BATCHES[0][0], training=False).numpy()


def contents(model: Any) -> dict[str, Any]:
    """Everything but times, rows in the order of their keys."""
    found = {}
    for name, table in model.get_layer("fields").tables.items():
        export = table.export(slots=True)
        order = np.argsort(export.keys)
        for part in ("keys", "embeddings", "slots", "update_nums"):
            found[f"{name} {part}"] = getattr(export, part)[order]
        found[f"{name} rule"], found[f"{name} steps"] = export.rule, export.steps
    return found


def assert_same(one: Any, two: Any) -> None:
    ours, theirs = contents(one), contents(two)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)
    np.testing.assert_array_equal(answers(one), answers(two))


def assert_goes_on_alike(one: Any, two: Any) -> None:
    """Both are equal to the bit, and still are once both were trained on."""
    assert_same(one, two)
    found = contents(one)
    assert [found[f"{name} steps"] for name in TABLES] == [2, 2, 0]
    assert [found[f"{name} rule"] for name in TABLES] == [b"adam", b"adagrad", b""]
    assert found["users slots"].any() and found["items slots"].any()
    for model in (one, two):
        train(model)
    assert contents(one)["users steps"] == 4
    assert_same(one, two)


def test_a_keras_file_carries_everything_and_training_goes_on_bitwise_equal(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.run_eagerly = True
    assert loaded.get_layer("fields").get_config() == model.get_layer("fields").get_config()
    assert_goes_on_alike(model, loaded)


def test_weights_alone_carry_everything(model, tmp_path):
    model.save_weights(tmp_path / "model.weights.h5")
    other = make_model(start={name: np.zeros((len(KEYS[name]), DIMS[name])) for name in TABLES})
    train(other)
    other.get_layer("fields").tables["users"].remove(KEYS["users"][:3])
    other.load_weights(tmp_path / "model.weights.h5")
    assert_goes_on_alike(model, other)


def test_a_checkpoint_carries_everything(model, tmp_path):
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    other = make_model(start={name: np.zeros((len(KEYS[name]), DIMS[name])) for name in TABLES})
    train(other)
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert_goes_on_alike(model, other)


def test_a_checkpoint_carries_an_optimizer_of_a_tables_own(tmp_path):
    def make():
        own = ko.SGD(ko.schedules.PiecewiseConstantDecay([0], [1.0, 0.25]))
        table = TableConfig("t", None, 1, "zeros", own)
        return DistributedEmbedding(FeatureConfig("f", table))

    def step(layer):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(layer(np.array([1])))
        anchors = layer.trainable_variables
        ko.SGD(0.0).apply(tape.gradient(loss, anchors), anchors)

    first, second = make(), make()
    step(first)
    path = tf.train.Checkpoint(layer=first).save(str(tmp_path / "checkpoint"))
    step(second)
    tf.train.Checkpoint(layer=second).restore(path)
    step(second)
    assert second.tables["t"].lookup([1]).item() == 1.25


def test_a_saved_model_serves_what_the_model_answers(model, tmp_path):
    expected = answers(model)
    module = tf.Module()
    module.model = model
    spec = data_of(BATCH).element_spec[0]
    module.serve = tf.function(lambda given: model(given, training=False), input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    # The rows of today are served, whatever becomes of the model.
    train(model)
    np.testing.assert_array_equal(loaded.serve(BATCHES[0][0]), expected)
    assert np.abs(answers(model) - expected).max() > 1e-4


def test_an_exported_model_serves_what_the_model_answers(tmp_path):
    # Keras exports no ragged inputs.
    names = ("user", "item", "item_best")
    keys = {name: inputs_of(random_batch())[name] for name in names}
    inputs = {name: keras.Input(k.shape[1:], dtype="int64", name=name) for name, k in keys.items()}
    outputs = make_layer(names=names)(inputs)
    model = keras.Model(inputs, keras.layers.Concatenate()([outputs[name] for name in names]))
    model.export(str(tmp_path), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.serve(keys), model(keys, training=False))


def test_a_signature_serves_a_tensor_for_each_feature(tmp_path):
    layer = make_layer(names=("user", "item"))
    keys = {name: inputs_of(random_batch())[name] for name in ("user", "item")}

    @tf.function(
        input_signature=[tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None], tf.int64)]
    )
    def look_up(user, item):
        return layer({"user": user, "item": item}, training=False)

    tf.saved_model.save(layer, str(tmp_path), signatures={"serve": look_up})
    loaded = tf.saved_model.load(str(tmp_path))
    found = loaded.signatures["serve"](**keys)
    for name, output in layer(keys).items():
        np.testing.assert_array_equal(found[name], output)


def test_keys_without_a_row_have_the_vectors_of_the_model_that_was_saved(tmp_path):
    keras.utils.set_random_seed(1)
    layer = DistributedEmbedding(FeatureConfig("f", TableConfig("t", None, 2)))
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    keys = np.array([5, -9])
    expected = model(keys, training=False)
    model.save(tmp_path / "model.keras")
    keras.utils.set_random_seed(2)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(keys, training=False), expected)


@keras.saving.register_keras_serializable(package="tests")
class SubclassedFields(keras.Model):
    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer
        self.dense = keras.layers.Dense(1)

    def call(self, keys, training=False):
        outputs = self.layer(keys, training=training)
        return self.dense(tf.concat([outputs["user"], outputs["item_best"]], 1))

    def get_config(self):
        return {
            **super().get_config(),
            "layer": keras.saving.serialize_keras_object(self.layer),
        }

    @classmethod
    def from_config(cls, config):
        config["layer"] = keras.saving.deserialize_keras_object(config["layer"])
        return cls(**config)


def test_a_subclassed_model_of_dense_features_comes_back_from_a_keras_file(tmp_path):
    names = ("user", "item_best")
    model = SubclassedFields(make_layer(names=names))
    keys = {name: k for name, k in inputs_of(random_batch()).items() if name in names}
    model.compile("adam", "mse", run_eagerly=True)
    model.fit(keys, np.ones((BATCH, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(keys), model(keys))


def test_a_config_is_json_and_makes_an_equal_layer_with_shared_tables():
    tables = table_configs(
        users={"seed": 3, "optimizer": ko.Adagrad(0.5), "placement": "key"},
        items={"initializer": keras.initializers.RandomNormal(0.0, 0.5), "trainable": False},
    )
    layer = DistributedEmbedding(
        {"of_users": [*feature_configs(tables, ("user", "user_log")).values()],
         "others": feature_configs(tables, ("item", "place_log"))},
        name="fields",
    )  # fmt: skip
    config = json.loads(json.dumps(layer.get_config()))
    again = DistributedEmbedding.from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    assert list(again.tables) == list(layer.tables) == ["users", "items", "places"]
    by_name = {each.name: each for each in again._collection.configs}
    assert by_name["users"].optimizer.learning_rate == 0.5
    assert by_name["users"].optimizer is not tables["users"].optimizer
    for name, table in layer.tables.items():
        np.testing.assert_array_equal(
            table.lookup(KEYS[name]), again.tables[name].lookup(KEYS[name])
        )
    batch = inputs_of(random_batch())
    given = {
        "of_users": [batch["user"], batch["user_log"]],
        "others": {name: batch[name] for name in ("item", "place_log")},
    }
    ours, theirs = (tf.nest.flatten(each(given), expand_composites=True) for each in (layer, again))
    for output, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(output, other)
    keras_config = keras.saving.serialize_keras_object(layer)
    assert keras_config["registered_name"] == "sok_embed>DistributedEmbedding"


def test_the_config_names_every_argument_of_a_table_and_of_a_feature():
    table = TableConfig("t", None, 2, placement="worker", worker=3)
    feature = FeatureConfig("f", table, max_length=7)
    for config in (table, feature):
        fields = set(type(config).__dataclass_fields__)
        assert set(config.get_config()) == fields
        again = type(config).from_config(config.get_config())
        assert again.get_config() == config.get_config()


def test_a_cloned_model_has_tables_of_its_own_that_start_alike():
    layer = DistributedEmbedding(FeatureConfig("f", TableConfig("t", None, 2)))
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    keys = np.arange(5)
    before = layer(keys, training=False)
    layer.tables["t"].assign(keys, np.ones((5, 2)))
    (clone,) = keras.models.clone_model(model).layers
    assert len(clone.tables["t"]) == 0
    np.testing.assert_array_equal(clone(keys, training=False), before)


# Tables in a storage.


def stored_model(storage: Any, group: int = 3) -> Any:
    """One table in the storage, or in memory without one, and one in memory."""
    place = {} if storage is None else {"storage": storage, "group": group}
    stored = TableConfig("stored", None, 4, combiner="sum", seed=1, **place)
    memory = TableConfig("memory", None, 2, seed=2)
    features = [FeatureConfig("a", stored), FeatureConfig("b", memory)]
    inputs = [keras.Input((2,), dtype="int64", name=name) for name in "ab"]
    outputs = DistributedEmbedding(features, output="concat", name="fields")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(outputs))
    model.compile(ko.Adam(0.05), "mse", run_eagerly=True)
    return model


STORED_KEYS = [np.arange(8).reshape(4, 2), np.arange(8).reshape(4, 2) - 3]


def test_a_table_in_a_storage_trains_like_one_in_memory(tmp_path):
    rows = []
    with kv.Storage(tmp_path / "rows") as storage:
        for where in (storage, None):
            model = stored_model(where, group=0)  # rows start from what seed and group make
            model.fit(STORED_KEYS, np.ones((4, 1)), epochs=3, verbose=0)
            tables = model.get_layer("fields").tables
            rows.append([table.lookup(np.arange(-3, 8)) for table in tables.values()])
    for ours, theirs in zip(*rows, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_keras_file_leaves_the_rows_of_a_storage_in_their_folder(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        model = stored_model(storage)
        model.fit(STORED_KEYS, np.ones((4, 1)), epochs=2, verbose=0)
        model.save(tmp_path / "model.keras")
        expected = model(STORED_KEYS, training=False).numpy()
        rule = model.get_layer("fields").tables["stored"].export(slots=True).rule
        del model
    with kv.Storage(tmp_path / "rows"):
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded(STORED_KEYS, training=False), expected)
        tables = loaded.get_layer("fields").tables
        found = tables["stored"].export(slots=True)
        assert (found.rule, found.steps, len(found.keys)) == (rule, 2, 8)
        assert tables["memory"].export(slots=True).steps == 2
        loaded.run_eagerly = True
        loaded.fit(STORED_KEYS, np.ones((4, 1)), verbose=0)
        assert tables["stored"].export(slots=True).steps == 3
        del loaded, tables


def test_a_storage_that_is_opened_again_keeps_the_seed_of_its_group(tmp_path):
    rows = []
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        with kv.Storage(tmp_path / "rows") as storage:
            layer = DistributedEmbedding(
                FeatureConfig("f", TableConfig("t", None, 2, storage=storage))
            )
            rows.append(layer(np.array([1, 2]), training=seed == 1).numpy())
            rows.append(layer(np.array([3]), training=False).numpy())
            del layer
    np.testing.assert_array_equal(rows[0], rows[2])
    np.testing.assert_array_equal(rows[1], rows[3])


def test_two_tables_do_not_share_a_group_by_oversight(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        with pytest.raises(
            ValueError, match="'b': expected a group of its own.*table 'a' of layer"
        ):
            DistributedEmbedding(
                {
                    name: FeatureConfig(name, TableConfig(name, None, 2, seed=1, storage=storage))
                    for name in ("a", "b")
                }
            )
        layer = DynamicEmbedding(2, seed=1, storage=storage)
        with pytest.raises(ValueError, match=f"'a': expected a group.*layer '{layer.name}' has"):
            DistributedEmbedding(
                FeatureConfig("a", TableConfig("a", None, 2, seed=1, storage=storage))
            )


def test_a_config_does_not_change_what_rows_of_a_group_start_from(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        config = DistributedEmbedding(
            FeatureConfig("a", TableConfig("a", None, 2, "zeros", storage=storage))
        ).get_config()
        table = config["feature_configs"]["config"]["table"]["config"]
        assert table["initializer"] == "zeros"
        table["initializer"] = "ones"
        with pytest.raises(ValueError, match="expected the initializer that group 0"):
            DistributedEmbedding.from_config(config)
