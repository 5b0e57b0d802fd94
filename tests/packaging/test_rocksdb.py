"""The core has a RocksDB inside that reports errors and keeps apart from any other."""

import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sok_embed.tf_ops

ROOT = Path(__file__).resolve().parents[2]
CORE = Path(sok_embed.tf_ops.__file__).with_name("libsok_core.so")
SYSTEM_ROCKSDB = ctypes.util.find_library("rocksdb")

needs_binutils = pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")


def printed_by(*command: object) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout


@needs_binutils
def test_the_core_needs_no_library_of_rocksdb():
    dynamic = printed_by("readelf", "--dynamic", "--wide", CORE)
    assert "libstdc++" in dynamic
    assert "rocksdb" not in dynamic


@needs_binutils
def test_nothing_in_the_core_asserts():
    imported = printed_by("nm", "--dynamic", "--undefined-only", CORE)
    assert "pwrite" in imported  # RocksDB is there
    assert "__assert" not in imported


@needs_binutils
def test_the_core_neither_shows_nor_imports_a_symbol_of_rocksdb():
    symbols = printed_by("nm", "--dynamic", CORE).splitlines()
    of_rocksdb = [line for line in symbols if "7rocksdb" in line or " rocksdb" in line]
    assert len(symbols) > 100
    assert not of_rocksdb


@needs_binutils
def test_the_core_shows_its_own_namespace_alone():
    lines = printed_by("nm", "--dynamic", "--defined-only", CORE).splitlines()
    names = [line.split()[-1] for line in lines]
    assert len(names) > 100
    # Names that are not ours may be types of functions, and constants of libstdc++'s headers.
    foreign = [name for name in names if "3sok" not in name]
    assert all(name.startswith(("_ZTI", "_ZTS", "_ZZNSt")) for name in foreign), foreign
    assert not any("nlohmann" in name for name in names)


@pytest.mark.skipif(SYSTEM_ROCKSDB is None, reason="needs the system's RocksDB")
def test_a_storage_works_where_the_process_prefers_another_rocksdb(tmp_path):
    """Preloaded, the system's library comes before the core in every look-up of a symbol."""
    program = f"""
import numpy as np
from sok_embed import kv
keys = np.arange(1, 20001, dtype=np.uint64)
def opened():
    storage = kv.Storage({str(tmp_path / "rows")!r}, cache_bytes=1 << 20)
    rule = kv.Optimizer("sgd", gamma=1)
    return storage, kv.Embedding(storage, rule, kv.Initializer("zeros"), 8, group=1)
storage, embedding = opened()
for start in range(0, len(keys), 2000):
    part = keys[start:start + 2000]
    embedding.apply_gradients(part, -np.repeat(part[:, None], 8, axis=1).astype("float32"))
storage.close()
storage, embedding = opened()
assert (embedding.lookup(keys, train=False) == keys[:, None].astype("float32")).all()
storage.close()
assert {SYSTEM_ROCKSDB!r} in open("/proc/self/maps").read()
"""
    subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ, LD_PRELOAD=SYSTEM_ROCKSDB, TF_CPP_MIN_LOG_LEVEL="3"),
        check=True,
    )


# --- what CMake says to a RocksDB ----------------------------------------------------------------


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Two libraries that are RocksDB by name only: with and without assertions."""
    folder = tmp_path_factory.mktemp("rocksdb")
    source = folder / "rocksdb.cc"
    source.write_text("#include <cassert>\nvoid Flush(int wrote) { assert(wrote == 1); }\n")
    made = {}
    for name, flags in {"debug": [], "release": ["-DNDEBUG"]}.items():
        made[name] = folder / name / "librocksdb.so"
        made[name].parent.mkdir()
        command = [os.environ.get("CXX", "c++"), "-shared", "-fPIC", *flags]
        subprocess.run([*command, "-o", made[name], source], check=True)
    return made


def configure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["cmake", "-S", ROOT / "tf_ops", "-B", folder, *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("library", "allow", "accepted"),
    [("debug", "OFF", False), ("debug", "ON", True), ("release", "OFF", True)],
)
def test_cmake_accepts_a_rocksdb_with_assertions_only_when_told_to(
    libraries, tmp_path, library, allow, accepted
):
    done = configure(
        tmp_path,
        f"-DSOK_ROCKSDB_LIBRARY={libraries[library]}",
        f"-DSOK_ROCKSDB_INCLUDE_DIR={tmp_path}",
        f"-DSOK_ALLOW_ROCKSDB_ASSERTIONS={allow}",
    )
    assert (done.returncode == 0) == accepted, done.stderr
    assert ("scripts/build_rocksdb.py" in done.stderr) != accepted


def test_cmake_names_the_script_where_the_folder_of_rocksdb_is_empty(tmp_path):
    done = configure(tmp_path / "build", f"-DSOK_ROCKSDB_ROOT={tmp_path}")
    assert done.returncode != 0
    assert "scripts/build_rocksdb.py" in done.stderr
