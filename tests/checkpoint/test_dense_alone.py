"""Ways to save that know variables alone raise: weights of one time never meet rows of another."""

import contextlib
import copy
import pickle
import types

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.legacy.saving.legacy_h5_format import save_model_to_hdf5

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed import kv

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(0, 50, (32, 3))
TARGETS = RANDOM.normal(size=(32, 1)).astype(np.float32)


def sequential(layer, **shape):
    model = keras.Sequential(
        [
            keras.Input(shape.get("shape", (3,)), dtype="int64"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1, name="dense"),
        ]
    )
    model.compile("adam", "mse")
    return model


def columns():
    item = fc.categorical_column_with_adaptive_embedding("item", 10, tf.int64)
    inputs = {"item": keras.Input((3,), dtype="int64"), "mask": keras.Input((3,), dtype="int32")}
    layer = fc.DenseFeatures([fc.embedding_column(item, 4)], name="emb")
    outputs = keras.layers.Dense(1)(layer({"item": inputs["item"]}, {"item": inputs["mask"]}))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    return model


MODELS = {
    "dynamic": lambda: sequential(sok.DynamicEmbedding(4, name="emb")),
    "all2all": lambda: sequential(
        sok.All2AllDenseEmbedding(100, 4, 1, 3, name="emb"), shape=(1, 3)
    ),
    "adaptive": lambda: sequential(sok.AdaptiveEmbedding(4, 10, name="emb")),
    "columns": columns,
}
INPUTS = {
    "dynamic": IDS,
    "all2all": IDS[:, None],
    "adaptive": IDS,
    "columns": {"item": IDS, "mask": (IDS % 2).astype(np.int32)},
}


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


def fit(model, kind="dynamic", **arguments):
    model.fit(INPUTS[kind], TARGETS, batch_size=8, shuffle=False, **{"verbose": 0, **arguments})
    return model


def predict(model, kind="dynamic"):
    return model.predict(INPUTS[kind], verbose=0)


def test_early_stopping_that_would_restore_dense_weights_alone_is_refused(kind):
    stop = keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)
    text = r"'emb'.*restore_best_weights=True.*sok_embed\.callbacks\.EarlyStopping"
    with pytest.raises(ValueError, match=text):
        fit(MODELS[kind](), kind, epochs=2, callbacks=[stop])


@pytest.mark.cover(2)
def test_early_stopping_itself_stops(kind):
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=1e9)
    model = fit(MODELS[kind](), kind, epochs=5, callbacks=[stop])
    assert stop.stopped_epoch > 0
    assert np.isfinite(predict(model, kind)).all()


def test_early_stopping_may_restore_beside_a_frozen_table():
    model = MODELS["dynamic"]()
    model.get_layer("emb").trainable = False
    model.compile("adam", "mse")
    fit(
        model,
        epochs=2,
        callbacks=[keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)],
    )


@pytest.mark.cover(2)
def test_the_best_model_comes_back_by_the_advice(kind):
    class Worsening(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.predicted = predict(self.model, kind) if epoch == 0 else self.predicted
            logs["loss"] = epoch

    noted = Worsening()
    best = sok.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)
    model = fit(MODELS[kind](), kind, epochs=3, callbacks=[noted, best])
    assert best.stopped_epoch == 1
    np.testing.assert_array_equal(predict(model, kind), noted.predicted)


@pytest.mark.parametrize("name", ["model.h5", "model.hdf5"])
def test_the_old_hdf5_format_is_refused(tmp_path, kind, name):
    with pytest.raises(ValueError, match=r"'emb'.*HDF5.*has no rows.*\.keras"):
        MODELS[kind]().save(tmp_path / name)


@keras.saving.register_keras_serializable(package="tests")
class OwnConfig(keras.Model):
    """A model whose config asks no layer, so that HDF5 asks for weights first."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.emb = sok.DynamicEmbedding(4, name="emb")
        self.dense = keras.layers.Dense(1)

    def call(self, ids, training=False):
        return self.dense(self.emb(ids, training=training)[:, 0])

    def get_config(self):
        return {"name": self.name}


def own_config():
    model = OwnConfig()
    model.compile("adam", "mse")
    model(IDS)
    return model


@pytest.mark.parametrize("make", [*MODELS.values(), own_config], ids=[*MODELS, "own_config"])
def test_a_refused_hdf5_file_leaves_nothing_torn_and_the_optimizer_in_its_place(make, tmp_path):
    model = make()
    model.optimizer.learning_rate = 0.125
    before = model._compile_config.serialize()
    path = tmp_path / "model.h5"
    path.write_bytes(b"what was here is gone when Keras asks")
    with pytest.raises(ValueError, match=r"had emptied '.*model\.h5' before, and it is removed"):
        model.save(path)
    assert not path.exists()
    assert model._compile_config.serialize().keys() == before.keys()
    sok.save_model(model, tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert float(loaded.optimizer.learning_rate) == 0.125


def test_a_file_that_the_user_has_open_is_not_removed(tmp_path):
    with h5py.File(tmp_path / "model.h5", "w") as file:
        with pytest.raises(ValueError, match=r"HDF5.*load_model\.$"):
            save_model_to_hdf5(MODELS["dynamic"](), file)
        assert file
    assert (tmp_path / "model.h5").exists()


def early_stopping(_):
    return keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)


def old_format(folder):
    return keras.callbacks.ModelCheckpoint(folder / "model.h5")


@pytest.mark.cover(2)
@pytest.mark.parametrize("make, text", [(early_stopping, "EarlyStopping"), (old_format, "HDF5")])
@pytest.mark.parametrize("traced", [False, True])
def test_callbacks_that_lack_rows_are_refused_before_the_first_step(
    kind, make, text, traced, tmp_path
):
    model = MODELS[kind]()
    if traced:
        fit(model, kind)
    (tmp_path / "model.h5").write_bytes(b"an older model")
    before = predict(model, kind)
    with pytest.raises(ValueError, match=rf"'emb'.*{text}"):
        fit(model, kind, callbacks=[make(tmp_path)])
    np.testing.assert_array_equal(predict(model, kind), before)
    assert (tmp_path / "model.h5").read_bytes() == b"an older model"
    fit(model, kind)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_checkpoints_in_formats_that_have_rows_are_written(kind, name, tmp_path):
    weights = name.endswith(".weights.h5")
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / name, save_weights_only=weights)
    fit(MODELS[kind](), kind, callbacks=[checkpoint])
    assert (tmp_path / name).exists()


def test_an_old_hdf5_file_without_rows_is_not_loaded(tmp_path):
    with sok.dense_only():
        MODELS["dynamic"]().save(tmp_path / "model.h5")
    with pytest.raises(ValueError, match="HDF5.*has no rows"):
        keras.models.load_model(tmp_path / "model.h5")
    with pytest.raises(ValueError, match="HDF5.*has no rows"):
        MODELS["dynamic"]().load_weights(tmp_path / "model.h5")


@pytest.mark.cover(2)
def test_set_weights_is_refused_but_where_the_rows_are_the_same(kind):
    model = fit(MODELS[kind](), kind)
    before = predict(model, kind)
    weights = model.get_weights()
    for change in (
        lambda: model.set_weights(weights),
        lambda: keras.models.clone_model(model).set_weights(weights),
        lambda: model.set_state_tree(model.get_state_tree()),
    ):
        with pytest.raises(ValueError, match=r"'emb'.*sets dense weights alone.*dense_only"):
            change()
    np.testing.assert_array_equal(predict(model, kind), before)
    # The file is of a layer without a table.
    model.layers[-1].set_weights(model.layers[-1].get_weights())
    with sok.dense_only():
        model.set_weights([2 * weight for weight in weights])
        with sok.dense_only():
            pass
        model.set_weights(weights)
    np.testing.assert_array_equal(predict(model, kind), before)
    with pytest.raises(ValueError):
        model.set_weights(weights)


def test_set_weights_takes_rows_in_a_storage_as_they_are(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        model = fit(sequential(sok.DynamicEmbedding(4, name="emb", storage=storage)))
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        np.testing.assert_array_equal(predict(clone), predict(model))
        stop = keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)
        with pytest.raises(ValueError, match="restore_best_weights=True"):
            fit(model, epochs=2, callbacks=[stop])


def test_a_model_within_a_model_is_found():
    inner = MODELS["dynamic"]()
    inputs = keras.Input((3,), dtype="int64")
    outer = keras.Model(inputs, keras.layers.Dense(1)(inner(inputs)))
    with pytest.raises(ValueError, match="dense weights alone"):
        outer.set_weights(outer.get_weights())


@pytest.mark.cover(2)
def test_orbax_is_refused(tmp_path, monkeypatch, kind):
    """Orbax need not be installed: only what Keras asks of the model before it writes."""
    orbax_checkpoint = pytest.importorskip("keras.src.callbacks.orbax_checkpoint")  # not in 3.12

    saved = []
    checkpointer = types.SimpleNamespace(
        save_checkpointables=lambda *given: saved.append(given), close=lambda: None
    )
    monkeypatch.setattr(
        orbax_checkpoint,
        "ocp",
        types.SimpleNamespace(available=True, Context=contextlib.nullcontext),
    )
    callback = object.__new__(keras.callbacks.OrbaxCheckpoint)
    callback.__dict__.update(
        save_weights_only=False, save_on_background=False, checkpointer=checkpointer
    )
    for weights_only in (False, True):
        model = MODELS[kind]()
        model.optimizer.build(model.trainable_variables)
        callback.save_weights_only = weights_only
        callback.set_model(model)
        with pytest.raises(ValueError, match=r"'emb'.*Orbax.*has no rows.*ModelCheckpoint"):
            callback._save_checkpoint(0)
    model = MODELS[kind]()
    before = predict(model, kind)
    with pytest.raises(ValueError, match=r"'emb'.*Orbax.*has no rows"):
        fit(model, kind, callbacks=[callback])
    np.testing.assert_array_equal(predict(model, kind), before)
    assert not saved


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["copy", "pickle"],
)
def test_copies_have_the_rows(kind, copied):
    model = fit(MODELS[kind](), kind)
    other = copied(model)
    np.testing.assert_array_equal(predict(other, kind), predict(model, kind))
    expected = predict(model, kind)
    fit(other, kind)  # on its own
    np.testing.assert_array_equal(predict(model, kind), expected)
    assert (predict(other, kind) != expected).any()
    fit(model, kind)  # and as the copy, with the slots of rows
    np.testing.assert_allclose(predict(other, kind), predict(model, kind), rtol=1e-5, atol=1e-6)


def test_a_clone_starts_anew_as_all_of_it_does():
    model = fit(MODELS["dynamic"]())
    clone = keras.models.clone_model(model)
    assert clone.get_layer("emb").table.size() == 0
    assert clone.get_layer("emb").table is not model.get_layer("emb").table


def test_a_clone_is_compiled_as_the_model_was():
    model = MODELS["dynamic"]()
    model.compile(keras.optimizers.Adagrad(0.25), "mae")
    clone = keras.models.clone_model(model)
    clone.compile_from_config(model.get_compile_config())
    with sok.dense_only():
        clone.set_weights(model.get_weights())
    np.testing.assert_allclose(predict(fit(clone)), predict(fit(model)), rtol=1e-5, atol=1e-6)


def test_averages_swap_dense_weights_beside_rows_of_their_own_optimizer():
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    model = MODELS["dynamic"]()
    with pytest.raises(ValueError, match="without use_ema.*optimizer of its own"):
        model.compile(keras.optimizers.Adam(use_ema=True), "mse")
        fit(model)  # Keras before 3.15
    model = sequential(sok.DynamicEmbedding(4, optimizer="sgd", name="emb"))
    model.compile(keras.optimizers.Adam(use_ema=True), "mse")
    fit(model, callbacks=[swap])
    assert model.get_layer("emb").table.size() == len(np.unique(IDS))
    with sok.dense_only():
        assert not np.any(model.get_layer("emb").get_weights()[0])


def test_backup_and_restore_carries_the_rows(tmp_path):
    class Interrupted(Exception):
        pass

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise Interrupted

    whole = fit(MODELS["dynamic"](), epochs=4)
    keras.utils.set_random_seed(0)
    keras.utils.clear_session(free_memory=False)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(Interrupted):
        fit(MODELS["dynamic"](), epochs=4, callbacks=[backup, Interrupt()])
    resumed = MODELS["dynamic"]()
    fit(resumed, epochs=4, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup")])
    np.testing.assert_allclose(predict(resumed), predict(whole), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_loaded_is_skipped_with_a_warning_that_names_it(tmp_path):
    fit(MODELS["dynamic"]()).save_weights(tmp_path / "model.weights.h5")
    other = sequential(sok.DynamicEmbedding(5, name="emb"))
    with pytest.warns(UserWarning, match="DynamicEmbedding name=emb"):
        other.load_weights(tmp_path / "model.weights.h5", skip_mismatch=True)
    assert other.get_layer("emb").table.size() == 0


def test_a_table_is_not_copied_by_itself():
    for layer in (sok.DynamicEmbedding(4), sok.AdaptiveEmbedding(4, 10)):
        with pytest.raises(TypeError, match=r"expected no copy.*restore"):
            copy.deepcopy(layer.table)
        with pytest.raises(TypeError, match=r"Received: pickle. Pickle .*restore"):
            pickle.dumps(layer.table)


def test_what_a_table_holds_is_pickled_and_fills_another():
    one, two = sok.DynamicEmbedding(2).table, sok.DynamicEmbedding(2).table
    one.assign([3], [[1.0, 2]])
    two.restore(pickle.loads(pickle.dumps(one.export(slots=True))))
    assert two.lookup([3]).tolist() == [[1, 2]]
