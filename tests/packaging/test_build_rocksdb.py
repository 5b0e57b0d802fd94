"""scripts/build_rocksdb.py: what goes into its cache, and when. Nothing is compiled here."""

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import build_rocksdb  # noqa: E402
import progress  # noqa: E402


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return build_rocksdb.cache_directory()


@pytest.fixture
def tree(tmp_path):
    """What a build leaves: headers, licences, a library."""
    tree = tmp_path / "tree"
    (tree / "include" / "rocksdb").mkdir(parents=True)
    (tree / "include" / "rocksdb" / "db.h").write_text("// a header\n")
    for licence in ("COPYING", "LICENSE.Apache", "LICENSE.leveldb"):
        (tree / licence).write_text("a licence\n")
    (tree / "librocksdb.a").write_text("first")
    return tree


def publish(tree: Path, cache: Path, replace: bool = False) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    build_rocksdb.publish(tree, tree / "librocksdb.a", cache, replace)


def test_a_cached_build_is_taken_as_it_is(cache, tree, monkeypatch):
    publish(tree, cache)
    monkeypatch.setattr(build_rocksdb, "build", lambda *_: pytest.fail("it was built again"))
    assert build_rocksdb.ensure() == cache
    assert (cache / "include" / "rocksdb" / "db.h").exists()


def test_the_second_of_two_builds_leaves_what_the_first_has_published(cache, tree):
    publish(tree, cache)
    (tree / "librocksdb.a").write_text("second")
    publish(tree, cache)
    assert (cache / "lib" / "librocksdb.a").read_text() == "first"
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_rebuilding_replaces_the_build(cache, tree):
    publish(tree, cache)
    (tree / "librocksdb.a").write_text("second")
    publish(tree, cache, replace=True)
    assert (cache / "lib" / "librocksdb.a").read_text() == "second"
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_a_folder_without_its_library_is_replaced(cache, tree):
    publish(tree, cache)
    (cache / "lib" / "librocksdb.a").unlink()
    assert not build_rocksdb.is_complete(cache)
    publish(tree, cache)
    assert build_rocksdb.is_complete(cache)


def test_another_compiler_and_another_recipe_have_folders_of_their_own(cache, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O1")
    assert build_rocksdb.cache_directory() != cache
    monkeypatch.delenv("CXXFLAGS")
    assert build_rocksdb.cache_directory() == cache
    monkeypatch.setattr(build_rocksdb, "CMAKE_ARGUMENTS", ())
    assert build_rocksdb.cache_directory() != cache


def test_an_archive_with_another_checksum_is_refused_and_leaves_no_folder(cache, tmp_path):
    archive = tmp_path / "rocksdb.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(
            tarfile.TarInfo(f"rocksdb-{build_rocksdb.VERSION}/CMakeLists.txt"), io.BytesIO()
        )
    received = hashlib.sha256(archive.read_bytes()).hexdigest()
    with pytest.raises(build_rocksdb.BuildError, match=f"Received: {received}"):
        build_rocksdb.ensure(archive)
    assert not cache.exists()


def test_the_script_says_why_it_did_not_build(tmp_path, cache):
    (tmp_path / "empty.tar.gz").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, build_rocksdb.__file__, "--source", tmp_path / "empty.tar.gz"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout == ""  # a shell that takes it for a folder gets nothing
    assert "Expected" in done.stderr


# --- lines of progress ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("[1/24] Building\n[12/24] Building CXX object x.o\n", "step 12 of 24"),
        ("[  3%] Building\n[ 45%] Building CXX object x.o\nwarning: y\n", "45 %"),
        ("Collecting a\n  Downloading a.whl (5 MB)\nWARNING: b\n\n", "Downloading a.whl (5 MB)"),
        ("WARNING: b\n", ""),
    ],
)
def test_progress_tells_the_last_step_of_a_log(log, said):
    assert progress.position(log.splitlines()) == said


def test_progress_goes_on_telling_until_the_command_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    said = tmp_path / "said"
    program = f"""
import pathlib, time
print("[3/7] Building", flush=True)
end = time.monotonic() + 60
while not pathlib.Path({str(said)!r}).exists() and time.monotonic() < end:
    time.sleep(0.01)
"""

    class Screen(io.StringIO):
        def write(self, text):
            if "step 3 of 7" in text:
                said.touch()
            return super().write(text)

    screen = Screen()
    log = tmp_path / "log"
    log.write_text("[99/99] an earlier command\n")
    progress.run([sys.executable, "-c", program], what="RocksDB", log=log, to=screen)
    assert said.exists(), screen.getvalue()
    assert screen.getvalue().startswith("  RocksDB: ")
    assert "99" not in screen.getvalue()


def test_progress_passes_a_failure_on_with_the_end_of_the_log(tmp_path):
    log = tmp_path / "log"
    program = "import sys; print('why it failed'); sys.exit(3)"
    script = ROOT / "scripts" / "progress.py"
    done = subprocess.run(
        [sys.executable, script, "--log", log, "Test", "--", sys.executable, "-c", program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "why it failed" in done.stderr
    assert str(log) in done.stderr
