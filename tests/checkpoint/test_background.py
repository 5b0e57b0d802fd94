"""Saves that are written while training goes on have the state of the step at which they began."""

import gc
import subprocess
import threading
import weakref

import forked
import held_state
import keras
import numpy as np
import pytest
import tensorflow as tf
from limits import HANG_S

import sok_embed as sok
from sok_embed import communicators
from sok_embed.binding import _core
from sok_embed.checkpoint import Checkpoint, CheckpointManager, set_copy_budget
from sok_embed.checkpoint.transfer import saves, writing
from sok_embed.communicators.agreement import Agreement


@pytest.fixture
def held_back(monkeypatch):
    """Has no save be written before the event is set."""
    go_on = threading.Event()
    write = writing.RowsCapture.write

    def wait_and_write(self):
        assert go_on.wait(HANG_S)
        return write(self)

    monkeypatch.setattr(writing.RowsCapture, "write", wait_and_write)
    yield go_on
    go_on.set()


@pytest.mark.cover(1)
@pytest.mark.parametrize("incremental", [False, True])
def test_what_is_saved_is_what_was_there_at_the_call(tmp_path, held_back, incremental):
    model = held_state.every_kind(tmp_path / "rows")
    held_state.train(model)
    manager = CheckpointManager(Checkpoint(model), tmp_path / "run", save_on_background=True)
    if incremental:
        held_back.set()
        manager.save(incremental=True)
        manager.wait()
        held_back.clear()
        held_state.train(model)
    expected = held_state.held_by(model)
    folder = manager.save(incremental=incremental)
    assert not manager.poll()
    held_state.train(model, 2)
    for table in held_state.tables_of(model).values():
        if isinstance(table, sok.Table):
            table.remove(np.arange(0, 64, 3))
    before = [] if not incremental else ["step-000000004"]
    assert [path.rsplit("/")[-1] for path in manager.checkpoints] == before
    held_back.set()
    manager.wait()
    assert manager.poll()
    assert manager.latest_checkpoint == folder
    other = held_state.every_kind(tmp_path / "others")
    Checkpoint(other).restore(folder)
    held_state.assert_same(held_state.held_by(other), expected)
    assert {path.suffix for path in (tmp_path / "run").rglob("*.*")} == {
        ".sok", ".json", ".index", ".data-00000-of-00001"
    }  # fmt: skip


def test_an_error_comes_out_of_the_next_call_and_the_next_save_may_follow(tmp_path, monkeypatch):
    table = sok.DynamicEmbedding(4, name="rows").table
    table.assign([1, 2], np.ones([2, 4], np.float32))
    manager = CheckpointManager(Checkpoint(table=table), tmp_path, save_on_background=True)
    first = manager.save(1)

    def fail(*_):
        raise OSError(28, "No space left on device")

    for call in (manager.wait, manager.poll, lambda: manager.save(3)):
        manager.wait()
        with monkeypatch.context() as patch:
            patch.setattr(writing.RowsWriter, "finish", fail)
            manager.save(2)
            manager._pending._thread.join()
        with pytest.raises(OSError, match="No space left"):
            call()
        assert manager.latest_checkpoint == first
    table.assign([3], np.ones([1, 4], np.float32))
    assert manager.save(4).endswith("step-000000004")
    manager.wait()
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-000000001", "step-000000004"
    ]  # fmt: skip


def test_one_save_of_a_table_goes_on_at_a_time(tmp_path, held_back):
    table = sok.DynamicEmbedding(4, name="rows").table
    table.assign([1, 2], np.ones([2, 4], np.float32))
    manager = CheckpointManager(Checkpoint(table=table), tmp_path / "run", save_on_background=True)
    folder = manager.save(1)
    with pytest.raises(RuntimeError, match="no save of the table to be under way"):
        Checkpoint(table=table).save(tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())
    held_back.set()
    manager.wait()
    Checkpoint(table=table).save(tmp_path / "other")
    assert manager.checkpoints == [folder]


@pytest.mark.cover(1)
@pytest.mark.parametrize("by", ["BackupAndRestore", "checkpoint.fit"])
def test_a_fit_after_one_that_was_interrupted_waits_for_what_that_one_writes(
    tmp_path, monkeypatch, by
):
    write = writing.RowsCapture.write
    late = threading.Event()

    def write_late(self):
        late.wait(1)
        return write(self)

    model = held_state.every_kind()
    epochs = []

    def fit(interrupted_at=None):
        def begin(epoch, _):
            if epoch == interrupted_at:
                raise KeyboardInterrupt
            epochs.append(epoch)

        callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=begin)]
        if by == "checkpoint.fit":
            dataset = tf.data.Dataset.from_tensor_slices((held_state.KEYS, held_state.TARGETS))
            sok.checkpoint.fit(
                model, dataset.batch(12), directory=tmp_path, epochs=4, verbose=0,
                callbacks=callbacks,
            )  # fmt: skip
        else:
            model.fit(
                held_state.KEYS, held_state.TARGETS, batch_size=12, epochs=4, verbose=0,
                callbacks=[sok.callbacks.BackupAndRestore(tmp_path), *callbacks],
            )  # fmt: skip

    with monkeypatch.context() as patch:
        patch.setattr(writing.RowsCapture, "write", write_late)
        with pytest.raises(KeyboardInterrupt):
            fit(interrupted_at=2)
        fit()
        late.set()
    assert epochs == [0, 1, 2, 3]


def test_managers_of_one_table_wait_for_each_other(tmp_path, monkeypatch):
    table = sok.DynamicEmbedding(4, name="rows").table
    table.assign([1, 2], np.ones([2, 4], np.float32))
    write = writing.RowsCapture.write

    def write_late(self):
        threading.Event().wait(0.2)
        return write(self)

    monkeypatch.setattr(writing.RowsCapture, "write", write_late)
    managers = [
        CheckpointManager(Checkpoint(table=table), tmp_path / name, save_on_background=True)
        for name in ("hourly", "daily")
    ]
    states = []
    for step in range(3):
        for manager in managers:
            table.assign([step], np.full([1, 4], step, np.float32))
            manager.save(step, incremental=True)
            states.append(held_state.contents_of(table))
    for i, manager in enumerate(managers):
        manager.wait()
        other = sok.DynamicEmbedding(4, name="rows").table
        for step, folder in enumerate(manager.checkpoints):
            Checkpoint(table=other).restore(folder)
            held_state.assert_same(held_state.contents_of(other), states[2 * step + i])


@pytest.mark.parametrize(
    ("place", "on_background"),
    [
        ("sok_embed.checkpoint.state.dense.DenseState.write", False),
        ("sok_embed.checkpoint.state.dense.DenseState.write", True),
        ("sok_embed.checkpoint.transfer.writing.RowsCapture.write", False),
        ("threading.Thread.start", True),
    ],
)
def test_a_save_that_is_interrupted_is_in_nobodys_way(tmp_path, monkeypatch, place, on_background):
    table = sok.DynamicEmbedding(4, name="rows").table
    table.assign([1, 2], np.ones([2, 4], np.float32))
    manager = CheckpointManager(Checkpoint(table=table), tmp_path, save_on_background=on_background)
    manager.save(0, incremental=True)
    manager.wait()
    table.assign([3], np.ones([1, 4], np.float32))

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, interrupt)
        # Its traceback, which a notebook keeps, has the save.
        with pytest.raises(KeyboardInterrupt) as kept:
            manager.save(1, incremental=True)
    folder = manager.save(2, incremental=True)
    manager.wait()
    assert kept.tb is not None and manager.latest_checkpoint == folder
    other = sok.DynamicEmbedding(4, name="rows").table
    Checkpoint(table=other).restore(folder)
    held_state.assert_same(held_state.contents_of(other), held_state.contents_of(table))


def test_a_save_that_is_written_and_not_ended_is_in_nobodys_way(tmp_path):
    """Several workers end it together, at the next step at which all do; others may save before."""
    table = sok.DynamicEmbedding(4, name="rows").table
    table.assign([1, 2], np.ones([2, 4], np.float32))
    checkpoint = Checkpoint(table=table)
    options = saves.SaveOptions(1, 1, notes_changes=True, goes_on=True)
    (tmp_path / "first").mkdir()
    agreement = Agreement(communicators.current())
    ready = checkpoint._ready(agreement, lambda found: (1, str(tmp_path / "first")))
    pending = saves.Save(agreement, ready, options)
    pending.write()
    expected = held_state.contents_of(table)
    table.assign([2, 3], np.zeros([2, 4], np.float32))
    checkpoint.save(tmp_path / "second")
    pending.finish()
    other = sok.DynamicEmbedding(4, name="rows").table
    Checkpoint(table=other).restore(tmp_path / "first")
    held_state.assert_same(held_state.contents_of(other), expected)
    Checkpoint(table=other).restore(tmp_path / "second")
    held_state.assert_same(held_state.contents_of(other), held_state.contents_of(table))


def test_a_save_that_is_whole_keeps_nothing_in_memory(tmp_path):
    variable = tf.Variable(1.0)
    checkpoint = Checkpoint(variable=variable)
    manager = CheckpointManager(checkpoint, tmp_path, save_on_background=True)
    manager.save()
    saves.wait_for_writers()  # nobody waits for the save itself
    assert len(manager.checkpoints) == 1
    kept = weakref.ref(manager)
    del manager
    gc.collect()
    assert kept() is None


def test_copies_of_rows_take_no_more_than_the_budget(tmp_path, held_back):
    table = sok.DynamicEmbedding(64, name="rows").table
    keys = np.arange(40_000)  # 10 MB
    table.assign(keys, np.zeros([len(keys), 64], np.float32))
    manager = CheckpointManager(Checkpoint(table=table), tmp_path, save_on_background=True)
    set_copy_budget(2)
    try:
        folder = manager.save(1)
        trainer = threading.Thread(
            target=lambda: [
                table.assign(part, np.ones([len(part), 64], np.float32))
                for part in np.split(keys, 40)
            ]
        )
        trainer.start()
        trainer.join(1)
        assert trainer.is_alive()  # it waits for copies to be written
        held_back.set()
        trainer.join()
        manager.wait()
        figures = _core.capture_figures()
        # A shard keeps copies in pieces of 256 KiB, and one call changes 1,000 rows.
        assert 2 << 20 <= figures["peak"] < (2 << 20) + 20 * (256 << 10)
        assert figures["used"] == 0 and figures["waited_seconds"] > 0.5
    finally:
        set_copy_budget(256)
    other = sok.DynamicEmbedding(64, name="rows").table
    Checkpoint(table=other).restore(folder)
    assert not held_state.contents_of(other)["embeddings"].any()
    with pytest.raises(ValueError, match="mebibytes"):
        set_copy_budget(0)


def test_a_process_that_ends_after_a_save_leaves_it_whole(tmp_path):
    program = """
        import numpy as np
        import sok_embed as sok

        table = sok.DynamicEmbedding(64, name="rows").table
        table.assign(np.arange(50_000), np.ones([50_000, 64], np.float32))
        checkpoint = sok.checkpoint.Checkpoint(table=table)
        sok.checkpoint.CheckpointManager(checkpoint, "run", save_on_background=True).save(7)
    """
    subprocess.run(forked.program(program), cwd=tmp_path, check=True)
    other = sok.DynamicEmbedding(64, name="rows").table
    assert Checkpoint(table=other).restore(tmp_path / "run/step-000000007") == 7
    assert len(other) == 50_000
