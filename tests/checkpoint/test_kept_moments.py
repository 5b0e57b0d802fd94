"""What a callback or a save has kept predicts as the model did at that moment, or it is refused.

Each way to keep a model is tried with each kind of table. Training goes on after the moment.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import FeatureConfig, TableConfig

RANDOM = np.random.default_rng(2)
KEYS = RANDOM.integers(0, 30, (32, 2))
TARGETS = RANDOM.normal(size=(32, 1)).astype(np.float32)
LOSSES = [3.0, 1.0, 2.0, 4.0]  # what callbacks are told; the second epoch is the best
BEST = 1


def collection(storage):
    kept = {} if storage is None else {"storage": storage}
    tables = [
        TableConfig("first", None, 3, seed=1, group=0 if kept else None, **kept),
        TableConfig("second", None, 2, seed=2, group=4 if kept else None, **kept),
    ]
    return sok.DistributedEmbedding(
        [FeatureConfig(table.name, table) for table in tables], output="concat", name="emb"
    )


def half_on_disk(storage):
    tables = [
        TableConfig("first", None, 3, seed=1, storage=storage),
        TableConfig("second", None, 2, seed=2),
    ]
    return sok.DistributedEmbedding(
        [FeatureConfig(table.name, table) for table in tables], output="concat", name="emb"
    )


LAYERS = {
    "memory": lambda _: sok.DynamicEmbedding(4, seed=1, name="emb"),
    "storage": lambda storage: sok.DynamicEmbedding(
        4, seed=1, storage=storage, group=3, name="emb"
    ),
    "collection": lambda _: collection(None),
    "collection in a storage": collection,
    "collection half in a storage": half_on_disk,
    "adaptive": lambda _: sok.AdaptiveEmbedding(4, 7, promote_after=2, seed=1, name="emb"),
    "hashed": lambda _: sok.HashedEmbedding(64, 4, size=60, name="emb"),
}
ON_DISK = [kind for kind in LAYERS if "storage" in kind]


class Place:
    """A folder, the storage in it, and models over that."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.storage = sok.Storage(folder / "rows") if kind in ON_DISK else None

    def model(self):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        layer = LAYERS[self.kind](self.storage)
        inputs = keras.Input((2,), dtype="int64")
        lists = isinstance(layer, sok.DistributedEmbedding)
        vectors = layer([inputs, inputs[:, :1]] if lists else inputs)
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(3))
        model = keras.Model(inputs, dense(keras.layers.Flatten()(vectors)))
        model.compile(keras.optimizers.Adam(0.05), "mse")
        return model

    def path(self, name):
        return str(self.folder / name)


class Told(keras.callbacks.Callback):
    """Notes predictions of each epoch's end, and puts losses into the logs."""

    def __init__(self):
        super().__init__()
        self.predictions = []

    def on_epoch_end(self, epoch, logs=None):
        self.predictions.append(predict(self.model))
        logs["loss"] = LOSSES[epoch]


class Saves(keras.callbacks.Callback):
    """Saves after the best epoch."""

    def __init__(self, save):
        super().__init__()
        self.save = save

    def on_epoch_end(self, epoch, logs=None):
        if epoch == BEST:
            self.save(self.model)


def predict(model):
    return np.asarray(model(KEYS, training=False))


def fit(model, callbacks, epochs=4):
    told = Told()
    model.fit(
        KEYS, TARGETS, batch_size=8, epochs=epochs, shuffle=False, verbose=0,
        callbacks=[told, *callbacks],
    )  # fmt: skip
    return told.predictions


def keras_file(callbacks):
    path = "best.keras"
    return (
        lambda place: callbacks.ModelCheckpoint(place.path(path), "loss", save_best_only=True),
        lambda place: predict(keras.saving.load_model(place.path(path))),
    )


def weights_file(callbacks):
    path = "{epoch}.weights.h5"

    def load(place):
        model = place.model()
        model.load_weights(place.path(path.format(epoch=BEST + 1)))
        return predict(model)

    return (
        lambda place: callbacks.ModelCheckpoint(place.path(path), save_weights_only=True),
        load,
    )


def early_stopping(callbacks):
    def run(place):
        model = place.model()
        best = callbacks.EarlyStopping("loss", patience=4, restore_best_weights=True)
        predictions = fit(model, [best])
        return predictions[BEST], predict(model)

    return run


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 4 * (BEST + 1) + 2:
            raise KeyboardInterrupt


class AtStart(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.begun, self.predictions = epoch, predict(self.model)
        self.model.stop_training = True


def backup(callbacks):
    def run(place):
        folder = place.path("backup")
        before = Told()
        with pytest.raises(KeyboardInterrupt):
            place.model().fit(
                KEYS, TARGETS, batch_size=8, epochs=4, shuffle=False, verbose=0,
                callbacks=[before, callbacks.BackupAndRestore(folder), Interrupt()],
            )  # fmt: skip
        start = AtStart()
        fit(place.model(), [callbacks.BackupAndRestore(folder), start])
        assert start.begun == BEST + 1
        return before.predictions[BEST], start.predictions

    return run


def saved(save, load):
    """A save within a training that goes on."""
    return (lambda place: Saves(lambda model: save(model, place)), load)


def into_new_model(name, load):
    def run(place):
        model = place.model()
        load(model, place.path(name))
        return predict(model)

    return run


def of_saved_model(place):
    loaded = tf.saved_model.load(place.path("exported"))
    return loaded.serve(KEYS).numpy()


def plain_saved_model(model, place):
    tf.saved_model.save(model, place.path("plain"))


def of_plain_saved_model(place):
    loaded = tf.saved_model.load(place.path("plain"))
    return loaded.signatures["serving_default"](tf.constant(KEYS))["output_0"].numpy()


def load_file(place):
    return predict(keras.saving.load_model(place.path("saved.keras")))


def restore(model, path):
    sok.checkpoint.Checkpoint(model).restore(path)


# What keeps a model in the midst of a training, and what predicts by it afterwards.
KEEPS = {
    "ModelCheckpoint .keras": keras_file(sok.callbacks),
    "ModelCheckpoint .weights.h5": weights_file(sok.callbacks),
    "Checkpoint": saved(
        lambda model, place: sok.checkpoint.Checkpoint(model).save(place.path("checkpoint")),
        into_new_model("checkpoint", restore),
    ),
    "model.save": saved(lambda model, place: model.save(place.path("saved.keras")), load_file),
    "save_model": saved(
        lambda model, place: sok.save_model(model, place.path("whole.keras")),
        lambda place: predict(keras.saving.load_model(place.path("whole.keras"))),
    ),
    "save_weights": saved(
        lambda model, place: model.save_weights(place.path("saved.weights.h5")),
        into_new_model("saved.weights.h5", lambda model, path: model.load_weights(path)),
    ),
    "export": saved(
        lambda model, place: model.export(place.path("exported"), verbose=False), of_saved_model
    ),
    "saved_model": saved(plain_saved_model, of_plain_saved_model),
}
# These leave rows in the storage, as the guide says; who loads a file is told that rows are newer.
LATER_ROWS = ("model.save", "save_model", "save_weights", "export", "saved_model")
WARNING = LATER_ROWS[:3]


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_saved_predicts_as_at_its_moment(kind, tmp_path):
    place = Place(kind, tmp_path)
    predictions = fit(place.model(), [keep(place) for keep, _ in KEEPS.values()])
    found = {}
    # What loads weights into a model over the storage replaces its rows.
    for way in sorted(KEEPS, key=lambda way: way not in LATER_ROWS):
        told = kind in ON_DISK and way in WARNING
        warned = pytest.warns(UserWarning, match=r"after 8 steps of training.*rows after 16 steps")
        with warned if told else contextlib.nullcontext():
            found[way] = KEEPS[way][1](place)
    for way, predicted in found.items():
        if kind in ON_DISK and way in LATER_ROWS:
            assert np.abs(predicted - predictions[BEST]).max() > 1e-3, way
            continue
        # A SavedModel adds sums in another order.
        np.testing.assert_allclose(predicted, predictions[BEST], rtol=0, atol=1e-6, err_msg=way)


RUNS = {
    "EarlyStopping": early_stopping(sok.callbacks),
    "BackupAndRestore": backup(sok.callbacks),
    "keras.EarlyStopping": early_stopping(keras.callbacks),
    "keras.BackupAndRestore": backup(keras.callbacks),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("way", RUNS)
def test_what_comes_back_in_fit_predicts_as_at_its_moment_or_is_refused(way, kind, tmp_path):
    place = Place(kind, tmp_path)
    refused = {
        "keras.EarlyStopping": [kind for kind in LAYERS if kind != "hashed"],
        "keras.BackupAndRestore": ON_DISK,
    }
    if kind in refused.get(way, ()):
        with pytest.raises(ValueError, match=r"Layer 'emb': .*sok_embed\.callbacks\."):
            RUNS[way](place)
        return
    expected, found = RUNS[way](place)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("make", [keras_file, weights_file])
def test_the_model_checkpoint_of_keras_is_refused_over_rows_on_disk(make, kind, tmp_path):
    place = Place(kind, tmp_path)
    keep, load = make(keras.callbacks)
    if kind in ON_DISK:
        model = place.model()
        with pytest.raises(ValueError, match=r"Layer 'emb': .*sok_embed\.callbacks\.ModelCh"):
            fit(model, [keep(place)])
        assert int(model.optimizer.iterations) == 0
        return
    predictions = fit(place.model(), [keep(place)])
    np.testing.assert_allclose(load(place), predictions[BEST], rtol=0, atol=1e-6)


def test_callbacks_of_keras_that_keep_nothing_work_as_they_are(tmp_path):
    place = Place("storage", tmp_path)
    model = place.model()
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0)
    stop = keras.callbacks.EarlyStopping("loss", patience=4)
    fit(model, [plateau, stop, keras.callbacks.TerminateOnNaN()])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.0125)


def test_frozen_rows_and_read_only_ones_may_be_kept_by_keras(tmp_path):
    place = Place("storage", tmp_path)
    model = place.model()
    fit(model, [], 1)
    model.get_layer("emb").trainable = False
    model.compile("adam", "mse")
    fit(model, [keras.callbacks.ModelCheckpoint(place.path("best.keras"))])
    np.testing.assert_array_equal(
        predict(keras.saving.load_model(place.path("best.keras"))), predict(model)
    )
