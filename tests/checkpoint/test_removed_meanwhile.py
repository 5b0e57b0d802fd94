"""Checkpoints that another process replaces and removes while they are read."""

import contextlib
import itertools
import os
import resource
import shutil
import subprocess

import forked
import numpy as np
import pytest
import saving_on
import tensorflow as tf

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager, compact
from sok_embed.checkpoint.files import holding, manifest
from sok_embed.checkpoint.tools import survey
from sok_embed.checkpoint.tools.conversion.convert import convert
from sok_embed.checkpoint.tools.difference import difference
from sok_embed.checkpoint.tools.saved import open_saved
from sok_embed.checkpoint.tools.verify import verify
from sok_embed.files import places

COUNT = int(os.environ.get("SOK_CHECKPOINT_RESTORES", "40"))


@contextlib.contextmanager
def saving(folder, kind, stop):
    """Another process saves into a folder meanwhile."""
    command = forked.command(saving_on.__file__, folder, kind, stop)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "saved\n"
            yield
            assert process.poll() is None
        finally:
            stop.touch()
        saves = int(process.stdout.read())
        assert process.wait() == 0
    print(saves, "saves")
    assert saves > 3


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["whole", "changes", "in_place"])
def test_every_restore_of_the_latest_has_one_save(tmp_path, kind):
    """With SOK_CHECKPOINT_RESTORES=1000 so many."""
    table, variable, checkpoint = saving_on.things()
    manager = CheckpointManager(checkpoint, tmp_path / "run")
    numbers = []
    with saving(tmp_path / "run", kind, tmp_path / "stop"):
        for _ in range(COUNT):
            if kind == "in_place":
                checkpoint.restore(tmp_path / "run")
            else:
                assert manager.restore_or_initialize() is not None
            (number,) = np.unique(table.lookup(saving_on.KEYS))
            assert len(table) == len(saving_on.KEYS)
            np.testing.assert_array_equal(variable.numpy(), number)
            numbers.append(number)
    assert numbers == sorted(numbers) and len(set(numbers)) > 1
    assert not list((tmp_path / "run").glob("*.converting-*"))


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["whole", "changes"])
def test_tools_tell_the_whole_of_a_checkpoint_or_that_it_went(tmp_path, kind):
    saved = tmp_path / "run"
    went = whole = 0
    with saving(saved, kind, tmp_path / "stop"):
        for number in range(COUNT):
            (*_, latest) = [each for each in survey.listed(str(saved)) if each["state"] == "whole"]
            assert {each["state"] for each in survey.listed(str(saved))} <= {"whole", "no manifest"}
            folder, target = latest["path"], tmp_path / f"rows-{number}"
            try:
                opened = open_saved(folder)
                assert verify(folder).faults == []
                assert convert(folder, str(target), "npz").rows == len(saving_on.KEYS)
                assert difference(opened, opened).same
                whole += 1
            except (FileNotFoundError, ValueError) as error:
                assert not isinstance(error, sok.kv.CorruptionError)
                assert "Expected a checkpoint" in str(error)
                went += 1
    print(f"{went} went, {whole} did not")
    assert whole and not list(tmp_path.glob("*converting*"))


@pytest.fixture
def two(tmp_path):
    """Two checkpoints, of which the second has the changes since the first."""
    table = sok.DynamicEmbedding(2, name="rows", seed=1).table
    manager = CheckpointManager(Checkpoint(table=table, v=tf.Variable(1.0)), tmp_path / "run")
    for step in range(2):
        table.assign([step, 7], np.full([2, 2], step, np.float32))
        manager.save(step, incremental=True)
    return table, manager


def when_open(monkeypatch, act):
    """Has something happen once the files of the first checkpoint are open."""
    hold = holding._held
    calls = []

    def held(*arguments):
        found = hold(*arguments)
        if not calls:
            calls.append(1)
            act()
        return found

    monkeypatch.setattr(holding, "_held", held)


def test_a_checkpoint_that_goes_when_it_is_open_is_restored(two, monkeypatch):
    table, manager = two
    before = table.lookup([0, 1, 7])
    table.assign([0, 1, 7], np.zeros([3, 2]))
    when_open(monkeypatch, manager.remove_all)
    assert manager.restore_or_initialize().endswith("step-000000001")
    np.testing.assert_array_equal(table.lookup([0, 1, 7]), before)
    assert manager.restore_or_initialize() is None


def test_a_checkpoint_that_goes_before_it_is_open_changes_nothing(two, monkeypatch):
    table, manager = two
    other = CheckpointManager(manager._checkpoint, manager.directory)
    read_chain = holding.manifests.read_chain

    def gone(folder, *arguments):
        chain = read_chain(folder, *arguments)
        if folder.endswith("step-000000001"):
            other._remove(1)
        return chain

    monkeypatch.setattr(holding.hold, "__defaults__", (gone,))
    table.assign([5], np.ones([1, 2]))
    with pytest.raises(FileNotFoundError, match="without manifest"):
        manager._checkpoint.restore(manager.latest_checkpoint)
    assert len(table) == 4
    # The next newer one, or here what is left.
    assert manager.restore_or_initialize().endswith("step-000000000")
    assert len(table) == 2


@pytest.mark.parametrize("call", ["sync", "open", "unlink", "rmdir"])
def test_a_folder_that_another_process_removes_at_the_same_time_is_no_error(
    tmp_path, monkeypatch, call
):
    manager = CheckpointManager(Checkpoint(v=tf.Variable(1.0)), tmp_path / "run")
    manager.save(0)
    manager.save(1)
    (tmp_path / "run" / "step-000000000" / manifest.NAME).unlink()  # it goes first
    module, calls = (places if call == "sync" else os), []
    function = getattr(module, call)

    def late(path, *arguments, **options):
        if "step-000000000" in str(path) or "dir_fd" in options:
            if not calls:
                calls.append(path)
                shutil.rmtree(tmp_path / "run" / "step-000000000")
        return function(path, *arguments, **options)

    monkeypatch.setattr(module, call, late)
    manager.save(2)
    assert calls
    assert sorted(os.listdir(tmp_path / "run")) == ["step-000000001", "step-000000002"]


@pytest.mark.parametrize("replaced", [1, 3])
def test_a_checkpoint_that_is_replaced_while_it_is_listed_is_listed_anew(
    tmp_path, monkeypatch, replaced
):
    table = sok.DynamicEmbedding(2, name="rows", seed=1).table
    manager = CheckpointManager(Checkpoint(table=table), tmp_path / "run", max_to_keep=1)
    manager.save(0)
    read_chain, steps = survey.manifests.read_chain, []

    def replacing(folder, *arguments):
        if len(steps) < replaced:
            steps.append(len(steps) + 1)
            manager.save(steps[-1])
        return read_chain(folder, *arguments)

    monkeypatch.setattr(survey.manifests, "read_chain", replacing)
    found = survey.listed(str(tmp_path / "run"))
    assert [(each["step"], each["state"]) for each in found] == [(replaced, "whole")]


def test_a_checkpoint_whose_parent_is_compacted_meanwhile_is_restored(tmp_path, monkeypatch):
    table = sok.DynamicEmbedding(2, name="rows", seed=1).table
    manager = CheckpointManager(Checkpoint(table=table), tmp_path / "run")
    for step in range(3):
        table.assign([step], np.full([1, 2], step, np.float32))
        manager.save(step, incremental=True)
    read_chain = holding.manifests.read_chain
    compacted = []

    def compacting(folder, *arguments):
        chain = read_chain(folder, *arguments)
        if folder.endswith("step-000000002") and not compacted:
            compacted.append(1)
            assert compact(manager.folder(1)) == 1
        return chain

    monkeypatch.setattr(holding.hold, "__defaults__", (compacting,))
    assert manager.restore_or_initialize().endswith("step-000000002") and compacted
    assert len(table) == 3


def test_more_files_than_may_be_open_are_refused_before_anything_changes(two, monkeypatch):
    table, manager = two
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))  # numbers below others may be free
    few = list(itertools.islice((n for n in itertools.count() if n not in taken), 3))[-1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        manager.restore_or_initialize()  # the limit is raised as far as it may be
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > few
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        monkeypatch.setattr("sok_embed.files.places._allow_open", lambda more: None)
        with pytest.raises(OSError, match="Too many open files"):
            manager.restore_or_initialize()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(table) == 3
    manager.restore_or_initialize()


def test_nothing_stays_open_or_in_the_way(two, tmp_path, monkeypatch):
    _, manager = two
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    before = set(os.listdir("/proc/self/fd"))
    manager.restore_or_initialize()
    opened = open_saved(manager.latest_checkpoint)
    assert len(os.listdir(tmp_path / "temporary")) == 2
    del opened
    verify(manager.latest_checkpoint)
    assert set(os.listdir("/proc/self/fd")) <= before
    assert os.listdir(tmp_path / "temporary") == []
