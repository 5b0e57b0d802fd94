"""Checkpoints of the changes since others: each is as good as one that has everything."""

import json
import random
import shutil
from pathlib import Path

import held_state
import numpy as np
import pytest
import tensorflow as tf
from one_table import one_table, restored

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.checkpoint.files import manifest, rows_file
from sok_embed.checkpoint.tools import survey
from sok_embed.files.place_of import place_of


def kinds(manager):
    """The step of each checkpoint, and that of the one that it builds on."""
    found = {}
    for folder in manager.checkpoints:
        read = manifest.read(folder)
        found[read.step] = int(read.parent.folder[-9:]) if read.parent else None
    return found


def change(model, chance):
    """Changes the tables of a model at random, as training and users do."""
    keys = chance.sample(range(-45, 45), chance.randrange(1, 30))
    tables = [
        table
        for name, table in sorted(held_state.tables_of(model).items())
        if name in ("plain", "counted", "fields.spread", "fields.whole", "stored")
    ]
    what = chance.randrange(4)
    if what == 0:
        held_state.train(model)
    elif what == 1:
        table = chance.choice(tables)
        table.assign(keys, np.full([len(keys), table.dim], chance.random(), np.float32))
    elif what == 2:
        chance.choice(tables).remove(keys)
    else:
        model.optimizer.learning_rate.assign(chance.random() / 100)


@pytest.mark.cover(1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("on_background", [False, True])
def test_every_checkpoint_of_random_changes_has_the_state_of_its_step(
    tmp_path, seed, on_background
):
    chance = random.Random(seed)
    model = held_state.every_kind(tmp_path / "rows" if seed == 0 else None)
    held_state.train(model)
    manager = CheckpointManager(
        Checkpoint(model),
        tmp_path / "run",
        max_to_keep=None,
        max_deltas=4,
        save_on_background=on_background,
    )
    states = {}
    for step in range(9):
        manager.save(step, incremental=chance.random() < 0.8)
        states[step] = held_state.held_by(model)
        for _ in range(chance.randrange(3)):
            change(model, chance)
    manager.wait()
    found = kinds(manager)
    assert list(found) == list(range(9)) and any(found.values())
    other = held_state.every_kind(tmp_path / "others" if seed == 0 else None)
    for step in chance.sample(sorted(found), 5):
        Checkpoint(other).restore(tmp_path / f"run/step-{step:09d}")
        held_state.assert_same(held_state.held_by(other), states[step])


def test_a_checkpoint_of_changes_has_only_the_changed_rows_and_the_keys_that_went(tmp_path):
    table, manager = one_table(tmp_path, rows=1000)
    manager.save(1, incremental=True)
    table.assign(np.arange(990, 1010), np.full([20, 4], 2, np.float32))
    table.remove(np.arange(7))
    folder = manager.save(2, incremental=True)
    read = manifest.read(folder)
    reader = rows_file.RowsReader(folder, read.rows[0], read.attempt, 0, 1)
    (entry,) = reader.tables
    assert (entry["rows"], entry["removed"], entry["size"]) == (20, 7, 1003)
    assert not entry["whole"]
    assert read.rows[0].bytes < 2000
    held_state.assert_same(restored(folder), held_state.contents_of(table))


def test_a_base_follows_after_so_many_deltas_and_so_many_bytes(tmp_path):
    table, manager = one_table(tmp_path, rows=200, max_to_keep=None, max_deltas=2)
    for step in range(6):
        manager.save(step, incremental=True)
        table.assign([step], np.ones([1, 4], np.float32))
    assert kinds(manager) == {0: None, 1: 0, 2: 1, 3: None, 4: 3, 5: 4}

    table, manager = one_table(tmp_path / "all", rows=5000, max_to_keep=None)
    for step in range(4):
        manager.save(step, incremental=True)
        table.assign(np.arange(4000), np.full([4000, 4], step, np.float32))
    assert kinds(manager) == {0: None, 1: 0, 2: 1, 3: None}


def test_what_others_build_on_stays(tmp_path):
    table, manager = one_table(tmp_path, rows=50, max_to_keep=2, max_deltas=3)
    for step in range(6):
        manager.save(step, incremental=True)
        table.assign([step], np.full([1, 4], 9, np.float32))
        if step == 2:
            assert kinds(manager) == {0: None, 1: 0, 2: 1}
    # Step 3 builds on all before it; the next base and its first delta need none of these.
    assert kinds(manager) == {4: None, 5: 4}


def test_going_back_begins_another_chain_and_the_other_one_goes(tmp_path):
    table, manager = one_table(tmp_path, rows=50, max_to_keep=10)
    for step in range(4):
        manager.save(step, incremental=True)
        table.assign([step], np.full([1, 4], 9, np.float32))
    Checkpoint(table=table).restore(tmp_path / "step-000000001")
    expected = held_state.contents_of(table)
    _, other = one_table(tmp_path, max_to_keep=10)
    other._checkpoint = Checkpoint(table=table)
    other.save(1, incremental=True)
    # Steps 2 and 3 were changes since a step 1 that is there no more.
    assert kinds(other) == {0: None, 1: None}
    held_state.assert_same(restored(other.latest_checkpoint), expected)


def test_a_restore_by_hand_is_followed_by_all_rows(tmp_path):
    table, manager = one_table(tmp_path, rows=50)
    manager.save(0, incremental=True)
    table.assign([100], np.ones([1, 4], np.float32))
    manager.save(1, incremental=True)
    Checkpoint(table=table).restore(tmp_path / "step-000000000")
    folder = manager.save(2, incremental=True)
    held_state.assert_same(restored(folder), held_state.contents_of(table))
    assert len(restored(folder)["keys"]) == 50


@pytest.mark.cover("values")
@pytest.mark.parametrize("goes_back_to", [0, 1, 3])
@pytest.mark.parametrize("on_background", [False, True])
def test_going_back_by_hand_leaves_checkpoints_that_can_be_restored(
    tmp_path, goes_back_to, on_background
):
    table, manager = one_table(tmp_path, rows=50, save_on_background=on_background)
    states = {}
    for step in range(4):
        manager.save(step, incremental=True)
        states[step] = held_state.contents_of(table)
        table.assign([step], np.full([1, 4], 9, np.float32))
    manager.wait()
    manager._checkpoint.restore(tmp_path / f"step-{goes_back_to:09d}")
    for step in range(goes_back_to + 1, goes_back_to + 3):
        table.assign([step], np.full([1, 4], step, np.float32))
        manager.save(step, incremental=True)
        states[step] = held_state.contents_of(table)
    manager.wait()
    # What was to be gone back to is there still, where it builds on none that was replaced.
    expected = {0: [0, 1, 2], 1: [0, 1, 2, 3], 3: [0, 1, 2, 3, 4, 5]}[goes_back_to]
    found = kinds(manager)
    assert sorted(found) == expected
    assert found[goes_back_to + 1] is None and found[goes_back_to + 2] == goes_back_to + 1
    for step in found:
        held_state.assert_same(restored(tmp_path / f"step-{step:09d}"), states[step])


def test_a_checkpoint_never_builds_on_one_whose_place_it_takes(tmp_path):
    table, manager = one_table(tmp_path, rows=50)
    for step in (0, 1, 2, 1, 2, 0):
        table.assign([step], np.random.default_rng(step).random([1, 4], np.float32))
        folder = manager.save(step, incremental=True)
        held_state.assert_same(restored(folder), held_state.contents_of(table))


def test_a_table_that_came_later_begins_another_chain(tmp_path):
    def holder(*names):
        module = tf.Module()
        for name in names:
            setattr(module, name, sok.DynamicEmbedding(4, name=name).table)
            getattr(module, name).assign([1, 2], np.ones([2, 4], np.float32))
        return module

    module = holder("first")
    manager = CheckpointManager(Checkpoint(module=module), tmp_path)
    manager.save(0, incremental=True)
    module.second = holder("second").second
    manager.save(1, incremental=True)
    manager.save(2, incremental=True)
    assert kinds(manager) == {0: None, 1: None, 2: 1}
    other = tf.Module()
    other.first = sok.DynamicEmbedding(4, name="first").table
    other.second = sok.DynamicEmbedding(4, name="second").table
    Checkpoint(module=other).restore(manager.latest_checkpoint)
    assert (len(other.first), len(other.second)) == (2, 2)


def test_a_manifest_that_cannot_be_read_for_once_removes_nothing(tmp_path, monkeypatch):
    table, manager = one_table(tmp_path, rows=50, max_to_keep=2)
    for step in range(4):
        manager.save(step, incremental=True)
        table.assign([step], np.full([1, 4], 9, np.float32))
    before = kinds(manager)
    read = manifest.read

    def read_or_fail(folder):
        if place_of(folder).path.endswith("step-000000002") and len(kinds_read) > 0:
            raise OSError(5, "Input/output error")
        return read(folder)

    kinds_read = [1]
    monkeypatch.setattr(manifest, "read", read_or_fail)
    with pytest.warns(UserWarning, match="Input/output error"):
        manager.save(9)
    kinds_read.clear()
    assert kinds(manager) == {**before, 9: None}


@pytest.mark.parametrize("is_gone", [False, True])
def test_prune_takes_none_for_readable_whose_chain_is_broken(tmp_path, is_gone):
    table, manager = one_table(tmp_path, rows=50, max_to_keep=None)
    for step in range(4):
        manager.save(step, incremental=True)
        table.assign([step], np.full([1, 4], 9, np.float32))
    before = restored(tmp_path / "step-000000001")
    if is_gone:
        shutil.rmtree(tmp_path / "step-000000002")
    else:
        (tmp_path / "step-000000002/manifest.json").write_text("{")
    found = survey.pruned(str(tmp_path), keep=1, keep_every=None, dry_run=False)
    # What builds on a manifest that cannot be read stays: somebody may have a copy of that.
    names = {name: [Path(folder).name for folder in found[name]] for name in found}
    assert names["removed"] == (["step-000000003"] if is_gone else [])
    assert names["unreadable"] == ([] if is_gone else ["step-000000002", "step-000000003"])
    held_state.assert_same(restored(tmp_path / "step-000000001"), before)


def two_chains(folder):
    """Checkpoints 0, 1 and 2 build on each other, as do 3 and 4; 5 stands alone."""
    table, manager = one_table(folder, rows=50, max_to_keep=None)
    for step in range(6):
        if step == 3:
            manager._last = None  # has the next one be whole, and be built on
        manager.save(step, incremental=step != 5)
        table.assign([step], np.full([1, 4], 9, np.float32))
    return table, manager


@pytest.mark.parametrize(("step", "gone"), [(0, [3, 4]), (1, []), (2, []), (3, [0, 1, 2]), (4, [])])
def test_prune_keeps_what_a_damaged_checkpoint_may_need(tmp_path, step, gone):
    two_chains(tmp_path)
    path = tmp_path / f"step-{step:09d}/manifest.json"
    path.write_bytes(path.read_bytes()[:-20])
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    found = survey.pruned(str(tmp_path), keep=1, keep_every=None, dry_run=False)
    assert str(path.parent) in found["unreadable"]
    kept = {each for each in before if each.exists()}
    assert {each: each.read_bytes() for each in kept} == {each: before[each] for each in kept}
    lost = {each.parent.name for each in before if each not in kept}
    # Where the damaged one has everything, nothing of the other chain is needed.
    assert lost == {f"step-{each:09d}" for each in gone}


def test_a_save_warns_of_a_damaged_checkpoint_and_removes_nothing_that_it_may_need(tmp_path):
    table, manager = two_chains(tmp_path)
    (tmp_path / "step-000000002/manifest.json").write_text("{")
    other = CheckpointManager(Checkpoint(table=table), tmp_path, max_to_keep=1)
    with pytest.warns(UserWarning, match="manifests that cannot be read.*step-000000002"):
        other.save(7)
    assert len(list(tmp_path.glob("step-*"))) == 7


def test_a_save_that_failed_leaves_the_changes_to_the_next_one(tmp_path, monkeypatch):
    table, manager = one_table(tmp_path, rows=50)
    manager.save(0, incremental=True)
    table.assign([3, 70], np.full([2, 4], 5, np.float32))
    table.remove([4])
    for place in ("saves.record_of", "saves._finish", "writing.RowsWriter.finish"):
        with monkeypatch.context() as patch:
            patch.setattr(f"sok_embed.checkpoint.transfer.{place}", failing)
            with pytest.raises(OSError, match="No space left"):
                manager.save(1, incremental=True)
        table.assign([8], np.full([1, 4], 6, np.float32))
    folder = manager.save(2, incremental=True)
    assert kinds(manager) == {0: None, 2: 0}
    held_state.assert_same(restored(folder), held_state.contents_of(table))


def failing(*_):
    raise OSError(28, "No space left on device")


def test_a_whole_save_between_is_the_next_one_to_build_on(tmp_path):
    table, manager = one_table(tmp_path, rows=50, max_to_keep=None)
    for step, incremental in enumerate([True, True, False, True]):
        manager.save(step, incremental=incremental)
        table.assign([step], np.full([1, 4], 9, np.float32))
    assert kinds(manager) == {0: None, 1: 0, 2: None, 3: 2}


def test_other_saves_of_the_table_do_not_disturb_the_chain(tmp_path):
    table, manager = one_table(tmp_path / "run", rows=50)
    manager.save(0, incremental=True)
    table.assign([3], np.full([1, 4], 5, np.float32))
    Checkpoint(table=table).save(tmp_path / "apart")
    folder = manager.save(1, incremental=True)
    assert kinds(manager) == {0: None, 1: 0}
    held_state.assert_same(restored(folder), held_state.contents_of(table))
    held_state.assert_same(restored(tmp_path / "apart"), held_state.contents_of(table))


@pytest.fixture
def chain(tmp_path):
    """Two checkpoints, the second of which has the changes since the first."""
    table, manager = one_table(tmp_path, rows=50)
    manager.save(0, incremental=True)
    table.assign([3], np.full([1, 4], 5, np.float32))
    manager.save(1, incremental=True)
    return [tmp_path / "step-000000000", tmp_path / "step-000000001"]


def test_changes_since_a_checkpoint_that_went_are_refused(chain):
    shutil.rmtree(chain[0])
    with pytest.raises(sok.kv.CorruptionError, match=r"builds on.*step-000000000.*none"):
        restored(chain[1])


def test_the_command_tells_of_a_checkpoint_whose_parent_went(chain):
    shutil.rmtree(chain[0])
    (told,) = survey.listed(str(chain[0].parent))
    assert told["state"] == "damaged" and "builds on" in told["error"]


def test_changes_since_another_state_are_refused(chain):
    _, manager = one_table(chain[0].parent, rows=70)
    Checkpoint(table=manager._checkpoint._objects["table"]).save(chain[0])
    with pytest.raises(sok.kv.CorruptionError, match="of another chain"):
        restored(chain[1])


def test_a_damaged_row_of_any_checkpoint_of_the_chain_is_found(chain):
    for folder in chain:
        (path,) = folder.glob("rows-*.sok")
        whole = path.read_bytes()
        path.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
        with pytest.raises(sok.kv.CorruptionError, match=str(path)):
            restored(chain[1])
        path.write_bytes(whole)
    restored(chain[1])


@pytest.mark.parametrize("folder", ["..", "/etc", "step-000000001", "../x", "step-000000007"])
def test_a_parent_elsewhere_or_in_a_circle_is_refused(chain, folder):
    path = chain[1] / "manifest.json"
    content = json.loads(path.read_text())
    content["parent"] = {"folder": folder, "state": content["state"]}
    content.pop("checksum")
    content["checksum"] = manifest.checksum_of_json(content)
    path.write_text(json.dumps(content))
    with pytest.raises(sok.kv.CorruptionError):
        restored(chain[1])


def states_of(folder):
    return {path.name: restored(path) for path in sorted(folder.glob("step-*"))}


def test_a_chain_stays_what_it_is_where_one_of_it_is_compacted(tmp_path):
    table, manager = one_table(tmp_path, rows=400, max_to_keep=3)
    chance = np.random.default_rng(3)
    for step in range(6):
        manager.save(step, incremental=True)
        table.assign(chance.integers(0, 600, 40), chance.random([40, 4]))
        table.remove(chance.integers(0, 600, 20))
    before = states_of(tmp_path)
    assert kinds(manager) == {0: None, 1: 0, 2: 1, 3: 2, 4: 3, 5: 4}
    assert sok.checkpoint.compact(tmp_path / "step-000000003") == 3
    assert sok.checkpoint.compact(tmp_path / "step-000000003") == 0
    assert kinds(manager) == {0: None, 1: 0, 2: 1, 3: None, 4: 3, 5: 4}
    for name, state in states_of(tmp_path).items():
        held_state.assert_same(state, before[name])
    # The next save goes on from the last one, and those before the compacted one may go.
    manager.save(6, incremental=True)
    assert kinds(manager) == {3: None, 4: 3, 5: 4, 6: 5}
    held_state.assert_same(restored(tmp_path / "step-000000006"), held_state.contents_of(table))


def test_a_compaction_that_fails_or_is_killed_changes_nothing(chain, monkeypatch):
    before = sorted(path.name for path in chain[1].iterdir())
    for place in (
        "tools.compaction.RowsWriter.finish",
        "tools.saved.record_of",
        "files.manifest.write",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"sok_embed.checkpoint.{place}", failing)
            with pytest.raises(OSError, match="No space left"):
                sok.checkpoint.compact(chain[1])
        assert sorted(path.name for path in chain[1].iterdir()) == before
    (chain[1] / "rows-00001-of-00001-0123456789abcdef.sok").write_bytes(b"of one that was killed")
    table, manager = one_table(chain[1].parent, rows=5)
    manager.save(7)
    assert sorted(path.name for path in chain[1].iterdir()) == before


def test_a_checkpoint_of_changes_needs_a_reader_that_knows_them(chain):
    content = json.loads((chain[1] / "manifest.json").read_text())
    assert "delta" in content["features"] and "full" not in content["features"]
    assert Path(content["parent"]["folder"]) == Path(chain[0].name)


def test_tables_with_another_rule_than_before_are_saved_whole(tmp_path):
    model = held_state.every_kind(optimizer="sgd")
    held_state.train(model)
    manager = CheckpointManager(Checkpoint(model), tmp_path / "run", max_to_keep=None)
    manager.save(0, incremental=True)
    model.compile("adam", "mse", metrics=["mae"])
    held_state.train(model)
    folder = manager.save(1, incremental=True)
    read = manifest.read(folder)
    reader = rows_file.RowsReader(folder, read.rows[0], read.attempt, 0, 1)
    whole = {entry["path"].split("/")[-1]: entry["whole"] for entry in reader.tables}
    # The one with an optimizer of its own has the rule that it had.
    assert len(set(whole.values())) == 2
    other = held_state.every_kind(optimizer="adam")
    Checkpoint(other).restore(folder)
    held_state.assert_same(held_state.held_by(other), held_state.held_by(model))
