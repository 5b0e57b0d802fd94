"""One process writes to a folder. Others are told so; readers change nothing."""

import os
import subprocess
import sys

import numpy as np
import pytest
from kv_rows import ENVIRONMENT, keys, ones, peek, run_python, sgd
from limits import HANG_S
from tiers import rounds

from sok_embed import kv

OPEN = """
import sys
from sok_embed import kv
for read_only in (False, True):
    try:
        kv.Storage(sys.argv[1], ttl=None, read_only=read_only)
    except kv.StorageLockedError as error:
        print("locked:", error)
"""


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}


def test_another_process_is_told_of_the_lock(tmp_path, storage):
    sgd(storage).apply_gradients(keys(1), ones(1))
    result = run_python(OPEN, storage.path)
    lines = [line for line in result.stdout.splitlines() if line.startswith("locked:")]
    assert len(lines) == 2, result.stderr
    assert all(storage.path in line and f"held by process {os.getpid()}" in line for line in lines)
    assert not any("LOCK" in line for line in lines)
    sgd(storage).apply_gradients(keys(1), ones(1))
    storage.flush()


def test_a_folder_is_opened_once_in_a_process(storage):
    for read_only in (False, True):
        with pytest.raises(kv.StorageLockedError, match=r"layer\.storage\.close\(\)"):
            kv.Storage(storage.path, read_only=read_only)
    assert issubclass(kv.StorageLockedError, kv.StorageError)
    assert issubclass(kv.CorruptionError, kv.StorageError)
    assert issubclass(kv.StorageError, OSError)


def test_a_storage_that_only_cycles_keep_is_closed_for_the_next_one(tmp_path):
    holder = [kv.Storage(tmp_path / "rows")]
    sgd(holder[0]).apply_gradients(keys(1), ones(1))
    holder.append(holder)
    del holder
    with kv.Storage(tmp_path / "rows") as storage:
        np.testing.assert_array_equal(sgd(storage).lookup(keys(1)), [[-1, -1]])


def test_a_reader_changes_nothing(tmp_path):
    with kv.Storage(tmp_path / "rows", ttl=1000) as storage:
        sgd(storage).apply_gradients(keys(1), ones(1))
    before = snapshot(tmp_path / "rows")
    with kv.Storage(tmp_path / "rows", ttl=None, read_only=True) as reader:
        assert reader.read_only
        assert reader.ttl == 1000
        embedding = sgd(reader)
        assert embedding.lookup(keys(1, 2)).tolist() == [[-1, -1], [0, 0]]
        assert len(embedding) == 1
        for call in (
            lambda: embedding.apply_gradients(keys(1), ones(1)),
            lambda: embedding.apply_gradients(keys(2), ones(1)),
            lambda: embedding.assign(keys(1), ones(1)),
            lambda: embedding.remove(keys(1)),
            reader.compact,
            lambda: reader.load(tmp_path / "none"),
        ):
            with pytest.raises((PermissionError, FileNotFoundError)):
                call()
        assert peek(embedding, 1).tolist() == [[-1, -1]]
        reader.dump(tmp_path / "dump")
        with pytest.raises(FileNotFoundError, match="group 9"):
            sgd(reader, group=9)
    assert snapshot(tmp_path / "rows") == before


RACE = """
import sys
from sok_embed import kv
opened = 0
while opened < int(sys.argv[2]):
    try:
        storage = kv.Storage(sys.argv[1])
    except kv.StorageLockedError:
        continue
    opened += 1
    storage.close()
"""


def test_processes_that_open_a_folder_at_once_wait_for_each_other_or_are_told(tmp_path):
    # RocksDB moves its log files before it looks at its lock.
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage).apply_gradients(keys(1), ones(1))
    command = [sys.executable, "-c", RACE, str(tmp_path / "rows"), str(rounds(10, 60))]
    processes = [
        subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, errors
