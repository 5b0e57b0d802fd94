"""A run that is asked to stop, and hooks after its saves."""

from __future__ import annotations

import os
import signal
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import DynamicEmbedding, checkpoint
from sok_embed.checkpoint import Stopped, stop_on, stopping
from sok_embed.checkpoint.stopping import Wishes
from sok_embed.checkpoint.tools.verify import verify


def model_and_data():
    model = keras.Sequential([DynamicEmbedding(2, seed=1), keras.layers.Dense(1)])
    model.build((None, 1))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.arange(24).reshape(-1, 1), np.ones((24, 1))))
    return model, data.batch(4)


def fit(folder, **arguments):
    given = {"epochs": 2, "save_freq": 2, "verbose": 0} | arguments
    return checkpoint.fit(*model_and_data(), directory=folder, **given)


@pytest.mark.parametrize("on_background", [False, True])
def test_each_checkpoint_is_reported_once_it_is_whole(tmp_path, on_background):
    seen = []

    def on_saved(folder, logs):
        assert threading.current_thread() is threading.main_thread()
        assert verify(folder).faults == []
        seen.append((folder, logs))

    history = fit(tmp_path, on_saved=on_saved, save_on_background=on_background, max_to_keep=None)
    assert [os.path.basename(folder) for folder, _ in seen] == sorted(os.listdir(tmp_path))
    assert [list(logs) for _, logs in seen] == [[], *[["loss"]] * 6]
    assert seen[3][1]["loss"] == history.history["loss"][0]
    assert seen[1][1]["loss"] != seen[2][1]["loss"]
    fit(tmp_path, on_saved=on_saved)
    assert seen[7:] == seen[6:7]  # the one from which it goes on


def test_the_error_of_a_hook_ends_the_run_and_the_checkpoint_stays(tmp_path):
    def on_saved(folder, logs):
        if folder.endswith("4"):
            raise KeyError("the hook")

    with pytest.raises(KeyError, match="the hook"):
        fit(tmp_path, on_saved=on_saved)
    assert "step-000000004" in os.listdir(tmp_path)
    assert fit(tmp_path).epoch == [0, 1]


def test_a_stop_at_the_end_of_an_epoch_saves_once_and_one_at_the_end_of_all_is_none(tmp_path):
    seen = []
    asked = {"epochs": 0}
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: asked.update(epochs=epoch + 1)
    )
    with pytest.raises(Stopped) as stopped:
        fit(
            tmp_path,
            stop_when=lambda: asked["epochs"] == 1,
            callbacks=[count],
            save_freq="epoch",
            on_saved=lambda folder, logs: seen.append(folder),
        )
    assert stopped.value.code == stopping.TRY_AGAIN == 75
    assert [os.path.basename(each) for each in seen] == ["step-000000000", "step-000000006"]
    assert stopped.value.folder == seen[-1] and seen[-1] in str(stopped.value)
    assert fit(tmp_path, stop_when=lambda: asked["epochs"] == 2, callbacks=[count]).epoch == [0, 1]


def test_a_callback_that_stops_at_the_same_batch_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "_SECONDS", 0.0)
    done = {"batches": 0}

    def end(batch, logs):
        done["batches"] += 1
        model.stop_training = done["batches"] == 3

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=end)
    model, data = model_and_data()
    arguments = {"directory": tmp_path, "epochs": 2, "verbose": 0}
    stops = {"stop_when": lambda: done["batches"] == 3}
    checkpoint.fit(model, data, callbacks=[callback], **stops, **arguments)
    assert int(model.optimizer.iterations) == 3
    again, data = model_and_data()
    checkpoint.fit(again, data, stop_when=lambda: False, **arguments)
    assert int(again.optimizer.iterations) == 3


def test_the_error_of_the_question_ends_the_run(tmp_path):
    def stop_when():
        raise KeyError("the question")

    with pytest.raises(KeyError, match="the question"):
        fit(tmp_path, stop_when=stop_when)


def test_the_first_signal_is_noted_and_the_second_does_what_it_did_before():
    arrived = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: arrived.append(number))
    try:
        stop = stop_on(signal.SIGUSR1)
        assert not stop() and not arrived
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop() and not arrived
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop() and arrived == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_calls_for_several_fits_are_one_signal_apart_from_the_end():
    arrived = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: arrived.append(number))
    try:
        first, second = stop_on(signal.SIGUSR1), stop_on(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert second() and not first() and not arrived
        os.kill(os.getpid(), signal.SIGUSR1)
        assert arrived == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_cannot_be_noted_is_refused_and_leaves_handlers_alone():
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(ValueError, match="a signal that can be noted. Received: .*SIGKILL"):
            stop_on(signal.SIGTERM, signal.SIGKILL)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    errors = []

    def elsewhere():
        try:
            stop_on()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere, name="other")
    thread.start()
    thread.join()
    assert errors == [
        "Expected stop_on in the main thread, which alone can take signals. Received: other."
    ]
    assert signal.getsignal(signal.SIGTERM) == before


class Slowest:
    """An agreement with a worker that takes so many seconds a batch."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.exchanges = 0

    def gather_together(self, what, work, numbers):
        self.exchanges += 1
        result = work()
        return result, [numbers(result), [0, 0, int(1e9 * self.seconds)]]


@pytest.mark.parametrize(("seconds", "exchanges"), [(5.0, 100), (0.25, 25), (0.01, 7)])
def test_workers_are_asked_about_once_a_second(seconds, exchanges):
    agreement = Slowest(seconds)
    for stop_when, save_when in ((lambda: False, None), (None, lambda: False), (None, None)):
        agreement.exchanges = 0
        wishes = Wishes(stop_when, save_when, agreement)
        for _ in range(100):
            wishes.ask(1)
            assert not wishes.stop and not wishes.save
        assert agreement.exchanges == (exchanges if stop_when or save_when else 0)


@pytest.mark.parametrize("stop_raises", [False, True])
@pytest.mark.parametrize("save_raises", [False, True])
def test_both_questions_are_asked_when_one_raises(stop_raises, save_raises):
    asked = []

    def question(name, raises):
        asked.append(name)
        if raises:
            raise ValueError(f"no answer about {name}")
        return True

    wishes = Wishes(
        lambda: question("stop", stop_raises), lambda: question("save", save_raises), Slowest(1.0)
    )
    if stop_raises or save_raises:
        with pytest.raises(ValueError, match="save" if save_raises else "stop") as raised:
            wishes.ask(1)
        first = raised.value.__context__ or raised.value
        assert ("stop" in str(first)) == stop_raises
    else:
        wishes.ask(1)
    assert asked == ["stop", "save"]
    assert (wishes.stop, wishes.save) == (not (stop_raises or save_raises),) * 2


@pytest.mark.parametrize("on_background", [False, True])
def test_a_wish_to_save_is_granted_at_that_batch_and_training_goes_on(
    tmp_path, monkeypatch, on_background
):
    monkeypatch.setattr(stopping, "_SECONDS", 0.0)
    keras.utils.set_random_seed(1)
    whole = fit(tmp_path / "whole", save_freq="epoch").history
    trained, seen = [], []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: trained.append(1))
    keras.utils.set_random_seed(1)
    saved = fit(
        tmp_path / "saved",
        # Within the first epoch, at its end, and within the second.
        save_when=lambda: len(trained) in (3, 6, 8),
        on_saved=lambda folder, logs: seen.append((int(folder[-2:]), len(trained))),
        callbacks=[count],
        save_freq="epoch",
        save_on_background=on_background,
    ).history
    assert saved == whole
    # The checkpoint of a wish is whole, and known to be, before the next batch.
    assert seen[1:] == [(3, 3), (6, 6), (8, 8), (12, 12)]
