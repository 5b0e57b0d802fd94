"""Checkpoints in an object store are as good as those of a folder, whatever the store does."""

import fnmatch
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import fsspec
import held_state
import keras
import numpy as np
import object_store
import pytest
import s3fs
import tensorflow as tf
from fsspec.implementations.memory import MemoryFileSystem

import sok_embed as sok
from sok_embed.callbacks import BackupAndRestore
from sok_embed.checkpoint import Checkpoint, CheckpointManager, manifest
from sok_embed.checkpoint.object_store import StoreError, StoreFolder
from sok_embed.checkpoint.places import place_of


class Faults:
    """Has one of the next requests fail, before it has done something or after.

    Attributes:
        after: So many requests; `None`: none fails.
        done: Whether the request that fails is carried out.
        asked: How many there were.
    """

    def __init__(self):
        self.after, self.done, self.asked = None, False, 0

    def plan(self, after, done=False):
        self.after, self.done, self.asked = after, done, 0

    def due(self):
        self.asked += 1
        return self.asked - 1 == self.after


FAULTS = Faults()


class FaultyS3(s3fs.S3FileSystem):
    protocol = ("faulty",)

    async def _call_s3(self, method, *arguments, **more):
        due = FAULTS.due()
        if due and not FAULTS.done:
            raise ConnectionError("the store has closed the connection")
        answer = await super()._call_s3(method, *arguments, **more)
        if due:
            raise ConnectionError("the answer was lost")
        return answer


class FaultyMemory(MemoryFileSystem):
    protocol = "faulty-memory"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("faulty-memory://"))


_in_request = threading.local()


def _faulty(name):
    plain = getattr(MemoryFileSystem, name)

    def method(self, *arguments, **more):
        if getattr(_in_request, "name", None):  # a request that another one consists of
            return plain(self, *arguments, **more)
        due = FAULTS.due()
        if due and not FAULTS.done:
            raise ConnectionError("the store has closed the connection")
        _in_request.name = name
        try:
            answer = plain(self, *arguments, **more)
        finally:
            _in_request.name = None
        if due:
            raise ConnectionError("the answer was lost")
        return answer

    return method


for _name in ("ls", "info", "find", "cat_file", "pipe_file", "put_file", "get_file", "rm"):
    setattr(FaultyMemory, _name, _faulty(_name))
fsspec.register_implementation("faulty", FaultyS3)
fsspec.register_implementation("faulty-memory", FaultyMemory)


@pytest.fixture(scope="module")
def s3():
    """A client of a store; its variables are in the environment."""
    with object_store.served() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield s3fs.S3FileSystem(use_listings_cache=False)
        FaultyS3.clear_instance_cache()


@pytest.fixture
def bucket(s3, request):
    """The name of a bucket with nothing in it."""
    name = f"bucket-{abs(hash(request.node.name))}"
    s3.mkdir(name)
    return name


@pytest.fixture(params=["s3", "memory"])
def url(request):
    """Where there is nothing yet, in a store of each kind."""
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/runs/run7"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return "memory://runs/run7"


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Where files lie on their way to a store and from there: nothing of them stays."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    FAULTS.plan(None)
    yield folder
    assert not list(folder.iterdir())


def files_below(url):
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return [path.removeprefix(root + "/") for path in files.find(root)]


def one_table(folder, rows=50, **arguments):
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    table.assign(np.arange(rows), np.ones([rows, 4], np.float32))
    return table, CheckpointManager(Checkpoint(table=table), folder, **arguments)


def restored(folder):
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    Checkpoint(table=table).restore(folder)
    return held_state.contents_of(table)


def last_restored(folder):
    """The step that a new process goes on from, and its rows."""
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    manager = CheckpointManager(Checkpoint(table=table), folder)
    found = manager.restore_or_initialize()
    return int(found[-9:]), held_state.contents_of(table)


def steps_of(manager):
    return [int(folder[-9:]) for folder in manager.checkpoints]


def test_everything_comes_back_bit_for_bit(url, tmp_path):
    model = held_state.every_kind(tmp_path / "rows")
    held_state.train(model, 2)
    assert Checkpoint(model).save(f"{url}/final/") == f"{url}/final"
    expected = held_state.held_by(model)
    keras.utils.clear_session(free_memory=False)
    other = held_state.every_kind(tmp_path / "others")
    held_state.train(other)
    assert Checkpoint(other).restore(f"{url}/final") == 8
    held_state.assert_same(held_state.held_by(other), expected)


def test_a_store_holds_the_files_that_a_folder_holds(url, tmp_path):
    model = held_state.every_kind()
    held_state.train(model)
    for place in (url, tmp_path / "folder"):
        for _ in range(2):  # the second takes the place of the first
            Checkpoint(model).save(place)
    of_folder = [path.name for path in (tmp_path / "folder").iterdir()]
    without_number = [
        sorted(re.sub("[0-9a-f]{16}", "*", name) for name in names)
        for names in (files_below(url), of_folder)
    ]
    assert without_number[0] == without_number[1] and len(of_folder) == 4
    read = manifest.read(url)
    assert {record.name for record in read.files + read.rows} < set(files_below(url))


def test_checkpoints_are_kept_and_go_as_in_a_folder(url, tmp_path):
    kept = {}
    for place in (url, str(tmp_path / "run")):
        table, manager = one_table(place, max_to_keep=2, keep_every=10)
        assert manager.restore_or_initialize() is None and manager.latest_checkpoint is None
        kept[place] = []
        for step in (0, 4, 12, 13, 20, 15):
            table.assign([step], np.full([1, 4], step, np.float32))
            assert manager.save(step) == manager.latest_checkpoint == f"{place}/step-{step:09d}"
            kept[place].append(steps_of(manager))
        table.assign([70], np.ones([1, 4], np.float32))
        assert manager.restore_or_initialize() == f"{place}/step-000000015"
        assert table.size() == 50
        manager.remove_all()
        assert manager.checkpoints == []
    assert kept[url] == kept[str(tmp_path / "run")] and kept[url][-1] == [0, 12, 20, 15]
    assert files_below(url) == []


def test_names_that_begin_alike_are_not_taken_for_each_other(url):
    _, manager = one_table(f"{url}/a", max_to_keep=1)
    other = CheckpointManager(Checkpoint(v=tf.Variable(1.0)), f"{url}/ab")
    other.save(1)
    for step in (1_000_000_000, 100_000_000):  # step-1000000000 begins as step-100000000
        manager.save(step)
    manager.save(7)
    assert steps_of(manager) == [7]
    manager.remove_all()
    assert steps_of(other) == [1]


@pytest.mark.parametrize("on_background", [False, True])
def test_every_checkpoint_of_a_chain_has_the_state_of_its_step(url, on_background):
    chance = np.random.default_rng(3)
    table, manager = one_table(
        url, max_to_keep=None, max_deltas=2, save_on_background=on_background
    )
    states = []
    for step in range(6):
        manager.save(step, incremental=True)
        states.append(held_state.contents_of(table))
        keys = chance.integers(0, 80, 10)
        table.assign(np.unique(keys), chance.normal(size=[len(np.unique(keys)), 4]))
        table.remove(chance.integers(0, 80, 5))
    manager.wait()
    parents = [manifest.read(folder).parent for folder in manager.checkpoints]
    assert [parent and int(parent.folder[-9:]) for parent in parents] == [None, 0, 1, None, 3, 4]
    for step in range(6):
        held_state.assert_same(restored(f"{url}/step-{step:09d}"), states[step])
    manager._max_to_keep = 1
    manager.save(6)
    manager.wait()
    assert steps_of(manager) == [6]


def test_fit_goes_on_from_a_store(url, tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def fit(*more):
        keras.utils.clear_session(free_memory=False)
        model = held_state.every_kind()
        callbacks = [BackupAndRestore(url), *more]
        return model.fit(
            held_state.KEYS, held_state.TARGETS, batch_size=12, epochs=4, verbose=0,
            callbacks=callbacks,
        )  # fmt: skip

    with pytest.raises(InterruptedError):
        fit(Interrupt())
    assert fit().epoch == [2, 3]
    assert files_below(url) == []


ENDS_AFTER_A_SAVE = """
    import sys, time
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    import sok_embed as sok
    from sok_embed.checkpoint import object_store

    put = object_store.StoreFolder.put

    def late(*arguments):
        time.sleep(2)  # the main thread has ended by now
        if "fail" in sys.argv:
            raise OSError("no such luck")
        ThreadPoolExecutor(1).submit(put, *arguments).result()

    object_store.StoreFolder.put = late
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    table.assign(np.arange(50), np.ones([50, 4], np.float32))
    checkpoint = sok.checkpoint.Checkpoint(table=table)
    sok.checkpoint.CheckpointManager(checkpoint, sys.argv[1], save_on_background=True).save(7)
"""


@pytest.mark.parametrize("how", ["well", "fail"])
def test_a_process_that_ends_after_a_save_leaves_it_whole_or_says_so(bucket, how):
    url = f"s3://{bucket}/run"
    command = [sys.executable, "-c", textwrap.dedent(ENDS_AFTER_A_SAVE), url, how]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    if how == "well":
        assert len(restored(f"{url}/step-000000007")["keys"]) == 50
    said = "Expected a whole checkpoint in" in ended.stderr and "no such luck" in ended.stderr
    assert said == (how == "fail"), ended.stderr


def test_a_killed_process_leaves_a_scratch_folder_for_the_next_one(scratch):
    left = scratch / ".sok-embed-checkpoint.abc.saving"
    left.mkdir()
    (left / "rows").write_bytes(b"part")
    Checkpoint(v=tf.Variable(1.0)).save("memory://x")
    assert not left.exists()


# A store that fails.


def one_fault(url, after, done):
    """Saves while a request fails; the newest whole checkpoint is one of the two last states."""
    table, manager = one_table(url, max_to_keep=2)
    for step in (1, 2):
        table.assign([step], np.full([1, 4], step, np.float32))
        manager.save(step, incremental=True)
    before = held_state.contents_of(table)
    table.assign([60, 3], np.full([2, 4], 3, np.float32))
    table.remove([9])
    now = held_state.contents_of(table)
    FAULTS.plan(after, done)
    failed = False
    try:
        manager.save(3, incremental=True)
    except OSError as error:
        assert re.search(r"Expected .*(has closed the connection|answer was lost)", str(error))
        failed = True
    asked = FAULTS.asked
    FAULTS.plan(None)
    step, rows = last_restored(url)
    held_state.assert_same(rows, now if step == 3 else before)
    assert failed or step == 3
    table.assign([61], np.full([1, 4], 4, np.float32))
    manager.save(4, incremental=True)
    step, rows = last_restored(url)
    assert step == 4
    held_state.assert_same(rows, held_state.contents_of(table))
    manager.save(5)
    named = {
        f"{os.path.basename(folder)}/{name}"
        for folder in manager.checkpoints
        for name in manifest.read(folder).names
    }
    assert set(files_below(url)) == named  # nothing of what failed has stayed
    manager.remove_all()
    return asked, failed


@pytest.mark.filterwarnings("ignore:Expected to remove")
@pytest.mark.parametrize("done", [False, True], ids=["refused", "answer_lost"])
def test_whatever_request_fails_the_newest_whole_checkpoint_is_right(done):
    asked, _ = one_fault("faulty-memory://run", None, done)
    failures = [one_fault("faulty-memory://run", after, done)[1] for after in range(asked)]
    assert 10 < sum(failures) <= asked
    assert failures[0]


@pytest.mark.filterwarnings("ignore:Expected to remove")
def test_whatever_request_of_s3_fails_the_newest_whole_checkpoint_is_right(bucket):
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    asked, _ = one_fault(f"faulty://{bucket}/run", None, False)
    for _ in range(6):
        one_fault(f"faulty://{bucket}/run", chance.randrange(asked), chance.random() < 0.5)


def test_a_store_that_does_not_answer_is_no_empty_one():
    table, manager = one_table("faulty-memory://unanswered")
    for step in (5, 9, 7):  # the last one is not that of the greatest step
        manager.save(step)
    before = held_state.contents_of(table)
    FAULTS.plan(None)
    assert manager.restore_or_initialize().endswith("step-000000007")
    for after in range(FAULTS.asked):
        FAULTS.plan(after)
        with pytest.raises(StoreError, match="Expected to .*the store has closed the connection"):
            manager.restore_or_initialize()
        held_state.assert_same(held_state.contents_of(table), before)


# What is not as it was written.


def damaged(files, path, how):
    whole = files.cat_file(path)
    if how == "missing":
        files.rm_file(path)
    elif how == "cut":
        files.pipe_file(path, whole[:-1])
    else:
        at = len(whole) // 2
        files.pipe_file(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
@pytest.mark.parametrize("name", ["rows-*", "dense-*.index", "dense-*.data*", "manifest.json"])
def test_a_damaged_object_is_found_before_anything_changes(url, name, how):
    table, manager = one_table(url)
    manager.save(1, incremental=True)
    table.assign([2], np.full([1, 4], 2, np.float32))
    manager.save(2, incremental=True)
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    # Of the older checkpoint only rows are read, and the manifest.
    folder = f"{root}/step-00000000{2 if name.startswith('dense') else 1}"
    (path,) = fnmatch.filter(files.find(folder), f"*/{name}")
    damaged(files, path, how)
    table.assign([3], np.full([1, 4], 3, np.float32))
    before = held_state.contents_of(table)
    with pytest.raises(sok.kv.CorruptionError, match=f"{url}.*Nothing was restored"):
        manager.restore_or_initialize()
    held_state.assert_same(held_state.contents_of(table), before)


def test_what_manifests_name_lies_beside_them(url):
    _, manager = one_table(url)
    folder = manager.save(1)
    content = json.loads(place_of(folder).read("manifest.json"))
    content["rows"][0]["name"] = f"../{content['rows'][0]['name']}"
    del content["checksum"]
    content["checksum"] = manifest._checksum(content)
    place_of(folder).write("manifest.json", json.dumps(content).encode(), "unused")
    with pytest.raises(sok.kv.CorruptionError, match="names of files in the folder"):
        restored(folder)


# What cannot be right.


def test_a_bucket_that_is_not_there_is_told_before_anything_is_done(s3):
    table, manager = one_table("s3://no-such-bucket/run")
    calls = (
        lambda: manager.save(1),
        manager.restore_or_initialize,
        lambda: manager.checkpoints,
        lambda: Checkpoint(table=table).save("s3://no-such-bucket/final"),
        lambda: Checkpoint(table=table).restore("s3://no-such-bucket/final"),
    )
    for call in calls:
        with pytest.raises(StoreError, match="Expected a bucket.*Received: none.*'no-such-bucket'"):
            call()


def test_an_empty_bucket_has_no_checkpoint(bucket):
    table, manager = one_table(f"s3://{bucket}")
    assert manager.restore_or_initialize() is None
    with pytest.raises(FileNotFoundError, match=f"Expected a checkpoint in 's3://{bucket}/x'"):
        restored(f"s3://{bucket}/x")
    manager.save(1)
    assert steps_of(manager) == [1]


def test_without_credentials_the_error_says_so(bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(StoreError, match=f"'s3://{bucket}/run.*credentials"):
            Checkpoint(v=tf.Variable(1.0)).save(f"s3://{bucket}/run")
        with pytest.raises(StoreError, match=f"'s3://{bucket}/run.*credentials"):
            CheckpointManager(Checkpoint(v=tf.Variable(1.0)), f"s3://{bucket}/run").save(1)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_store_out_of_reach_is_an_os_error(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(StoreError, match="Could not connect"):
            Checkpoint(v=tf.Variable(1.0)).save("s3://bucket/run")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sftp://host/run", "Expected an object store"),
        ("https://host/run", "Expected an object store"),
        ("s3://", "Expected a URL"),
        ("s3://bucket//run", "Expected a URL"),
        ("s3://bucket/../run", "Expected a URL"),
        ("s3://bucket/run*", "Expected a URL"),
        ("s3://bucket/run[1]", "Expected a URL"),
        ("simplecache::s3://bucket/run", "begins with its scheme"),
        ("s3://bucket/run::zip://x", "Expected a URL"),
        (Path("s3://bucket/run"), "a URL as a string"),
        ("nostore://bucket/run", "a scheme that fsspec knows"),
    ],
)
def test_paths_that_lead_to_no_store_are_refused(path, text):
    checkpoint = Checkpoint(v=tf.Variable(1.0))
    for call in (checkpoint.save, checkpoint.restore, BackupAndRestore):
        with pytest.raises(ValueError, match=text):
            call(path)
    with pytest.raises(ValueError, match=text):
        CheckpointManager(checkpoint, path)


@pytest.mark.parametrize(("module", "url"), [("fsspec", "memory://x"), ("gcsfs", "gs://bucket/x")])
def test_what_is_not_installed_is_named(monkeypatch, module, url):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"Expected .*{url}.*Install"):
        Checkpoint(v=tf.Variable(1.0)).save(url)


def test_a_url_of_the_file_system_is_its_folder(tmp_path):
    assert Checkpoint(v=tf.Variable(1.0)).save(f"file://{tmp_path}/x") == str(tmp_path / "x")
    assert (tmp_path / "x/manifest.json").exists()


def test_removing_many_at_once_that_leaves_some_removes_these_too(monkeypatch):
    folder = StoreFolder("memory://some")
    for name in ("a", "b", "manifest.json"):
        folder.write(name, b"x", "unused")
    monkeypatch.setattr(MemoryFileSystem, "rm", lambda self, paths: self.rm_file(paths[0]))
    folder.remove_all("manifest.json")
    assert folder.names() == []
