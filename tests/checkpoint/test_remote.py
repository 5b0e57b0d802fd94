"""Checkpoints in an object store are as good as those of a folder."""

import errno
import fcntl
import os
import re
import subprocess

import forked
import held_state
import keras
import numpy as np
import pytest
import tensorflow as tf
from one_table import files_below, one_table, restored, steps_of

import sok_embed as sok
from sok_embed.callbacks import BackupAndRestore
from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.checkpoint.files import manifest
from sok_embed.checkpoint.transfer.saves import wait_for_writers
from sok_embed.files.scratch import locked_folder, remove_leftovers

pytestmark = pytest.mark.usefixtures("scratch")


@pytest.mark.cover(1)
def test_everything_comes_back_bit_for_bit(url, tmp_path):
    model = held_state.every_kind(tmp_path / "rows")
    held_state.train(model, 2)
    assert Checkpoint(model).save(f"{url}/final/") == f"{url}/final"
    expected = held_state.held_by(model)
    keras.utils.clear_session(free_memory=False)
    other = held_state.every_kind(tmp_path / "others")
    held_state.train(other)
    assert Checkpoint(other).restore(f"{url}/final") == 8
    held_state.assert_same(held_state.held_by(other), expected)


@pytest.mark.cover(1)
def test_a_store_holds_the_files_that_a_folder_holds(url, tmp_path):
    model = held_state.every_kind()
    held_state.train(model)
    for place in (url, tmp_path / "folder"):
        for _ in range(2):  # the second takes the place of the first
            Checkpoint(model).save(place)
    of_folder = [path.name for path in (tmp_path / "folder").iterdir()]
    without_number = [
        sorted(re.sub("[0-9a-f]{16}", "*", name) for name in names)
        for names in (files_below(url), of_folder)
    ]
    assert without_number[0] == without_number[1] and len(of_folder) == 4
    read = manifest.read(url)
    assert {record.name for record in read.files + read.rows} < set(files_below(url))


@pytest.mark.cover(1)
def test_checkpoints_are_kept_and_go_as_in_a_folder(url, tmp_path):
    kept = {}
    for place in (url, str(tmp_path / "run")):
        table, manager = one_table(place, max_to_keep=2, keep_every=10)
        assert manager.restore_or_initialize() is None and manager.latest_checkpoint is None
        kept[place] = []
        for step in (0, 4, 12, 13, 20, 15):
            table.assign([step], np.full([1, 4], step, np.float32))
            assert manager.save(step) == manager.latest_checkpoint == f"{place}/step-{step:09d}"
            kept[place].append(steps_of(manager))
        table.assign([70], np.ones([1, 4], np.float32))
        assert manager.restore_or_initialize() == f"{place}/step-000000015"
        assert table.size() == 50
        manager.remove_all()
        assert manager.checkpoints == []
    assert kept[url] == kept[str(tmp_path / "run")] and kept[url][-1] == [0, 12, 20, 15]
    assert files_below(url) == []


@pytest.mark.cover(1)
def test_names_that_begin_alike_are_not_taken_for_each_other(url):
    _, manager = one_table(f"{url}/a", max_to_keep=1)
    other = CheckpointManager(Checkpoint(v=tf.Variable(1.0)), f"{url}/ab")
    other.save(1)
    for step in (1_000_000_000, 100_000_000):  # step-1000000000 begins as step-100000000
        manager.save(step)
    manager.save(7)
    assert steps_of(manager) == [7]
    manager.remove_all()
    assert steps_of(other) == [1]


@pytest.mark.cover("values")
@pytest.mark.parametrize(
    ("on_background", "url"), [(False, "memory"), (True, "s3")], indirect=["url"]
)
def test_every_checkpoint_of_a_chain_has_the_state_of_its_step(url, on_background):
    chance = np.random.default_rng(3)
    table, manager = one_table(
        url, max_to_keep=None, max_deltas=2, save_on_background=on_background
    )
    states = []
    for step in range(6):
        manager.save(step, incremental=True)
        states.append(held_state.contents_of(table))
        keys = chance.integers(0, 80, 10)
        table.assign(np.unique(keys), chance.normal(size=[len(np.unique(keys)), 4]))
        table.remove(chance.integers(0, 80, 5))
    manager.wait()
    parents = [manifest.read(folder).parent for folder in manager.checkpoints]
    assert [parent and int(parent.folder[-9:]) for parent in parents] == [None, 0, 1, None, 3, 4]
    for step in range(6):
        held_state.assert_same(restored(f"{url}/step-{step:09d}"), states[step])
    manager._max_to_keep = 1
    manager.save(6)
    manager.wait()
    assert steps_of(manager) == [6]


@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_fit_goes_on_from_a_store(url, tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def fit(*more):
        keras.utils.clear_session(free_memory=False)
        model = held_state.every_kind()
        callbacks = [BackupAndRestore(url), *more]
        return model.fit(
            held_state.KEYS, held_state.TARGETS, batch_size=12, epochs=4, verbose=0,
            callbacks=callbacks,
        )  # fmt: skip

    with pytest.raises(InterruptedError):
        fit(Interrupt())
    assert fit().epoch == [2, 3]
    assert files_below(url) == []


class Interruption(keras.callbacks.Callback):
    """Ends a fit after a step, and notes which steps it has seen."""

    def __init__(self, step=None):
        super().__init__()
        self.step = step
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(int(self.model.optimizer.iterations))
        if self.seen[-1] == self.step:
            raise InterruptedError


@pytest.mark.long
@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_checkpoint_fit_goes_on_within_an_epoch_from_a_store(url, tmp_path):
    def fit(directory, *callbacks):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((2,), dtype="int64"), sok.DynamicEmbedding(3, seed=1, name="rows"),
             keras.layers.Flatten(), keras.layers.Dropout(0.3, seed=2), keras.layers.Dense(1)]
        )  # fmt: skip
        model.compile("adam", "mse", metrics=["mae"])
        dataset = tf.data.Dataset.from_tensor_slices((held_state.KEYS, held_state.TARGETS))
        history = sok.checkpoint.fit(
            model, dataset.shuffle(48, seed=3).batch(12), directory=directory, epochs=3,
            save_freq=1, incremental=True, callbacks=callbacks, verbose=0,
        )  # fmt: skip
        held = held_state.contents_of(model.get_layer("rows").table)
        del held["update_times"]  # seconds
        for each in (*model.variables, *model.optimizer.variables):
            if "anchor" not in each.path:
                held[each.path] = np.asarray(each)
        return held, history.history

    expected = fit(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        fit(url, Interruption(6))  # the second of four batches of the second epoch
    wait_for_writers()
    own = [name for name in files_below(url) if "/data-00001-of-00001-" in name]
    saved = {os.path.dirname(name) for name in own}
    assert "step-000000005" in saved and len(own) == 2 * len(saved)
    watch = Interruption()
    held, history = fit(url, watch)
    assert watch.seen == list(range(6, 13))
    held_state.assert_same(held, expected[0])
    assert history == expected[1]


ENDS_AFTER_SAVES = """
    import sys, time
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    import sok_embed as sok
    from sok_embed.files import object_store

    put = object_store.StoreFolder.put

    def late(place, *arguments):
        if "fail" in place.path:
            raise OSError("no such luck")
        time.sleep(1)  # the main thread has ended by now
        ThreadPoolExecutor(1).submit(put, place, *arguments).result()

    object_store.StoreFolder.put = late
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    table.assign(np.arange(50), np.ones([50, 4], np.float32))
    checkpoint = sok.checkpoint.Checkpoint(table=table)
    for name in ("fail", "well"):
        manager = sok.checkpoint.CheckpointManager(
            checkpoint, f"{sys.argv[1]}/{name}", save_on_background=True
        )
        manager.save(7)
"""


def test_a_process_that_ends_after_saves_leaves_them_whole_or_says_so(bucket):
    url = f"s3://{bucket}"
    command = forked.program(ENDS_AFTER_SAVES, url)
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(restored(f"{url}/well/step-000000007")["keys"]) == 50
    told = re.findall("Expected a whole checkpoint in '(.*)' when.* Received: (.*)", ended.stderr)
    assert told == [(f"{url}/fail/step-000000007", "no such luck. Call wait after the last save.")]


def test_a_killed_process_leaves_a_scratch_folder_for_the_next_one(scratch):
    left = scratch / ".sok-embed-checkpoint.abc.saving"
    left.mkdir()
    (left / "rows").write_bytes(b"part")
    Checkpoint(v=tf.Variable(1.0)).save("memory://x")
    assert not left.exists()


def test_a_folder_that_another_process_takes_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    opened, taken = os.open, []

    def open_late(path, *arguments):
        if not taken:
            taken.append(path)
            os.rmdir(path)
        return opened(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_late)
        folder, lock = locked_folder(str(tmp_path), "x")
    lock.close()
    assert os.path.isdir(folder) and taken != [folder]


def test_a_file_system_without_locks_of_folders_keeps_what_is_in_work(tmp_path, monkeypatch):
    def refused(descriptor, operation):
        raise OSError(errno.EBADF, "Bad file descriptor")  # as NFS says

    monkeypatch.setattr(fcntl, "flock", refused)
    folder, lock = locked_folder(str(tmp_path), "x")
    remove_leftovers(str(tmp_path), "x")
    assert os.path.isdir(folder)
    lock.close()


def test_a_forked_child_leaves_the_scratch_folder_to_its_parent(scratch):
    program = """
        import os, sys
        from sok_embed.files.object_store import _Scratch
        scratch = _Scratch(None)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        print(os.path.isdir(scratch.folder))
    """
    command = forked.program(program)
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"
