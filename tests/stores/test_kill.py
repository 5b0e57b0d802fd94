"""However a process is killed, its storage holds what its durability promises, to the bit."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_rows import DumpedRows, read_dump
from killed_process import kill_and_read
from killed_trainer import GROUPS, KEYS, LARGE_FLUSH, Group, Replay, batch_of, key_at
from seeds import seed_of_test
from tiers import few_or_many

from sok_embed import kv
from sok_embed.binding import _core

TRAINER = Path(__file__).with_name("killed_trainer.py")
HEADER = np.dtype([("version_dim", "<u4"), ("layout", "<u4"), ("updates", "<u4"), ("time", "<u4")])


class Run:
    """One life of the trainer, and what it said until it was killed."""

    def __init__(self, folder: Path, durability: str, seed: int, steps: dict[int, int]) -> None:
        done = min(steps.values())
        arguments = [_core.__file__, folder, durability, seed, done, done + 3 * LARGE_FLUSH]
        self._process = subprocess.Popen(
            [sys.executable, TRAINER, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[list[str]] = []
        self._steps = steps

    def kill_at_random(self, random: np.random.Generator) -> str:
        """Kills it while it opens, in or after a flush, or anywhere. Says when that was."""
        kind = random.choice(["opening", "flushing", "anywhere"], p=[0.2, 0.4, 0.4])
        if kind == "opening":
            after, delay = self._wait_for("opening", 1), random.uniform(0, 0.1)
        elif kind == "flushing":
            # One of three in a row is large, and takes longer.
            after, delay = self._wait_for("flushing", random.integers(1, 4)), random.uniform(0, 0.2)
        else:
            after, delay = self._wait_for("opened", 1), random.uniform(0, 1)
        time.sleep(delay)
        rest, errors = kill_and_read(self._process)
        assert errors == ""
        self._lines += [line.split() for line in rest.splitlines()]
        assert self._process.returncode in (-signal.SIGKILL, 0)
        return f"{delay:.3f} s after {' '.join(after)}, then {' '.join(self._lines[-1])}"

    def _wait_for(self, what: str, times: int) -> list[str]:
        seen = 0
        for line in self._process.stdout:
            self._lines.append(line.split())
            seen += self._lines[-1][0] == what
            if seen == times:
                return self._lines[-1]
        pytest.fail(f"the trainer ended by itself: {self._process.communicate()[1]}")

    def opened(self) -> bool:
        return any(line[0] == "opened" for line in self._lines)

    def last(self, what: str, group: Group) -> int:
        """Returns the last step of which it said this, or the one that the group began from."""
        said = [int(step) for said, step in self._lines if said == what]
        return max([self._steps[group.number], *said])


def steps_that_may_be_there(run: Run, durability: str, group: Group) -> set[int]:
    """Returns the steps that may be there: of the last call that returned, or one under way."""
    if durability == "update":
        trained = run.last(f"trained-{group.number}", group)
        return {trained, trained + 1}
    return {run.last("flushed", group), run.last("flushing", group)}


def open_with_rocksdict(folder: Path) -> Any:
    """Opens a folder to read, with the column families that it says it has.

    By default rocksdict takes their names from the newest OPTIONS file. RocksDB writes that after
    the manifest, which counts: where a kill came between the two, the file still names a family
    that was dropped.
    """
    rocksdict = pytest.importorskip("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    reading = {"access_type": rocksdict.AccessType.read_only()}
    try:
        return rocksdict.Rdict(str(folder), options, **reading)
    except Exception as error:
        names = rocksdict.Rdict.list_cf(str(folder))
        if "Column family not found: sok_pending" not in str(error) or "sok_pending" in names:
            raise
        families = {name: rocksdict.Options(raw_mode=True) for name in names if name != "default"}
        return rocksdict.Rdict(str(folder), options, families, **reading)


def as_other_clients_read_it(folder: Path) -> dict[bytes, bytes]:
    """Reads all rows by rocksdict; RocksDB's own tool must find as many and no fault."""
    database = open_with_rocksdict(folder)
    rows = dict(database.items())
    database.close()
    if shutil.which("ldb") is not None:
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        ldb("checkconsistency", copy)
        scanned = ldb("scan", copy, "--hex", "--no_value").split()
        assert sorted(line for line in scanned if line.startswith("0x")) == [
            f"0x{key.hex().upper()}" for key in sorted(rows)
        ]
        shutil.rmtree(copy)
    return rows


def ldb(command: str, folder: Path, *options: str) -> str:
    # By default ldb takes the names of families from the newest OPTIONS file, as rocksdict does.
    arguments = ["ldb", f"--db={folder}", "--try_load_options=false", *options, command]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_rows(found: DumpedRows | None, replay: Replay, seed: int, group: Group) -> int:
    """Each row is as the replay has it, and none is missing. Returns how many there are."""
    met = int((replay.updates > 0).sum())
    if found is None:
        assert met == 0
        return 0
    positions = replay.positions(found.keys)
    assert np.unique(found.keys).size == found.keys.size
    np.testing.assert_array_equal(found.updates, replay.updates[positions])
    np.testing.assert_array_equal(found.floats, replay.rows[positions])
    assert (found.updates > 0).sum() == met, "rows are lost"
    # Beside them there may be rows that the lookup of the step under way has made.
    under_way, _ = batch_of(seed, replay.step + 1, group)
    assert np.isin(found.keys[found.updates == 0], under_way).all()
    return found.keys.size


def assert_vectors(storage: kv.Storage, replay: Replay, group: Group, rows: int) -> None:
    """A lookup finds them too; a key without a row has the vector that it starts from."""
    table = storage.ready().open_table(group.spec())
    vectors = np.empty((KEYS, group.dim), np.float32)
    table.lookup(key_at(np.arange(KEYS)), vectors.reshape(-1), False)
    np.testing.assert_array_equal(vectors, replay.rows[:, : group.dim])
    assert table.size() == rows


def assert_same_bytes(clients: dict[bytes, bytes], dumped: dict[int, DumpedRows]) -> None:
    """Compares what the other clients read with what was dumped, row by row."""
    assert len(clients) == sum(rows.keys.size for rows in dumped.values())
    for number, rows in dumped.items():
        for key, updates, floats in zip(rows.keys, rows.updates, rows.floats, strict=True):
            value = clients[bytes([number]) + int(key).to_bytes(8, "big")]
            assert np.frombuffer(value, HEADER, 1)["updates"][0] == updates
            assert value[HEADER.itemsize :] == floats.tobytes()


@pytest.mark.cover(1)
@pytest.mark.parametrize("kills", few_or_many(3, 30))
@pytest.mark.parametrize("durability", ["checkpoint", "update"])
def test_a_killed_process_leaves_the_last_durable_step_or_the_one_under_way(
    tmp_path, durability, kills
):
    seed = seed_of_test()
    random = np.random.default_rng(seed)
    folder = None
    for kill in range(kills):
        if folder is None or random.random() < 0.1:
            folder = tmp_path / f"rows-{kill}"
            replays = {group: Replay(seed, group) for group in GROUPS}
        before = {group.number: replay.step for group, replay in replays.items()}
        run = Run(folder, durability, seed, before)
        print(f"{folder.name}, steps {before}: killed {run.kill_at_random(random)}")
        # The calls of a journal are for other clients once an opening has published them.
        others = kill % 8 == (7 if kills > 7 else 2) and run.opened() and durability == "checkpoint"
        clients = as_other_clients_read_it(folder) if others else None
        # What opens first writes as often as it only reads.
        read_only = bool(run.opened() and random.random() < 0.5)
        with kv.Storage(folder, ttl=None, read_only=read_only) as storage:
            groups = {group.number: group for group in storage.groups()}
            storage.dump(tmp_path / "dump")
            dumped = read_dump(tmp_path / "dump")
            for group, replay in replays.items():
                found = groups.get(group.number)
                step = found.steps if found else 0
                assert step in steps_that_may_be_there(run, durability, group)
                replay.go_to(step)
                rows = assert_rows(dumped.get(group.number), replay, seed, group)
                if found:
                    assert found.rows == rows
                    assert_vectors(storage, replay, group, rows)
        steps = [replay.step for replay in replays.values()]
        print(f"found steps {steps}")
        if durability == "checkpoint":
            assert len(set(steps)) == 1, "a flush is one step over all groups"
        if not read_only:
            left = {path.name for path in folder.glob("sok-*")}
            left -= {"sok-lock", "sok-written"}
            # It says in which state the folder was closed.
            left -= {path.name for path in folder.glob("sok-closed-*")}
            assert not left, "files of the flush under way are left"
        if clients is not None:
            assert_same_bytes(clients, dumped)


def test_other_clients_read_a_folder_whose_options_name_a_family_that_was_dropped(tmp_path):
    """Makes the state that a kill leaves between the manifest and the OPTIONS file."""
    rocksdict = pytest.importorskip("rocksdict")
    folder = tmp_path / "rows"
    database = rocksdict.Rdict(str(folder), rocksdict.Options(raw_mode=True))
    database.create_column_family("sok_pending", rocksdict.Options(raw_mode=True))
    database[b"key"] = b"value"
    (before,) = sorted(folder.glob("OPTIONS-*"))[-1:]
    named = before.read_bytes()
    assert b"sok_pending" in named
    database.drop_column_family("sok_pending")
    database.close()
    (last,) = sorted(folder.glob("OPTIONS-*"))[-1:]
    last.write_bytes(named)
    database = open_with_rocksdict(folder)
    assert dict(database.items()) == {b"key": b"value"}
    database.close()
