"""EarlyStopping stops where Keras' own does, and brings the rows of the best epoch back."""

import math
import time
import warnings
from pathlib import Path

import held_state
import keras
import numpy as np
import pytest

import sok_embed as sok
from sok_embed.callbacks.averaged_logs import _average, averaged_logs
from sok_embed.checkpoint.transfer.writing import RowsCapture

RANDOM = np.random.default_rng(5)
KEYS = RANDOM.integers(0, 30, (64, 2))
TARGETS = RANDOM.normal(size=(64, 1)).astype(np.float32)
UNSEEN = RANDOM.integers(0, 30, (64, 2)), RANDOM.normal(size=(64, 1)).astype(np.float32)
START = RANDOM.normal(size=(30, 4)).astype(np.float32)


def model_of(embedding):
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(3))
    model = keras.Sequential(
        [keras.Input((2,), dtype="int64"), embedding, keras.layers.Flatten(), dense]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def with_table(**arguments):
    return model_of(
        sok.DynamicEmbedding(4, weights=(np.arange(30), START), name="emb", **arguments)
    )


def of_keras():
    return model_of(keras.layers.Embedding(30, 4, embeddings_initializer=lambda *_, **__: START))


class Noted(keras.callbacks.Callback):
    """What the model held at the end of each epoch; may put other losses into the logs."""

    def __init__(self, losses=()):
        super().__init__()
        self.losses = losses
        self.held = []

    def on_epoch_end(self, epoch, logs=None):
        self.held.append(held_state.held_by(self.model))
        if len(self.losses):
            logs["val_loss"] = self.losses[epoch]


def fit(model, callbacks, epochs=12):
    return model.fit(
        KEYS,
        TARGETS,
        batch_size=16,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        validation_data=UNSEEN,
        callbacks=callbacks,
    )


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "arguments",
    [
        {"patience": 2},
        {"patience": 1, "min_delta": 0.01},
        {"patience": 3, "start_from_epoch": 2},
        {"patience": 2, "baseline": 0.5},
        {"patience": 2, "mode": "max"},
        {"patience": 20},
    ],
    ids=str,
)
def test_the_epoch_is_that_of_keras_and_the_model_too(arguments):
    theirs = keras.callbacks.EarlyStopping(restore_best_weights=True, **arguments)
    expected, model = of_keras(), with_table()
    fit(expected, [theirs])
    noted = Noted()
    ours = sok.callbacks.EarlyStopping(restore_best_weights=True, **arguments)
    history = fit(model, [noted, ours])
    assert (ours.best_epoch, ours.stopped_epoch) == (theirs.best_epoch, theirs.stopped_epoch)
    # The sums of gradients of equal keys are rounded in another order.
    found = model.predict(KEYS, verbose=0)
    np.testing.assert_allclose(found, expected.predict(KEYS, verbose=0), rtol=0, atol=1e-5)
    held_state.assert_same(held_state.held_by(model), noted.held[ours.best_epoch])
    loss = model.evaluate(*UNSEEN, verbose=0)
    assert math.isclose(loss, history.history["val_loss"][ours.best_epoch], rel_tol=1e-6)


def test_without_a_restore_the_last_epoch_stays():
    noted = Noted([1.0, 2.0, 3.0])
    stop = sok.callbacks.EarlyStopping(patience=1)
    model = with_table()
    fit(model, [noted, stop])
    assert stop.stopped_epoch == 1
    held_state.assert_same(held_state.held_by(model), noted.held[-1])


def test_a_temporary_folder_goes_and_a_directory_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    noted = Noted([2.0, 1.0, 3.0])
    fit(with_table(), [noted, sok.callbacks.EarlyStopping(restore_best_weights=True)], 3)
    assert not list(tmp_path.iterdir())
    stop = sok.callbacks.EarlyStopping(restore_best_weights=True, directory=tmp_path / "best")
    noted = Noted([2.0, 1.0, 3.0])
    fit(with_table(), [noted, stop], 3)
    other = with_table()
    sok.checkpoint.Checkpoint(other).restore(tmp_path / "best")
    held_state.assert_same(held_state.held_by(other), noted.held[1])


def test_each_fit_begins_anew_and_takes_nothing_of_the_one_before(tmp_path):
    stop = sok.callbacks.EarlyStopping(
        restore_best_weights=True, start_from_epoch=1, directory=tmp_path / "best"
    )
    model = with_table()
    fit(model, [Noted([1.0, 2.0, 3.0]), stop], 3)
    assert stop.best_epoch == 1
    noted = Noted([5.0])
    fit(model, [noted, stop], 1)  # no epoch is looked at, and none is restored
    held_state.assert_same(held_state.held_by(model), noted.held[0])


def test_a_metric_that_is_not_there_is_a_warning_and_nothing_is_kept():
    noted = Noted()
    stop = sok.callbacks.EarlyStopping("nothing", mode="min", restore_best_weights=True)
    model = with_table()
    with pytest.warns(UserWarning, match="nothing"):
        fit(model, [noted, stop], 2)
    held_state.assert_same(held_state.held_by(model), noted.held[-1])


def test_rows_on_disk_come_back(tmp_path: Path):
    with sok.Storage(tmp_path / "rows") as storage:
        noted = Noted([1.0, 2.0])
        model = model_of(sok.DynamicEmbedding(4, name="emb", storage=storage))
        fit(model, [noted, sok.callbacks.EarlyStopping(restore_best_weights=True)], 2)
        held_state.assert_same(held_state.held_by(model), noted.held[0])


def test_a_save_in_the_background_is_waited_for(tmp_path, monkeypatch):
    write = RowsCapture.write

    def slow(capture):
        time.sleep(0.2)
        return write(capture)

    class Backup(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            manager.save()

    monkeypatch.setattr(RowsCapture, "write", slow)
    model = with_table()
    checkpoint = sok.checkpoint.Checkpoint(model)
    manager = sok.checkpoint.CheckpointManager(
        checkpoint, tmp_path / "run", save_on_background=True
    )
    noted = Noted([1.0, 2.0])
    stop = sok.callbacks.EarlyStopping(restore_best_weights=True)
    fit(model, [noted, Backup(), stop], 2)
    held_state.assert_same(held_state.held_by(model), noted.held[0])
    sok.save_model(model, tmp_path / "model.keras")
    manager.wait()
    manager.restore_or_initialize()
    held_state.assert_same(held_state.held_by(model), noted.held[1])


def test_accumulated_gradients_are_not_lost_in_silence():
    model = with_table()
    model.compile(keras.optimizers.SGD(0.05, gradient_accumulation_steps=3), "mse")
    stop = sok.callbacks.EarlyStopping(restore_best_weights=True)
    with pytest.raises(ValueError, match="accumulated the gradients of 1 calls"):
        fit(model, [stop], 1)  # of four batches


def test_a_directory_that_nothing_is_kept_in_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no directory with restore_best_weights=False"):
        sok.callbacks.EarlyStopping(directory=tmp_path)


def test_logs_of_one_worker_are_its_own():
    logs = {"loss": 1.5, "what": "text"}
    assert averaged_logs(logs) == logs
    assert averaged_logs(None) == {}


def test_averages_of_what_is_not_finite_are_not_either():
    assert _average([1.0, 2.0]) == 1.5
    assert _average([1e308, 1e308 / 4, -1e308]) == pytest.approx(1e308 / 12)
    assert math.isnan(_average([1.0, math.nan]))
    assert _average([1.0, math.inf]) == math.inf
    assert math.isnan(_average([math.inf, -math.inf]))


def test_a_best_epoch_that_was_forgotten_is_told_of(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    values = np.ones((4, 1), np.float32)

    def fit(begin, callback):
        model.fit(
            values, values, epochs=begin + 1, initial_epoch=begin, verbose=0, callbacks=[callback]
        )

    def file():
        return sok.callbacks.ModelCheckpoint(
            tmp_path / "best.keras", monitor="loss", save_best_only=True
        )

    def folder():
        return sok.callbacks.EarlyStopping(
            monitor="loss", restore_best_weights=True, directory=tmp_path / "best"
        )

    for make, text in ((file, "initial_value_threshold"), (folder, "another directory")):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            fit(0, make())
        with pytest.warns(UserWarning, match=rf"(?s)goes on with epoch 2.*{text}"):
            fit(1, make())
