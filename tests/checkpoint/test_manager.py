"""A manager keeps the last whole checkpoints, whatever happens to the process or the disk."""

import os
import random
import subprocess
from pathlib import Path

import forked
import pytest
import tensorflow as tf
from tiers import long

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager

KILLED = Path(__file__).with_name("killed_saves.py")


def counting(folder, **arguments):
    """A manager of one variable, and how to save it as of a step."""
    import keras

    optimizer = keras.optimizers.SGD()
    manager = CheckpointManager(Checkpoint(optimizer=optimizer), folder, **arguments)

    def save(step):
        optimizer.iterations.assign(step)
        return manager.save()

    return manager, save, optimizer


def steps_of(manager):
    return [int(os.path.basename(path).removeprefix("step-")) for path in manager.checkpoints]


def test_the_last_checkpoints_stay(tmp_path):
    manager, save, optimizer = counting(tmp_path / "run", max_to_keep=2)
    assert manager.checkpoints == [] and manager.latest_checkpoint is None
    assert manager.restore_or_initialize() is None
    for step in (1, 5, 12000):
        assert save(step) == manager.latest_checkpoint == str(tmp_path / f"run/step-{step:09d}")
    assert steps_of(manager) == [5, 12000]
    optimizer.iterations.assign(0)
    assert manager.restore_or_initialize() == str(tmp_path / "run/step-000012000")
    assert int(optimizer.iterations) == 12000


def test_the_first_of_so_many_steps_stays_for_good(tmp_path):
    manager, save, _ = counting(tmp_path, max_to_keep=1, keep_every=10)
    for step in (0, 4, 8, 12, 16, 20, 24):
        save(step)
    assert steps_of(manager) == [0, 12, 20, 24]


def test_without_a_limit_all_stay(tmp_path):
    manager, save, _ = counting(tmp_path, max_to_keep=None)
    for step in range(6):
        save(step)
    assert steps_of(manager) == list(range(6))


def test_a_step_that_is_saved_twice_is_that_of_the_second_time(tmp_path):
    variable = tf.Variable(1.0)
    manager = CheckpointManager(Checkpoint(variable=variable), tmp_path)
    manager.save()
    variable.assign(2.0)
    with pytest.warns(UserWarning, match=r"a step other than 0, the step of the save before"):
        manager.save()
    variable.assign(3.0)
    manager.restore_or_initialize()
    assert float(variable) == 2 and steps_of(manager) == [0]


def test_steps_that_no_optimizer_counts_are_given(tmp_path, recwarn):
    variable = tf.Variable(1.0)
    checkpoint = Checkpoint(variable=variable)
    manager = CheckpointManager(checkpoint, tmp_path, max_to_keep=2)
    for step in (5, 7, 9, 9):
        variable.assign(step)
        assert manager.save(step=step) == str(tmp_path / f"step-{step:09d}")
    assert steps_of(manager) == [7, 9] and not recwarn.list
    assert checkpoint.restore(tmp_path / "step-000000007") == 7 and float(variable) == 7
    for step in (-1, 1.5, True):
        with pytest.raises(ValueError, match="step"):
            manager.save(step=step)


def test_a_folder_without_a_manifest_is_none_and_goes_with_the_next_save(tmp_path):
    manager, save, optimizer = counting(tmp_path)
    save(3)
    os.remove(Path(save(7), "manifest.json"))
    (tmp_path / "notes").mkdir()
    assert steps_of(manager) == [3]
    manager.restore_or_initialize()
    assert int(optimizer.iterations) == 3
    save(4)
    assert sorted(os.listdir(tmp_path)) == ["notes", "step-000000003", "step-000000004"]


def test_a_folder_of_somebody_else_stays(tmp_path):
    _, save, _ = counting(tmp_path)
    for name, file in (
        ("step-000000001", "results.csv"),
        ("step-000000002", "manifest-0123456789abcdef.tmp"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dense-0123456789abcdef.index").write_text("")
        (tmp_path / name / file).write_text("")
    save(3)
    assert sorted(os.listdir(tmp_path)) == ["step-000000001", "step-000000003"]
    assert (tmp_path / "step-000000001/results.csv").exists()


def test_an_old_checkpoint_loses_its_manifest_first(tmp_path, monkeypatch):
    manager, save, _ = counting(tmp_path, max_to_keep=1)
    save(1)
    monkeypatch.setattr("shutil.rmtree", lambda path: pytest.fail(str(os.listdir(path))))
    with pytest.raises(pytest.fail.Exception) as caught:
        save(2)
    assert "manifest" not in str(caught.value) and "dense" in str(caught.value)
    assert steps_of(manager) == [2]


def test_a_link_is_not_followed_where_checkpoints_are_removed(tmp_path):
    manager, save, _ = counting(tmp_path / "run", max_to_keep=1)
    save(5)
    other = tmp_path / "other"
    other.mkdir()
    (other / "manifest.json").write_text("of somebody else")
    (tmp_path / "run/step-000000001").symlink_to(other)
    save(6)
    assert (other / "manifest.json").exists()


def test_the_last_checkpoint_is_the_one_that_was_saved_last(tmp_path):
    manager, save, optimizer = counting(tmp_path, max_to_keep=3)
    for step in (12, 22, 32):
        save(step)
    manager._checkpoint.restore(tmp_path / "step-000000012")
    for step, kept in ((15, [22, 32, 15]), (18, [32, 15, 18]), (21, [15, 18, 21])):
        assert save(step) == manager.latest_checkpoint
        assert steps_of(manager) == kept
    assert manager.restore_or_initialize() == str(tmp_path / "step-000000021")
    assert int(optimizer.iterations) == 21


def test_a_new_run_in_an_old_folder_goes_on_with_its_own_checkpoints(tmp_path):
    counting(tmp_path)[1](100)
    manager, save, optimizer = counting(tmp_path, max_to_keep=1)
    save(5)
    assert steps_of(manager) == [5]
    counting(tmp_path)[1](7)
    optimizer.iterations.assign(0)
    manager.restore_or_initialize()
    assert int(optimizer.iterations) == 7


@pytest.mark.parametrize("step", [2, 3])
def test_a_damaged_manifest_stands_behind_those_of_smaller_steps(tmp_path, step):
    manager, save, optimizer = counting(tmp_path)
    for each in (1, 2, 3):
        save(each)
    (tmp_path / f"step-{step:09d}/manifest.json").write_text("")
    assert steps_of(manager) == [1, 2, 3]
    if step == 2:
        manager.restore_or_initialize()
    else:
        with pytest.raises(sok.kv.CorruptionError, match="Nothing was restored"):
            manager.restore_or_initialize()
    assert int(optimizer.iterations) == 3


def test_old_checkpoints_that_cannot_be_removed_are_a_warning(tmp_path, monkeypatch):
    manager, save, optimizer = counting(tmp_path, max_to_keep=1)
    save(1)

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        with pytest.warns(UserWarning, match="remove old checkpoints.*Permission denied"):
            assert save(2) == manager.latest_checkpoint
        with pytest.raises(PermissionError):
            manager.remove_all()


@pytest.mark.parametrize("name", ["max_to_keep", "keep_every"])
def test_numbers_of_checkpoints_are_positive(tmp_path, name):
    with pytest.raises(ValueError, match=name):
        counting(tmp_path, **{name: 0})


@pytest.mark.parametrize("workers", [1, long(3)])
def test_kills_leave_the_last_whole_checkpoint(tmp_path, workers):
    """With SOK_CHECKPOINT_KILLS=150 that many times."""
    kills = os.environ.get("SOK_CHECKPOINT_KILLS", "6")
    seed = str(random.randrange(2**31))
    command = forked.command(KILLED, tmp_path / "run", kills, workers, seed)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr[-4000:]}"
    assert f"{kills} kills" in ended.stdout


FULL_DISK = """
    import resource, signal, sys
    import keras, numpy as np, tensorflow as tf
    import sok_embed as sok

    optimizer = keras.optimizers.SGD()
    table = sok.DynamicEmbedding(8, name="rows", seed=1).table
    big = tf.Variable(tf.zeros([int(sys.argv[1])]))
    checkpoint = sok.checkpoint.Checkpoint(table=table, optimizer=optimizer, big=big)
    manager = sok.checkpoint.CheckpointManager(checkpoint, "run")
    manager.save()
    table.assign(np.arange(int(sys.argv[2])), np.ones([int(sys.argv[2]), 8], np.float32))
    big.assign(tf.random.normal(big.shape))
    optimizer.iterations.assign(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        manager.save()
    except OSError as error:
        print("refused:", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    print("latest:", manager.latest_checkpoint)
    table.remove(np.arange(int(sys.argv[2])))
    manager.restore_or_initialize()
    print("step:", int(optimizer.iterations))
    manager.save()
    optimizer.iterations.assign(2)
    print("then:", manager.save())
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    ("floats", "rows"), [(10, 50_000), (50_000, 10)], ids=["rows", "dense_weights"]
)
def test_a_disk_that_takes_no_more_leaves_the_last_checkpoint(tmp_path, floats, rows):
    command = forked.program(FULL_DISK, floats, rows)
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    said = dict(line.split(": ", 1) for line in ended.stdout.splitlines())
    assert "File too large" in said["refused"] or "Expected to write" in said["refused"]
    assert said["latest"].endswith("step-000000000") and said["step"] == "0"
    assert said["then"].endswith("step-000000002")
    assert sorted(os.listdir(tmp_path / "run")) == ["step-000000000", "step-000000002"]
