"""A lock outlives other closes of its file, and a writer that has lost its own writes no more."""

import errno
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from core_programs import command, run
from limits import HANG_S

LIBRARY = Path(__file__).with_name("failing_locks.c")
OPENS = "print(opens(sys.argv[2]))"
VECTORS = "print(*Rows(sys.argv[2], read_only=True).vectors())"

# Waits for a line between two parts of a program; says a word when it gets there.
WAIT = """
print("ready", flush=True)
sys.stdin.readline()
"""


class Writer:
    """A process that has a storage open, and waits after its first part."""

    def __init__(self, first: str, then: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            command(first + WAIT + then, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]

    def end(self) -> tuple[str, str]:
        """Has the second part run. Returns what it printed, and its errors."""
        out, errors = self.process.communicate("\n", timeout=HANG_S)
        assert self.process.returncode == 0, errors
        return out.strip(), errors


def test_a_copy_of_an_open_folder_leaves_its_lock(tmp_path):
    rows, copy = tmp_path / "rows", tmp_path / "copy"
    writer = Writer(
        """
rows = Rows(sys.argv[2])
rows.train()
rows.storage.flush()
shutil.copytree(sys.argv[2], sys.argv[3])
for name in os.listdir(sys.argv[2]):
    open(os.path.join(sys.argv[2], name), "rb").close()
rows.train()
""",
        "rows.storage.close()",
        rows,
        copy,
    )
    program = """
        for read_only in (False, True):
            try:
                core.Storage(sys.argv[2], None, 1 << 20, False, read_only)
            except core.StorageLockedError as error:
                print(error)
    """
    refused = run(program, rows).splitlines()
    assert len(refused) == 2
    assert all(f"held by process {writer.process.pid}" in line for line in refused)
    # A copy is a folder of its own, whatever is in its lock file.
    assert run("rows = Rows(sys.argv[2]); rows.train(); print(*rows.vectors())", copy) == "-2.0"
    writer.end()
    assert run(VECTORS, rows) == "-2.0"
    assert run(OPENS, rows) == "open"


def test_a_killed_writer_leaves_no_lock(tmp_path):
    writer = Writer("rows = Rows(sys.argv[2])", "", tmp_path / "rows")
    assert run(OPENS, tmp_path / "rows") == "locked"
    writer.process.kill()
    writer.process.communicate()
    assert run(OPENS, tmp_path / "rows") == "open"


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_child_that_lives_on_leaves_the_folder_to_others(tmp_path, end):
    writer = Writer(
        """
import time
rows = Rows(sys.argv[2])
rows.train()
rows.storage.flush()
child = os.fork()
if child == 0:
    for number in (0, 1, 2):
        os.close(number)
    time.sleep(120)
    os._exit(0)
os.write(2, b"%d" % child)
""",
        "rows.storage.close()" if end == "close" else "",
        tmp_path / "rows",
    )
    child = None
    try:
        if end == "kill":
            writer.process.kill()
            child = int(writer.process.communicate()[1])
        else:
            child = int(writer.end()[1])
        assert run(OPENS, tmp_path / "rows") == "open"
        os.kill(child, 0)
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)


LOSE = """
rows = Rows(sys.argv[2])
rows.train()
rows.storage.flush()
rows.train()
"""
TRY = """
for call in (rows.storage.flush, lambda: rows.storage.checkpoint(sys.argv[2] + "-of-loser"),
             rows.storage.compact, rows.storage.close):
    try:
        call()
        print("done", flush=True)
    except OSError as error:
        print(type(error).__name__, error, flush=True)
print(*rows.vectors())
"""


def test_a_lock_file_that_was_removed_is_locked_anew(tmp_path):
    rows = tmp_path / "rows"
    writer = Writer(LOSE, "rows.storage.flush()" + WAIT + "rows.storage.close()", rows)
    (rows / "sok-lock").unlink()
    writer.process.stdin.write("\n")
    writer.process.stdin.flush()
    assert writer.process.stdout.readline() == "ready\n"
    assert (rows / "sok-lock").exists()
    (rows / "LOCK").unlink()  # RocksDB's own is of no help
    assert run(OPENS, rows) == "locked"
    writer.end()
    assert run(VECTORS, rows) == "-2.0"


def test_a_writer_whose_lock_another_process_holds_writes_nothing(tmp_path):
    rows = tmp_path / "rows"
    writer = Writer(LOSE, TRY, rows)
    for _ in range(20):
        for name in ("sok-lock", "LOCK"):
            (rows / name).unlink(missing_ok=True)
        # A thread of RocksDB's may remove a file of the writer's just now, which locks the folder.
        if run(OPENS, rows) == "open":
            break
    else:
        pytest.fail("the folder stays locked")
    other = Writer("rows = Rows(sys.argv[2]); rows.train()", "rows.storage.close()", rows)
    *refused, vectors = writer.end()[0].splitlines()
    assert len(refused) == 4
    assert all(line.startswith("StorageLockedError") for line in refused)
    assert all(f"process {other.process.pid}" in line for line in refused)
    assert vectors == "-2.0"
    other.end()
    assert run(VECTORS, rows) == "-2.0"


def test_a_writer_whose_manifest_another_program_has_replaced_writes_nothing(tmp_path):
    rocksdict = pytest.importorskip("rocksdict")
    rows = tmp_path / "rows"
    writer = Writer(
        LOSE + "shutil.copytree(sys.argv[2], sys.argv[3])", TRY, rows, tmp_path / "copy"
    )
    # This client of RocksDB knows only of the lock that the copy has set free.
    families = {name: rocksdict.Options(raw_mode=True) for name in ("sok_meta", "sok_pending")}
    database = rocksdict.Rdict(
        str(rows), rocksdict.Options(raw_mode=True), column_families=families
    )
    database[b"\x07written!"] = b"by another"
    database.flush()
    database.close()
    *refused, vectors = writer.end()[0].splitlines()
    assert len(refused) == 4
    assert all("StorageLockedError" in line and "CURRENT" in line for line in refused)
    assert vectors == "-2.0"
    database = rocksdict.Rdict(
        str(rows),
        rocksdict.Options(raw_mode=True),
        access_type=rocksdict.AccessType.read_only(),
    )
    found = dict(database.items())
    database.close()
    assert found.pop(b"\x07written!") == b"by another"
    vectors = {value[16:] for value in found.values()}
    assert len(found) == 1000
    assert vectors == {np.full(16, -1, np.float32).tobytes()}


@pytest.mark.cover(1)
@pytest.mark.parametrize("gives_up", ["closes", "ends"])
def test_a_writer_leaves_the_storage_whole_that_has_come_to_its_path(tmp_path, gives_up):
    rows, away = tmp_path / "rows", tmp_path / "away"
    more = """
del rows
import gc
gc.collect()
print(opens(sys.argv[2], read_only=True))
"""
    writer = Writer(LOSE, TRY + (more if gives_up == "closes" else ""), rows)
    os.rename(rows, away)
    shutil.copytree(away, rows)
    # More files than the writer knows of, under numbers that it may give to its own.
    program = """
        for _ in range(4):
            rows = Rows(sys.argv[2])
            rows.train()
            rows.storage.flush()
            rows.storage.compact()
            rows.storage.close()
    """
    run(program, rows)
    before = sorted((path.name, path.stat().st_size) for path in rows.glob("*.sst"))
    *refused, vectors = writer.end()[0].splitlines()[: 5 if gives_up == "ends" else 6]
    assert len([line for line in refused if line.startswith("FileNotFoundError")]) == 4
    after = sorted((path.name, path.stat().st_size) for path in rows.glob("*.sst"))
    assert after == before
    assert run(VECTORS, rows) == "-5.0"
    assert run(VECTORS, away) == "-1.0"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Has locks of open files fail; see failing_locks.c."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to have locks fail")
    built = tmp_path_factory.mktemp("library") / "failing_locks.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", built, LIBRARY], check=True)
    return built


def test_a_system_without_locks_of_open_files_has_others_that_outlive_a_close(tmp_path, library):
    said = run(
        """
        rows = Rows(sys.argv[2])
        rows.train()
        rows.storage.flush()
        shutil.copytree(sys.argv[2], sys.argv[3])
        import json, subprocess
        again = subprocess.run(json.loads(sys.argv[4]), capture_output=True, text=True)
        print(again.stdout, again.stderr, opens(sys.argv[3]))
        rows.storage.close()
        print(opens(sys.argv[2]))
        """,
        tmp_path / "rows",
        tmp_path / "copy",
        json.dumps(command(OPENS, tmp_path / "rows")),
        environment={"LD_PRELOAD": str(library), "SOK_LOCKS": str(errno.EINVAL)},
    )
    assert said.split() == ["locked", "open", "open"]


@pytest.mark.parametrize("without", ["SOK_LOCKS", "SOK_FLOCKS"])
def test_a_file_system_without_locks_is_refused(tmp_path, library, without):
    errors = {"SOK_LOCKS": str(errno.EINVAL), without: str(errno.ENOLCK)}
    said = run(
        """
        try:
            core.Storage(sys.argv[2], None, 1 << 20, False, False)
        except core.StorageError as error:
            print(error)
        """,
        tmp_path / "rows",
        environment={"LD_PRELOAD": str(library), **errors},
    )
    assert "expected a file system with locks" in said
    assert "local disk" in said
