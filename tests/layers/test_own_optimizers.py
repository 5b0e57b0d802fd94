"""The state of a table's own optimizer is saved in every way of saving a model."""

from __future__ import annotations

import pickle
import subprocess

import forked
import keras
import numpy as np
import own_optimizers
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint


@pytest.mark.cover(1)
@pytest.mark.parametrize("rate", own_optimizers.RATES)
@pytest.mark.parametrize("holder", own_optimizers.HOLDERS)
def test_rate_step_and_slots_are_there_in_another_process(holder, rate, tmp_path):
    expected = own_optimizers.save(tmp_path, holder, rate)
    subprocess.run(
        forked.command(own_optimizers.__file__, tmp_path, holder, rate), check=True, timeout=300
    )
    found = pickle.loads((tmp_path / "found.pickle").read_bytes())
    assert found.keys() == own_optimizers.WAYS.keys()
    for way, states in found.items():
        for when, there, here in zip(("loaded", "trained on"), states, expected, strict=True):
            if way != "saved model":
                assert there.keys() == here.keys()
            for name, value in there.items():
                what = f"{way}: {name} when {when}"
                np.testing.assert_allclose(value, here[name], rtol=0, atol=1e-6, err_msg=what)


def lowered():
    model = own_optimizers.make("collection", "changed")
    own_optimizers.train(model)
    for own in own_optimizers.own_optimizers(model):
        own.learning_rate = 0.001
    return model


def rate_of(model):
    (own,) = own_optimizers.own_optimizers(model)
    return float(own.learning_rate.numpy())


@pytest.fixture
def as_earlier_versions(monkeypatch):
    """Makes layers of many tables save as versions did that left their optimizers out."""

    def apply(patch):
        patch.setattr("sok_embed.layers.saved_optimizers.SavedOptimizer.save", lambda *_: None)
        track = sok.DistributedEmbedding._track_trackable

        def without_optimizers(self, trackable, name, overwrite=False):
            if not isinstance(trackable, keras.optimizers.Optimizer):
                return track(self, trackable, name, overwrite)
            return trackable

        patch.setattr(sok.DistributedEmbedding, "_track_trackable", without_optimizers)

    return apply


def test_files_without_own_optimizers_load_and_say_which_rate_holds(
    as_earlier_versions, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        as_earlier_versions(patch)
        model = lowered()
        model.save(tmp_path / "m.keras")
        Checkpoint(model).save(tmp_path / "step")
        tf.train.Checkpoint(model=model).write(str(tmp_path / "tf"))
    made = own_optimizers.make("collection", "changed")
    with pytest.warns(UserWarning, match=r"'t1': iterations, learning_rate.*none.*rate is 0\.5"):
        made.load_weights(tmp_path / "m.keras")
    assert rate_of(made) == 0.5
    np.testing.assert_array_equal(made(own_optimizers.KEYS), model(own_optimizers.KEYS))
    made = own_optimizers.make("collection", "changed")
    with pytest.warns(UserWarning, match="table_1_optimizer/_learning_rate. These stay"):
        Checkpoint(made).restore(tmp_path / "step")
    assert rate_of(made) == 0.5
    np.testing.assert_array_equal(made(own_optimizers.KEYS), model(own_optimizers.KEYS))
    made = own_optimizers.make("collection", "changed")
    tf.train.Checkpoint(model=made).read(str(tmp_path / "tf"))
    assert rate_of(made) == 0.5
    np.testing.assert_array_equal(made(own_optimizers.KEYS), model(own_optimizers.KEYS))


@pytest.mark.filterwarnings("error::UserWarning")
def test_an_old_file_with_the_model_has_the_rate_in_its_config(
    as_earlier_versions, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        as_earlier_versions(patch)
        lowered().save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert rate_of(loaded) == pytest.approx(0.001)


def test_weights_go_into_a_table_that_follows_the_model_with_a_warning(tmp_path):
    model = lowered()
    model.save_weights(tmp_path / "m.weights.h5")
    Checkpoint(model).save(tmp_path / "step")
    keys = keras.Input((2,), dtype="int64")
    vectors = own_optimizers.HOLDERS["collection"](None)(keys)
    made = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(vectors)))
    made.compile(keras.optimizers.SGD(0.01), "mse")
    with pytest.warns(UserWarning, match="'t1': none. Received: iterations, learning_rate"):
        made.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(made(own_optimizers.KEYS), model(own_optimizers.KEYS))
    Checkpoint(made).restore(tmp_path / "step")


@pytest.mark.parametrize("way", ["from_config", "clone", "keras"])
def test_tables_that_share_an_optimizer_share_it_again(way, tmp_path):
    model = own_optimizers.make("shared", "changed")
    layer = model.get_layer("holder")
    if way == "keras":
        model.save(tmp_path / "m.keras")
        layer = keras.saving.load_model(tmp_path / "m.keras").get_layer("holder")
    elif way == "clone":
        layer = keras.models.clone_model(model).get_layer("holder")
    else:
        layer = sok.DistributedEmbedding.from_config(layer.get_config())
    first, second, none = [each.optimizer for each in layer._collection.configs]
    assert first is second and none is None


@pytest.mark.parametrize("holder", ["collection", "dynamic"])
def test_the_optimizer_of_the_model_may_be_that_of_a_table(holder, tmp_path):
    """Weights that are loaded into the same model again have the state of both."""

    def made():
        own = keras.optimizers.Adam(0.5)
        keys = keras.Input((2,), dtype="int64")
        vectors = own_optimizers.HOLDERS[holder](own)(keys)
        model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Flatten()(vectors)))
        model.compile(own, "mse")
        own.build(model.trainable_variables)
        return model

    model = made()
    own_optimizers.train(model)
    model.optimizer.learning_rate = 0.01
    model.save_weights(tmp_path / "m.weights.h5")
    Checkpoint(model).save(tmp_path / "step")
    expected = [np.array(each) for each in model.optimizer.variables]
    for load in (
        lambda each: each.load_weights(tmp_path / "m.weights.h5"),
        lambda each: Checkpoint(each).restore(tmp_path / "step"),
    ):
        loaded = made()
        load(loaded)
        for value, variable in zip(expected, loaded.optimizer.variables, strict=True):
            np.testing.assert_array_equal(variable, value)
        assert rate_of(loaded) == pytest.approx(0.01)


class LowersAtEachEpoch(keras.callbacks.Callback):
    """Multiplies the rates of all own optimizers as an epoch begins."""

    def on_epoch_begin(self, epoch, logs=None):
        for own in own_optimizers.own_optimizers(self.model):
            own.learning_rate = float(own.learning_rate.numpy()) / 2


@pytest.mark.cover(1)
@pytest.mark.parametrize("holder", ["collection", "dynamic"])
def test_a_run_that_goes_on_amid_an_epoch_has_the_rate_of_that_epoch(holder, tmp_path):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch:
                raise KeyboardInterrupt

    batches = tf.data.Dataset.from_tensor_slices((own_optimizers.KEYS, own_optimizers.TARGETS))
    batches = batches.batch(1)
    arguments = {"epochs": 1, "save_freq": 1, "directory": tmp_path / "run", "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        sok.checkpoint.fit(
            own_optimizers.make(holder, "changed"),
            batches,
            callbacks=[LowersAtEachEpoch(), Stops()],
            **arguments,
        )
    model = own_optimizers.make(holder, "changed")
    sok.checkpoint.fit(model, batches, callbacks=[LowersAtEachEpoch()], **arguments)
    assert rate_of(model) == 0.25
