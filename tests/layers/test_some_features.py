"""A layer of many features can be called with some of them: a tower is served alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig

USERS = np.array([1, 2, 3])
ITEMS = np.array([[7, 8], [8, 9], [7, 7]])


def towers(name="fields"):
    items = TableConfig("items", None, 4)
    return DistributedEmbedding(
        {
            "user": FeatureConfig("user", TableConfig("users", None, 4)),
            "item": FeatureConfig("item", items),
            "seen": FeatureConfig("seen", items, combiner="sum"),
        },
        name=name,
    )


@pytest.mark.cover(3)
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("names", [["user"], ["item"], ["seen", "user"]], ids=str)
def test_some_features_have_the_vectors_that_all_have(names, traced):
    layer = towers()
    inputs = {"user": USERS, "item": USERS, "seen": ITEMS}
    everything = layer(inputs, training=True)
    call = tf.function(layer) if traced else layer
    some = call({name: inputs[name] for name in names})
    assert list(some) == [name for name in everything if name in names]
    for name in names:
        np.testing.assert_array_equal(some[name], everything[name])


def test_some_features_train_as_all_do_whose_others_are_not_used():
    """Two calls for two towers equal one call, for a rule that moves untouched slots too."""

    def trained(in_two_calls):
        layer = towers()
        optimizer = keras.optimizers.Adam(0.1)
        for _ in range(3):
            with tf.GradientTape() as tape:
                if in_two_calls:
                    user = layer({"user": USERS}, training=True)["user"]
                    seen = layer({"seen": ITEMS}, training=True)["seen"]
                else:
                    inputs = {"user": USERS, "item": USERS + 90, "seen": ITEMS}
                    outputs = layer(inputs, training=True)
                    user, seen = outputs["user"], outputs["seen"]
                loss = tf.reduce_sum((user - seen) ** 2)
            optimizer.apply(
                tape.gradient(loss, layer.trainable_variables), layer.trainable_variables
            )
        return layer({"user": USERS, "seen": ITEMS})

    one, two = trained(False), trained(True)
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=0, atol=1e-6)


def test_features_of_both_towers_share_one_table():
    layer = towers()
    layer({"item": USERS}, training=True)
    layer({"seen": USERS[:, None]}, training=True)
    assert layer.tables["items"].size() == 3


def test_a_tower_is_a_model_that_is_saved_and_exported_alone(tmp_path):
    layer = towers()
    item = keras.Input((), dtype="int64", name="item")
    model = keras.Model({"item": item}, layer({"item": item})["item"])
    expected = model.predict({"item": USERS}, verbose=0)
    model.save(tmp_path / "tower.keras")
    loaded = keras.saving.load_model(tmp_path / "tower.keras")
    np.testing.assert_array_equal(loaded.predict({"item": USERS}, verbose=0), expected)
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_array_equal(served.serve({"item": tf.constant(USERS)}), expected)


def test_weights_go_with_some_features():
    layer = towers()
    weights = np.array([[1.0, 0.5], [2.0, 0.0], [0.0, 1.0]], np.float32)
    everything = layer({"user": USERS, "item": USERS, "seen": ITEMS}, {"seen": weights})
    some = layer({"seen": ITEMS}, {"seen": weights})
    np.testing.assert_array_equal(some["seen"], everything["seen"])


def test_weights_of_a_feature_without_an_input_are_refused():
    with pytest.raises(ValueError, match="'fields': expected weights of features that the inputs"):
        towers()({"user": USERS}, {"seen": np.ones((3, 2))})


def test_no_features_at_all_are_refused():
    with pytest.raises(ValueError, match="'fields': expected inputs of at least one.*'item'"):
        towers()({})


@pytest.mark.parametrize("output", ["concat", "stack"])
def test_vectors_that_are_joined_need_all_features(output):
    table = TableConfig("t", None, 2)
    layer = DistributedEmbedding(
        {"a": FeatureConfig("a", table), "b": FeatureConfig("b", table)},
        output=output,
        name="fields",
    )
    with pytest.raises(ValueError, match=f"all features.*{output}.*without 'b'.*structure"):
        layer({"a": USERS})
    with pytest.raises(ValueError, match="all features"):
        layer({"a": keras.Input((), dtype="int64")})
