"""Every name that a file system has works as a path; what cannot be opened says why."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from kv_rows import keys, ones, peek, run_python, sgd

from sok_embed import DynamicEmbedding, cli, kv

NOT_UTF8 = os.fsdecode(b"caf\xe9-\xff")


@pytest.fixture
def foreign(tmp_path):
    try:
        (tmp_path / NOT_UTF8).mkdir()
    except OSError:
        pytest.skip("the file system takes names in UTF-8 only")
    return tmp_path / NOT_UTF8


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "kind", [str, os.fsencode, lambda path: path], ids=["str", "bytes", "path"]
)
def test_names_that_are_no_utf8_work_everywhere(foreign, kind):
    def at(name):
        return kind(foreign / name) if kind is not str else str(foreign / name)

    with kv.Storage(at("rows")) as storage:
        assert storage.path == str(foreign / "rows")
        sgd(storage).apply_gradients(keys(1), ones(1))
        assert storage.dump(at("dump")) == 1
        storage.checkpoint(at("copy"))
        assert kv.Storage.from_config(storage.get_config()) is storage
        assert "rows" in repr(storage)
        with pytest.raises(kv.StorageLockedError):
            kv.Storage(at("rows"))
        with pytest.raises(ValueError, match="outside of the folder"):
            storage.dump(at("rows/x"))
    for name in ("rows", "copy"):
        with kv.Storage(at(name), read_only=True) as storage:
            assert peek(sgd(storage), 1).tolist() == [[-1, -1]]
    with kv.Storage(at("loaded")) as storage:
        assert storage.load(at("dump")) == 1


def test_the_command_takes_names_that_are_no_utf8(foreign):
    with kv.Storage(foreign / "rows") as storage:
        sgd(storage).apply_gradients(keys(1), ones(1))
    folder, file = str(foreign / "rows"), str(foreign / "dump")
    for arguments in (
        ["inspect", folder],
        ["get", folder, "0", "1"],
        ["dump", folder, file],
        ["load", folder, file],
        ["compact", folder],
    ):
        result = CliRunner().invoke(cli.main, arguments)
        assert result.exit_code == 0, (arguments, result.output, result.exception)
    shown = CliRunner().invoke(cli.main, ["inspect", folder, "--json"])
    assert os.fsencode(json.loads(shown.output)["path"]) == os.fsencode(folder)
    refused = CliRunner().invoke(cli.main, ["inspect", str(foreign / "none")])
    assert refused.exit_code == 1
    assert "none" in refused.output


def test_a_layer_takes_a_folder_whose_name_is_no_utf8(foreign):
    with kv.Storage(foreign / "rows") as storage:
        layer = DynamicEmbedding(2, storage=storage)
        layer.table.assign([3], np.ones((1, 2), np.float32))
        assert layer.table.lookup([3]).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("path", "message"),
    [("a\0b", "without NUL"), ("\ud800", "cannot be encoded"), (b"a\0b", "without NUL")],
)
def test_what_no_file_system_has_is_refused(storage, path, message):
    for call in (kv.Storage, storage.dump, storage.load, storage.load_damo, storage.checkpoint):
        with pytest.raises(ValueError, match=message):
            call(path)


@pytest.mark.parametrize("length", [256, 5000])
def test_a_name_that_is_too_long_is_an_error_that_says_so(storage, tmp_path, length):
    path = tmp_path / ("x" * length)
    for call in (kv.Storage, storage.dump, storage.load, storage.load_damo, storage.checkpoint):
        with pytest.raises((OSError, ValueError), match="(?i)too long"):
            call(path)


def test_a_checkpoint_in_the_storage_itself_is_refused(storage, tmp_path):
    (tmp_path / "link").symlink_to(storage.path)
    for path in (f"{storage.path}/x", tmp_path / "link" / "x"):
        with pytest.raises(ValueError, match="outside of the folder of the storage"):
            storage.checkpoint(path)
    storage.checkpoint(tmp_path / "copy")


PERMISSIONS = """
import os, stat, sys, tempfile
import numpy as np
from sok_embed import kv

NOBODY = 65534
root = tempfile.mkdtemp(dir=sys.argv[1] if os.getuid() else None)
os.chmod(root, 0o755)

def made(name):
    with kv.Storage(f"{root}/{name}") as storage:
        embedding = kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), 2)
        embedding.assign(np.arange(9, dtype=np.uint64), np.ones((9, 2), np.float32))
        storage.dump(f"{root}/{name}.dump")
        storage.checkpoint(f"{root}/{name}-copy")
    return f"{root}/{name}"

closed, listed, hidden, mine = (made(name) for name in ("closed", "listed", "hidden", "mine"))
os.chmod(f"{root}/closed.dump", 0)
os.chmod(f"{root}/closed", 0)
os.chmod(f"{root}/listed", 0o555)
os.chmod(f"{root}/hidden/CURRENT", 0)
os.mkdir(f"{root}/locked", 0o555)
if os.getuid() == 0:
    for folder, _, files in os.walk(mine):
        for name in [folder, *(f"{folder}/{file}" for file in files)]:
            os.chown(name, NOBODY, NOBODY)
    os.setgid(NOBODY)
    os.setuid(NOBODY)
storage = kv.Storage(mine)
calls = {
    "closed": lambda: kv.Storage(closed),
    "closed, to read": lambda: kv.Storage(closed, read_only=True),
    "in a closed one": lambda: kv.Storage(f"{closed}/rows"),
    "listed": lambda: kv.Storage(listed),
    "hidden": lambda: kv.Storage(hidden),
    "hidden, to read": lambda: kv.Storage(hidden, read_only=True),
    "new": lambda: kv.Storage(f"{root}/locked/new"),
    "dump": lambda: storage.dump(f"{root}/locked/dump"),
    "load": lambda: storage.load(f"{root}/closed.dump"),
    "load_damo": lambda: storage.load_damo(f"{root}/closed.dump"),
    "checkpoint": lambda: storage.checkpoint(f"{root}/locked/copy"),
}
for name, call in calls.items():
    try:
        call()
        print(name, "was allowed")
    except PermissionError as error:
        print(name, "refused", root in str(error))
    except Exception as error:
        print(name, type(error).__name__, error)
storage.close()
"""


def test_what_the_user_may_not_use_is_a_permission_error(tmp_path):
    result = run_python(PERMISSIONS, tmp_path)
    lines = result.stdout.splitlines()
    assert len(lines) == 11, result.stderr
    assert [line for line in lines if not line.endswith(" refused True")] == []


def test_a_storage_of_a_relative_path_survives_a_change_of_directory(tmp_path, monkeypatch):
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with kv.Storage("rows") as storage:
        monkeypatch.chdir(tmp_path / "elsewhere")
        embedding = sgd(storage)
        for call in (storage.flush, storage.compact, lambda: None):
            embedding.apply_gradients(keys(1), ones(1))
            call()
        with kv.Storage("rows") as other:  # another folder of that name, without rows
            sgd(other).apply_gradients(keys(2), ones(1))
    for name, key, value in (("here", 1, -3), ("elsewhere", 2, -1)):
        with kv.Storage(tmp_path / name / "rows", read_only=True) as storage:
            assert peek(sgd(storage), 1, 2)[2 - key].tolist() == [0, 0]
            assert peek(sgd(storage), key).tolist() == [[value, value]]


def test_the_end_of_the_process_closes_it_from_another_directory(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    program = """
import os, sys
import numpy as np
from sok_embed import kv
os.chdir(sys.argv[1])
embedding = kv.Embedding(
    kv.Storage("rows"), kv.Optimizer("sgd", gamma=1), kv.Initializer("zeros"), dimension=2
)
embedding.apply_gradients(np.array([1], np.uint64), np.ones([1, 2], np.float32))
os.chdir("elsewhere")
"""
    done = run_python(program, tmp_path)
    assert done.returncode == 0, done.stderr
    with kv.Storage(tmp_path / "rows", read_only=True) as storage:
        assert peek(sgd(storage), 1).tolist() == [[-1, -1]]


def test_no_path_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="a folder"):
        kv.Storage("")
    assert os.listdir() == []


def test_errors_of_ops_show_names_that_are_not_utf8(foreign):
    storage = kv.Storage(foreign / "rows")
    layer = DynamicEmbedding(2, storage=storage)
    layer(np.arange(3))
    storage.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"caf\\xe9-\\xff/rows' is closed"):
        layer(np.arange(3))
