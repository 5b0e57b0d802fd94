"""Other RocksDB clients read the rows: docs/reference/file-formats.md and row_codec.h."""

import shutil
import struct
import subprocess

import numpy as np
import pytest
from kv_rows import adam, keys, ones, row

from sok_embed import kv

HEADER = struct.Struct("<IIII")  # version and dim, layout, update_num, update_time


@pytest.fixture
def folder(tmp_path, clock):
    """Two groups; of each row what Storage.get says."""
    expected = {}
    with kv.Storage(tmp_path / "rows", clock=clock) as storage:
        for group, dimension in ((0, 3), (200, 1)):
            embedding = adam(storage, dimension, group=group)
            for _ in range(group // 100 + 1):
                embedding.apply_gradients(keys(1, -1, 258), ones(3, dimension))
            for key in (1, 2**64 - 1, 258):
                expected[group, key] = row(storage, key, group)
    return tmp_path / "rows", expected


def test_rocksdict_reads_the_rows(folder, clock):
    rocksdict = pytest.importorskip("rocksdict")
    path, expected = folder
    database = rocksdict.Rdict(
        str(path),
        rocksdict.Options(raw_mode=True),
        access_type=rocksdict.AccessType.read_only(),
    )
    found = dict(database.items())
    database.close()
    assert [(key[0], int.from_bytes(key[1:], "big")) for key in found] == sorted(expected)
    for key, value in found.items():
        group, number = key[0], int.from_bytes(key[1:], "big")
        first, _, update_num, update_time = HEADER.unpack_from(value)
        assert first & 255 == 1
        assert first >> 8 == (3 if group == 0 else 1)
        assert update_num == expected[group, number]["update_num"] == group // 100 + 1
        assert update_time == clock.now
        floats = np.frombuffer(value, "<f4", offset=HEADER.size)
        assert (floats == expected[group, number]["floats"]).all()


@pytest.mark.skipif(shutil.which("ldb") is None, reason="needs RocksDB's tools")
def test_ldb_reads_the_rows(folder):
    path, expected = folder
    printed = subprocess.run(
        ["ldb", f"--db={path}", "--hex", "scan"], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in printed.splitlines():
        if " : 0x" in line or " ==> 0x" in line:
            key, value = (
                bytes.fromhex(part.removeprefix("0x")) for part in line.split() if part[:2] == "0x"
            )
            found[key[0], int.from_bytes(key[1:], "big")] = value
    assert found.keys() == expected.keys()
    for key, value in found.items():
        assert value[HEADER.size :] == expected[key]["floats"].tobytes()
