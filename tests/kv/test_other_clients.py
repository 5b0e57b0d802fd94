"""Other RocksDB clients read the rows: docs/reference/file-formats.md and row_codec.h."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from kv_rows import adam, keys, ones, row, sgd

from sok_embed import kv

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "other-clients.md"
HEADER = struct.Struct("<IIII")  # version and dim, layout, update_num, update_time


def read_by_rocksdict(path):
    """Returns the value of each key, in the order of the database."""
    rocksdict = pytest.importorskip("rocksdict")
    database = rocksdict.Rdict(
        str(path),
        rocksdict.Options(raw_mode=True),
        access_type=rocksdict.AccessType.read_only(),
    )
    found = dict(database.items())
    database.close()
    return found


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
    path, expected = folder
    found = read_by_rocksdict(path)
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


def ldb(*arguments):
    """Returns what RocksDB's own tool prints."""
    if shutil.which("ldb") is None:
        pytest.skip("needs RocksDB's tools")
    return subprocess.run(["ldb", *arguments], capture_output=True, text=True, check=True).stdout


def test_ldb_reads_the_rows(folder):
    path, expected = folder
    printed = ldb(f"--db={path}", "--try_load_options=false", "--hex", "scan")
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


def test_a_storage_goes_on_where_rocksdb_7_8_has_written(folder, clock):
    """Earlier releases have that version inside, and a folder can go back to them."""
    path, expected = folder
    if "7.8" not in ldb("--version"):
        pytest.skip("needs the tools of RocksDB 7.8")
    for family in ("default", "sok_meta"):
        given = (f"--db={path}", "--try_load_options=false", f"--column_family={family}")
        ldb(*given, "--compression_type=no", "compact")
    with kv.Storage(path, clock=clock) as storage:
        for (group, key), there in expected.items():
            found = row(storage, key, group)
            assert found.pop("floats").tobytes() == there.pop("floats").tobytes()
            assert found == there
        sgd(storage, group=7).apply_gradients(keys(5), ones(1))
        storage.flush()


def numbers_of(part, dtype, n):
    """Decodes n numbers from the beginning of a part of a row."""
    if dtype == "float32":
        return np.frombuffer(part, "<f4", n)
    if dtype == "float16":
        return np.frombuffer(part, "<f2", n).astype(np.float32)
    if dtype == "bfloat16":
        return (np.frombuffer(part, "<u2", n).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(part, "<f4", 1) * np.frombuffer(part, np.int8, n, offset=4)


@pytest.mark.parametrize("slot_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("row_dtype", ["float32", "bfloat16", "float16", "int8"])
def test_rows_in_fewer_bytes_lie_as_the_formats_say(tmp_path, row_dtype, slot_dtype):
    dim = 5  # not a multiple of 4 bytes in any of the short types
    random = np.random.default_rng(3)
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = adam(storage, dim, row_dtype=row_dtype, slot_dtype=slot_dtype)
        for _ in range(4):
            embedding.apply_gradients(keys(1, 2), random.normal(size=[2, dim]).astype(np.float32))
        expected = {key: row(storage, key)["floats"] for key in (1, 2)}
    version = 1 + ("float32", "bfloat16", "float16", "int8").index(row_dtype)
    version += 4 * (slot_dtype == "bfloat16")
    values = list(read_by_rocksdict(tmp_path / "rows").values())
    for value, floats in zip(values, expected.values(), strict=True):
        assert value[0] == version
        row_bytes = {"float32": 20, "bfloat16": 12, "float16": 12, "int8": 12}[row_dtype]
        embedded, slots = value[16 : 16 + row_bytes], value[16 + row_bytes :]
        np.testing.assert_array_equal(numbers_of(embedded, row_dtype, dim), floats[:dim])
        np.testing.assert_array_equal(numbers_of(slots, slot_dtype, 2 * dim), floats[dim:])
        assert len(slots) == {"float32": 40, "bfloat16": 20}[slot_dtype]
        used = {"float32": 20, "bfloat16": 10, "float16": 10, "int8": 9}[row_dtype]
        assert not any(embedded[used:])


def samples_of_page(path):
    """Returns the samples of the page on other clients, for the storage at `path`."""
    samples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [sample.replace('"rows"', repr(str(path))) for sample in samples]


def test_a_newer_client_that_rewrites_a_folder_is_named_and_can_undo_it(tmp_path):
    rocksdict = pytest.importorskip("rocksdict")
    path, all_keys = tmp_path / "rows", np.arange(1000, dtype=np.uint64)
    with kv.Storage(path) as storage:
        embedding = adam(storage, 4, group=1)
        embedding.apply_gradients(all_keys, ones(1000, 4))
        rows = embedding.lookup(all_keys)
    raw = rocksdict.Options(raw_mode=True)
    families = {
        name: rocksdict.Options(raw_mode=True) for name in rocksdict.Rdict.list_cf(str(path))
    }
    rocksdict.Rdict(str(path), raw, column_families=families).close()
    before = contents_of(path)
    for read_only in (False, True):
        with pytest.raises(kv.CorruptionError, match="a newer RocksDB than the one of sok-embed"):
            kv.Storage(path, read_only=read_only).ready()
    assert contents_of(path) == before
    reading, rewriting = samples_of_page(path)
    names = {}
    exec(reading, names)
    assert (names["embedding"] == rows[42]).all()
    names["rows"].close()
    exec(rewriting, names)
    with kv.Storage(path) as storage:
        assert (adam(storage, 4, group=1).lookup(all_keys) == rows).all()


def contents_of(path):
    """Returns the bytes of the files in a folder, except what RocksDB logs for people."""
    return {
        file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith("LOG")
    }


def test_a_folder_in_a_later_format_is_refused_and_stays_as_it_is(tmp_path):
    pytest.importorskip("rocksdict")
    path = tmp_path / "rows"
    with kv.Storage(path) as storage:
        adam(storage, 4).apply_gradients(keys(1, 2), ones(2, 4))
    names = {}
    exec(samples_of_page(path)[0].partition("rows = ")[0], names)
    exec(samples_of_page(path)[1].partition("everything = ")[0], names)
    meta = names["rows"].get_column_family("sok_meta")
    meta[b"storage"] = meta[b"storage"].replace(b'"format":1', b'"format":2')
    names["rows"].close()
    before = contents_of(path)
    for read_only in (True, False):
        with pytest.raises(ValueError, match="expected a storage in format 1, got 2"):
            kv.Storage(path, read_only=read_only).ready()
    assert contents_of(path) == before


def test_a_storage_does_not_lie_in_the_folder_of_another(tmp_path):
    outer, other = tmp_path / "outer", tmp_path / "other"
    (tmp_path / "link").symlink_to(outer)
    with kv.Storage(outer) as storage, kv.Storage(other) as second:
        storage.ready()
        for inner in (outer / "inner", outer / "a" / "b", tmp_path / "link" / "inner"):
            with pytest.raises(ValueError, match="outside of the folders of storages"):
                kv.Storage(inner).ready()
            with pytest.raises(ValueError, match="outside of the folders of storages"):
                second.checkpoint(inner)
        second.checkpoint(tmp_path / "copy")
    assert not (outer / "inner").exists() and not (outer / "a").exists()
    # One that was made by an earlier version can be read where it is.
    (tmp_path / "copy").rename(outer / "inner")
    with pytest.raises(ValueError, match="outside of the folders of storages"):
        kv.Storage(outer / "inner").ready()
    kv.Storage(outer / "inner", read_only=True).ready().close()


def test_a_file_current_that_names_no_manifest_makes_no_storage_of_a_folder(tmp_path):
    (tmp_path / "CURRENT").write_text("release-7\n")  # as folders of releases have it
    (tmp_path / "a" / "CURRENT").mkdir(parents=True)
    for name in ("rows", "a/rows"):
        with kv.Storage(tmp_path / name) as storage:
            adam(storage).apply_gradients(keys(1), ones(1))
            storage.checkpoint(tmp_path / f"{name}.copy")
