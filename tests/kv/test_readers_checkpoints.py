"""Checkpoints of storages that are open read-only: of what these show, beside other readers."""

import json
import subprocess
import sys

import numpy as np
import pytest
from kv_rows import ENVIRONMENT, keys, run_python, sgd
from limits import HANG_S

from sok_embed import kv

WRITE_AND_DIE = """
import os, sys
import numpy as np
from sok_embed import kv
storage = kv.Storage(sys.argv[1], durability=sys.argv[2])
table = kv.Embedding(storage, kv.Optimizer("adam"), kv.Initializer("normal", seed=3), 4)
rows = np.arange(1000, dtype=np.uint64)
table.apply_gradients(rows, np.ones((1000, 4), np.float32))
storage.flush()
table.apply_gradients(rows[:500], np.full((500, 4), 2, np.float32))
table.remove(rows[400:600])
table.assign(rows[-1:] + np.uint64(7), np.full((1, 4), 9, np.float32))
kv.Embedding(
    storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), 2, group=255
).apply_gradients(rows[:3], np.ones((3, 2), np.float32))
os._exit(0)
"""
MAKE_MANY = """
import json, sys
from sok_embed import kv
storage = kv.Storage(sys.argv[1], ttl=None, read_only=True)
for number in range(int(sys.argv[3])):
    storage.checkpoint(f"{sys.argv[2]}-{number}")
print(json.dumps(len(storage.groups())))
"""


def contents(storage, path):
    """The groups of a storage, and the bytes of a dump, by which every row can be compared."""
    storage.dump(path)
    groups = [(group.number, group.rows, group.steps) for group in storage.groups()]
    return groups, path.read_bytes()


def names(folder):
    return sorted((path.name, path.stat().st_size) for path in folder.iterdir())


@pytest.mark.cover(1)
@pytest.mark.parametrize("durability", ["checkpoint", "update"])
def test_a_checkpoint_has_what_the_reader_shows(tmp_path, durability):
    folder = tmp_path / "rows"
    run_python(WRITE_AND_DIE, folder, durability)
    before = names(folder)
    with kv.Storage(folder, ttl=None, read_only=True) as reader:
        shown = contents(reader, tmp_path / "shown")
        reader.checkpoint(tmp_path / "copy")
        with pytest.raises(ValueError, match="does not exist yet"):
            reader.checkpoint(tmp_path / "copy")
    assert names(folder) == before
    assert len(shown[0]) == (2 if durability == "update" else 1)
    for read_only in (True, False):
        with kv.Storage(tmp_path / "copy", ttl=None, read_only=read_only) as copy:
            assert contents(copy, tmp_path / "found") == shown
    # And so has the checkpoint of one who takes the journal in.
    with kv.Storage(folder, ttl=None) as writer:
        assert contents(writer, tmp_path / "found") == shown
    assert {path.name for path in tmp_path.iterdir()} == {"rows", "shown", "copy", "found"}


def test_readers_make_checkpoints_at_the_same_time(tmp_path):
    folder, each, readers = tmp_path / "rows", 12, 3
    with kv.Storage(folder) as storage:
        table = sgd(storage, 8)
        table.apply_gradients(np.arange(20_000, dtype=np.uint64), np.ones((20_000, 8), np.float32))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE_MANY, folder, tmp_path / f"copy-{reader}", str(each)],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for reader in range(readers)
    ]
    for process in processes:
        out, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, errors
        assert json.loads(out) == 1
    for copy in tmp_path.glob("copy-*"):
        with kv.Storage(copy, ttl=None, read_only=True) as storage:
            assert storage.groups()[0].rows == 20_000
    assert len(list(tmp_path.glob("copy-*"))) == each * readers


def test_a_place_that_is_taken_stays_as_it_is(tmp_path):
    folder = tmp_path / "rows"
    with kv.Storage(folder) as storage:
        sgd(storage).apply_gradients(keys(1), np.ones((1, 2), np.float32))
    (tmp_path / "copy.tmp").mkdir()
    (tmp_path / "copy.tmp" / "mine").write_text("mine")
    with kv.Storage(folder, ttl=None, read_only=True) as reader:
        with pytest.raises(ValueError, match=r"copy\.tmp"):
            reader.checkpoint(tmp_path / "copy")
    assert (tmp_path / "copy.tmp" / "mine").read_text() == "mine"
    assert not (tmp_path / "copy").exists()
