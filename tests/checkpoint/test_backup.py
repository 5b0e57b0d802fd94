"""A fit that is interrupted goes on where its last epoch ended."""

import os
import signal
import subprocess
from pathlib import Path

import forked
import held_state
import keras
import keras_reference
import numpy as np
import pytest

import sok_embed as sok
from sok_embed.callbacks import BackupAndRestore
from sok_embed.checkpoint.transfer.saves import wait_for_writers


class Interruption(Exception):
    """Ends a fit."""


class InterruptAt(keras.callbacks.Callback):
    """Raises before a batch of an epoch, both counted from 0."""

    def __init__(self, epoch, batch=0):
        super().__init__()
        self.at = (epoch, batch)
        self.epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise Interruption


def fit(model, callbacks, epochs=5):
    return model.fit(
        held_state.KEYS, held_state.TARGETS, batch_size=12, epochs=epochs, shuffle=False,
        verbose=0, callbacks=callbacks,
    )  # fmt: skip


@pytest.mark.long
def test_replicas_of_a_strategy_are_saved_and_restored(tmp_path):
    strategy = keras_reference.mirrored()
    held = {}

    def run(at, callbacks):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((2,), dtype="int64"),
                    sok.DynamicEmbedding(4, seed=1, name="items"),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("adam", "mse")

        def begin(epoch, _):
            held[epoch] = model.predict(held_state.KEYS, verbose=0)
            if epoch == at:
                raise Interruption

        begins = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
        return model, fit(model, [*callbacks, begins], epochs=4)

    with pytest.raises(Interruption):
        run(2, [BackupAndRestore(tmp_path / "backup", save_freq=1, incremental=True)])
    before = held[2]
    best = sok.callbacks.EarlyStopping("loss", restore_best_weights=True)
    file = sok.callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True)
    model, history = run(None, [BackupAndRestore(tmp_path / "backup"), best, file])
    assert history.epoch == [2, 3]
    np.testing.assert_array_equal(held[2], before)
    predicted = model.predict(held_state.KEYS, verbose=0)
    sok.save_model(model, tmp_path / "last.keras")
    for name in ("best", "last"):
        loaded = keras.saving.load_model(tmp_path / f"{name}.keras")
        # A process without replicas sums batches in another order.
        np.testing.assert_allclose(
            loaded.predict(held_state.KEYS, verbose=0), predicted, rtol=0, atol=1e-6
        )


def fresh():
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    return held_state.every_kind()


def eager():
    """A model for tests of what is saved and when, which need no graph."""
    model = fresh()
    model.run_eagerly = True
    return model


def test_an_interrupted_fit_goes_on_with_the_next_epoch(tmp_path):
    whole = fresh()
    fit(whole, [])
    with pytest.raises(Interruption):
        fit(fresh(), [BackupAndRestore(tmp_path / "backup"), InterruptAt(3)])
    model = fresh()
    history = fit(model, [BackupAndRestore(tmp_path / "backup")])
    assert history.epoch == [3, 4]
    expected = held_state.held_by(whole)
    for name, value in held_state.held_by(model).items():
        if value.dtype == np.float32 and held_state.is_read(value):
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)
    assert not (tmp_path / "backup").exists()
    assert fit(model, [BackupAndRestore(tmp_path / "backup")], epochs=1).epoch == [0]


KILLED_AT_THE_BEGINNING_OF_AN_EPOCH = """
    import os, signal, sys, time
    import keras
    import numpy as np
    import sok_embed as sok
    from sok_embed.checkpoint.transfer.writing import RowsCapture

    write = RowsCapture.write

    def slow(capture):
        time.sleep(1.0)
        return write(capture)

    RowsCapture.write = slow

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            print("epoch", epoch, flush=True)
            if epoch == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)

    layer = sok.DynamicEmbedding(2, seed=1, name="rows")
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    backup = sok.callbacks.BackupAndRestore(sys.argv[1])
    model.fit(
        np.arange(6).reshape(-1, 1), np.ones(6), batch_size=2, epochs=3, verbose=0,
        callbacks=[backup, Kill()],
    )
"""


def test_a_kill_at_the_beginning_of_an_epoch_loses_nothing_of_the_one_before(tmp_path):
    begun = []
    for at in (1, 2, 9):
        command = forked.program(KILLED_AT_THE_BEGINNING_OF_AN_EPOCH, tmp_path / "backup", at)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == (0 if at == 9 else -signal.SIGKILL), done.stderr
        begun.append([int(line.split()[1]) for line in done.stdout.splitlines()])
    assert begun == [[0, 1], [1, 2], [2]]


@pytest.mark.long
def test_a_second_interruption_is_one_more(tmp_path):
    callbacks = [BackupAndRestore(tmp_path, max_to_keep=2)]
    for at in (2, 4):
        with pytest.raises(Interruption):
            fit(fresh(), [BackupAndRestore(tmp_path, max_to_keep=2), InterruptAt(at)])
    wait_for_writers()
    assert sorted(os.listdir(tmp_path)) == ["step-000000012", "step-000000016"]
    assert fit(fresh(), callbacks).epoch == [4]


def test_a_checkpoint_within_an_epoch_begins_it_again_and_says_so(tmp_path):
    model = eager()
    with pytest.raises(Interruption):
        fit(model, [BackupAndRestore(tmp_path, save_freq=3), InterruptAt(1, 3)])
    assert sorted(os.listdir(tmp_path)) == [f"step-{step:09d}" for step in (3, 4, 7)]
    with pytest.warns(UserWarning, match=r"after 3 batches of epoch 2.*checkpoint\.fit"):
        history = fit(eager(), [BackupAndRestore(tmp_path, save_freq=3)], epochs=3)
    assert history.epoch == [1, 2]


def test_checkpoints_stay_on_request(tmp_path):
    fit(eager(), [BackupAndRestore(tmp_path, delete_checkpoint=False)], epochs=2)
    model = eager()
    assert fit(model, [BackupAndRestore(tmp_path)], epochs=2).epoch == []
    assert int(model.optimizer.iterations) == 8
    assert not Path(tmp_path).exists()


def test_accumulated_gradients_are_not_lost(tmp_path):
    def model():
        layer = sok.DynamicEmbedding(2, seed=1, name="rows")
        model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
        return model

    # An epoch has three batches: the first ends in the midst of an accumulation.
    with pytest.raises(Interruption):
        model().fit(
            np.arange(6).reshape(-1, 1), np.ones(6), batch_size=2, epochs=4, verbose=0,
            callbacks=[BackupAndRestore(tmp_path), InterruptAt(3)],
        )  # fmt: skip
    assert os.listdir(tmp_path) == ["step-000000003"]  # 6 calls


def test_a_model_alone_takes_up_what_a_fit_has_backed_up(tmp_path):
    model = eager()
    fit(model, [BackupAndRestore(tmp_path, delete_checkpoint=False)], epochs=1)
    other = eager()
    assert sok.checkpoint.Checkpoint(other).restore(tmp_path / "step-000000004") == 4
    held_state.assert_same(held_state.held_by(other), held_state.held_by(model))


def test_the_end_of_an_epoch_that_was_saved_already_is_no_warning(tmp_path, recwarn):
    with pytest.raises(Interruption):
        fit(eager(), [BackupAndRestore(tmp_path, save_freq=4), InterruptAt(1)])
    assert os.listdir(tmp_path) == ["step-000000004"]
    assert not [each for each in recwarn if "another step" in str(each.message)]
    assert fit(eager(), [BackupAndRestore(tmp_path)], epochs=2).epoch == [1]


@pytest.mark.parametrize("save_freq", [0, -1, True, "batch", 1.5])
def test_other_frequencies_are_refused(tmp_path, save_freq):
    with pytest.raises(ValueError, match="save_freq"):
        BackupAndRestore(tmp_path, save_freq=save_freq)
