"""Manifests with right checksums and wrong contents: one clear error each, and nothing changes."""

import json
import random
import re
import resource
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

import held_state
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from dealt_rows import dealt
from manifest_mutations import index_of, mutated, with_checksum, with_index
from seeds import seed_of_test
from tiers import rounds

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.cli import main
from sok_embed.files.records import record_of

COUNT = rounds(120, 400, "SOK_MANIFEST_MUTATIONS")
MEMORY = 200 << 20
KINDS = ["plain", "changes", "adaptive", "collection", "storage", "two_workers"]


class Run(NamedTuple):
    """A directory of checkpoints.

    Attributes:
        checkpoint: What restores one of them.
        tables: Its tables, by name.
        directory: Of the checkpoints.
        folder: The one whose manifest is changed.
    """

    checkpoint: Checkpoint
    tables: dict
    directory: Path
    folder: Path


def tables_of(kind, folder):
    """Tables of a kind with nothing in them."""
    plain = sok.DynamicEmbedding(3, name="plain", seed=1).table
    if kind == "adaptive":
        adaptive = sok.AdaptiveEmbedding(
            2, 5, promote_after=2, sketch_capacity=50, seed=3, name="adaptive"
        )
        return {"adaptive": adaptive.table, "plain": plain}
    if kind == "collection":
        configs = [
            sok.TableConfig("spread", None, 3, seed=1, placement="key"),
            sok.TableConfig("whole", None, 2, seed=1, placement="worker"),
        ]
        features = [sok.FeatureConfig(config.name, config) for config in configs]
        layer = sok.DistributedEmbedding(features, output="concat", name="fields")
        return dict(layer.tables)
    if kind == "storage":
        storage = sok.Storage(folder)
        return {"stored": sok.DynamicEmbedding(2, seed=2, storage=storage, name="stored").table}
    counted = sok.DynamicEmbedding(
        2, name="counted", seed=2, admission=sok.admission.FrequencyAdmission(2)
    )
    return {"counted": counted.table, "plain": plain}


def thing_of(kind, folder):
    """Tables of a kind, and what saves them beside a variable."""
    tables = tables_of(kind, folder)
    return tables, Checkpoint(**tables, variable=tf.Variable(tf.range(5.0)))


def change(tables, chance):
    """Gives rows to all tables, and takes some."""
    for table in tables.values():
        keys = chance.integers(-30, 30, 20)
        if isinstance(table, sok.AdaptiveTable):
            table.promote(np.unique(keys))
        else:
            table.assign(keys, chance.random([20, table.dim]))
            table.remove(chance.integers(-30, 30, 5))


def held(tables):
    return {
        f"{name}.{field}": value
        for name, table in tables.items()
        for field, value in held_state.contents_of(table).items()
    }


@pytest.fixture(params=KINDS)
def run(request, tmp_path):
    """Three checkpoints of tables of a kind, of which the middle one is changed."""
    kind = request.param
    tables, checkpoint = thing_of(kind, tmp_path / "storage")
    manager = CheckpointManager(checkpoint, tmp_path / "run", max_to_keep=None)
    if kind == "changes":  # which would be too long for tables this small
        manager._parent = lambda *_: manager._last
    chance = np.random.default_rng(5)
    for step in range(3):
        change(tables, chance)
        manager.save(step, incremental=kind == "changes")
    folders = [tmp_path / "run" / f"step-{step:09d}" for step in range(3)]
    if kind == "two_workers":
        for folder in folders:
            folder.rename(tmp_path / "one")
            dealt(tmp_path / "one", folder, 2)
            shutil.rmtree(tmp_path / "one")
    return Run(checkpoint, tables, tmp_path / "run", folders[1])


def files_in(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def invoked(*arguments):
    """Runs a command. Returns its exit status and all that it has printed."""
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(arguments) from result.exception
    return result.exit_code, result.output


def assert_told(command, output, folder):
    """The output is one line that says what was expected, and came; `verify` has one a fault."""
    lines = output.strip().splitlines()
    assert len(lines) == 1 or (command == "verify" and lines), output
    for line in lines:
        assert "xpected" in line and "Received" in line, output
        assert line.startswith(("error: ", str(folder))), output


def restored(run):
    """Whether the checkpoint could be restored; if not, nothing has changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other names, seeds and initializers
        try:
            run.checkpoint.restore(run.folder)
        except (sok.kv.CorruptionError, ValueError, FileNotFoundError) as error:
            assert type(error) in (sok.kv.CorruptionError, ValueError, FileNotFoundError)
            assert re.search("xpected.*(Received|got)", str(error)), error
            return False
    return True


def readable(folder):
    """Whether the manifest alone is as it has to be."""
    try:
        manifests.read(str(folder))
    except (sok.kv.CorruptionError, ValueError):
        return False
    return True


def try_commands(run, intact, target):
    """Runs every command on the checkpoint, of which each works, or says why it does not."""
    folder = run.folder
    status, output = invoked("ls", run.directory, "--json")
    assert status == 0, output
    listed = {Path(each["path"]): each["state"] for each in json.loads(output)["checkpoints"]}
    assert len(listed) == 3
    codes = {}
    for arguments in (
        ("show", folder), ("verify", folder), ("diff", folder, intact), ("diff", intact, folder),
        ("convert", folder, target, "--to", "dump"),
        ("convert", folder, target, "--to", "npz", "--table", "plain"),
        ("convert", intact, target, "--to", "checkpoint", "--base", folder, "--table", "plain"),
        ("prune", run.directory, "--keep", 1, "--dry-run", "--json"),
    ):  # fmt: skip
        status, output = invoked(*arguments)
        if arguments[0] == "prune":
            assert status == 0, output
            told = json.loads(output)
            # What builds on a state that was replaced goes; what cannot be read stays.
            assert not set(told["removed"]) & set(told["unreadable"]), output
            if listed[folder] == "whole":
                assert str(folder) not in told["unreadable"], output
        elif status:
            assert_told(arguments[0], output, folder)
        codes[arguments[0]] = codes.get(arguments[0], 0) or status
        assert not list(target.parent.glob(f"{target.name}*.converting-*"))
        if target.exists():
            assert status == 0
            shutil.rmtree(target) if target.is_dir() else target.unlink()
    return listed, codes


class Change:
    """Changes the manifest of a checkpoint at random, or the index of a file of rows.

    Args:
        run: The directory.
        what: `"manifest"` or `"index"`.
    """

    def __init__(self, run, what):
        self._path = run.folder / "manifest.json"
        self._rows = sorted(run.folder.glob("rows-*"))[-1] if what == "index" else None
        self._data = {each: each.read_bytes() for each in (self._path, self._rows) if each}
        originals = [json.loads(each.read_text()) for each in run.directory.glob("*/manifest.json")]
        self._manifest = json.loads(self._data[self._path])
        attempt = self._manifest["attempt"]
        self._originals = sorted(originals, key=lambda content: content["attempt"] != attempt)
        if self._rows:
            files = [each for each in run.directory.rglob("rows-*") if each != self._rows]
            self._originals = [index_of(each.read_bytes()) for each in (self._rows, *files)]

    def make(self, chance):
        """Writes the changed file, and whatever else makes all checksums right."""
        content = mutated(self._originals, chance)
        if self._rows is None:
            self._path.write_bytes(with_checksum(content))
            return
        self._rows.write_bytes(with_index(self._data[self._rows], content))
        record = record_of(str(self._rows.parent), self._rows.name)
        told = json.loads(self._data[self._path])
        (mine,) = (each for each in told["rows"] if each["name"] == record.name)
        mine.update(record._asdict())
        self._path.write_bytes(with_checksum(told))


@pytest.mark.cover(2)
@pytest.mark.parametrize("what", ["manifest", "index"])
def test_wrong_contents_with_right_checksums_are_one_error_and_change_nothing(run, tmp_path, what):
    """With SOK_MANIFEST_MUTATIONS=100000 so many, over all kinds of checkpoints."""
    seed = seed_of_test()
    chance = random.Random(seed)
    intact = tmp_path / "run-intact" / run.folder.name
    shutil.copytree(run.directory, intact.parent)
    change = Change(run, what)
    whole = files_in(run.directory)
    assert restored(run)
    expected = held(run.tables)
    # What everything takes when nothing is wrong.
    try_commands(run, intact, tmp_path / "target")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused, count = 0, -(-COUNT // len(KINDS) // 2)
    for number in range(count):
        try:
            change.make(chance)
        except RecursionError:
            continue
        changed = files_in(run.directory)
        is_readable = readable(run.folder)
        listed, codes = try_commands(run, intact, tmp_path / "target")
        is_restored = restored(run)
        refused += not is_restored
        found = held(run.tables) if number % 10 == 0 or is_restored else expected
        if what == "index" and is_restored:
            # Steps, clocks and what slots start from may be others.
            run.checkpoint.restore(intact)
        else:
            held_state.assert_same(found, expected)
        if listed[run.folder] != "whole":
            assert not is_restored and all(codes[name] for name in codes if name != "prune")
        assert files_in(run.directory) == changed
        # These change the directory where they work.
        status, output = invoked("compact", run.folder)
        if status:
            assert_told("compact", output, run.folder)
            assert files_in(run.directory) == changed
        status, output = invoked("prune", run.directory, "--keep", 1)
        assert status == 0, output
        assert run.folder.exists() or is_readable
        for each in set(files_in(run.directory)) - set(whole):
            each.unlink()
        for each, data in whole.items():
            each.parent.mkdir(exist_ok=True)
            each.write_bytes(data)
    assert refused > count / 3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (peak - before) << 10 < MEMORY, f"{(peak - before) >> 10} MiB more"
    held_state.assert_same(held(run.tables), expected)
