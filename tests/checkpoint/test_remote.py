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
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

import sok_embed as sok
from sok_embed.callbacks import BackupAndRestore
from sok_embed.checkpoint import Checkpoint, CheckpointManager, manifest
from sok_embed.checkpoint.conversion.convert import convert
from sok_embed.checkpoint.object_store import StoreError, StoreFolder
from sok_embed.checkpoint.places import place_of
from sok_embed.checkpoint.saved import open_saved
from sok_embed.checkpoint.saves import wait_for_writers
from sok_embed.checkpoint.survey import checkpoints_in, listed, pruned
from sok_embed.checkpoint.verify import verify
from sok_embed.cli import main
from sok_embed.scratch import locked_folder


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
# An answer that is lost of another request is as if that had not been carried out.
_CHANGING = ("pipe_file", "put_file", "rm", "rm_file")


def _faulty(name):
    plain = getattr(MemoryFileSystem, name)

    def method(self, *arguments, **more):
        part = getattr(_in_request, "name", None)  # of a request that consists of others
        if part or (FAULTS.done and name not in _CHANGING):
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


for _name in ("ls", "info", "find", "cat_file", "get_file", *_CHANGING):
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
    assert not list(folder.glob(".sok-embed-*"))


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


@pytest.mark.parametrize(
    ("on_background", "url"), [(False, "memory"), (True, "s3")], indirect=["url"]
)
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


@pytest.mark.parametrize("url", ["s3"], indirect=True)
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


class Interruption(keras.callbacks.Callback):
    """Ends a fit after a step, and notes which steps it has seen."""

    def __init__(self, step=None):
        super().__init__()
        self.step = step
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(int(self.model.optimizer.iterations))
        if self.seen[-1] == self.step:
            raise InterruptedError


@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_checkpoint_fit_goes_on_within_an_epoch_from_a_store(url, tmp_path):
    def fit(directory, *callbacks):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((2,), dtype="int64"), sok.DynamicEmbedding(3, seed=1, name="rows"),
             keras.layers.Flatten(), keras.layers.Dropout(0.3, seed=2), keras.layers.Dense(1)]
        )  # fmt: skip
        model.compile("adam", "mse", metrics=["mae"])
        dataset = tf.data.Dataset.from_tensor_slices((held_state.KEYS, held_state.TARGETS))
        history = sok.checkpoint.fit(
            model, dataset.shuffle(48, seed=3).batch(12), directory=directory, epochs=3,
            save_freq=1, incremental=True, callbacks=callbacks, verbose=0,
        )  # fmt: skip
        held = held_state.contents_of(model.get_layer("rows").table)
        del held["update_times"]  # seconds
        for each in (*model.variables, *model.optimizer.variables):
            if "anchor" not in each.path:
                held[each.path] = np.asarray(each)
        return held, history.history

    expected = fit(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        fit(url, Interruption(6))  # the second of four batches of the second epoch
    wait_for_writers()
    own = [name for name in files_below(url) if "/data-00001-of-00001-" in name]
    saved = {os.path.dirname(name) for name in own}
    assert "step-000000005" in saved and len(own) == 2 * len(saved)
    watch = Interruption()
    held, history = fit(url, watch)
    assert watch.seen == list(range(6, 13))
    held_state.assert_same(held, expected[0])
    assert history == expected[1]


ENDS_AFTER_SAVES = """
    import sys, time
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    import sok_embed as sok
    from sok_embed.checkpoint import object_store

    put = object_store.StoreFolder.put

    def late(place, *arguments):
        if "fail" in place.path:
            raise OSError("no such luck")
        time.sleep(1)  # the main thread has ended by now
        ThreadPoolExecutor(1).submit(put, place, *arguments).result()

    object_store.StoreFolder.put = late
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    table.assign(np.arange(50), np.ones([50, 4], np.float32))
    checkpoint = sok.checkpoint.Checkpoint(table=table)
    for name in ("fail", "well"):
        manager = sok.checkpoint.CheckpointManager(
            checkpoint, f"{sys.argv[1]}/{name}", save_on_background=True
        )
        manager.save(7)
"""


def test_a_process_that_ends_after_saves_leaves_them_whole_or_says_so(bucket):
    url = f"s3://{bucket}"
    command = [sys.executable, "-c", textwrap.dedent(ENDS_AFTER_SAVES), url]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(restored(f"{url}/well/step-000000007")["keys"]) == 50
    told = re.findall("Expected a whole checkpoint in '(.*)' when.* Received: (.*)", ended.stderr)
    assert told == [(f"{url}/fail/step-000000007", "no such luck. Call wait after the last save.")]


def test_a_killed_process_leaves_a_scratch_folder_for_the_next_one(scratch):
    left = scratch / ".sok-embed-checkpoint.abc.saving"
    left.mkdir()
    (left / "rows").write_bytes(b"part")
    Checkpoint(v=tf.Variable(1.0)).save("memory://x")
    assert not left.exists()


def test_a_folder_that_another_process_takes_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    opened, taken = os.open, []

    def open_late(path, *arguments):
        if not taken:
            taken.append(path)
            os.rmdir(path)
        return opened(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_late)
        folder, lock = locked_folder(str(tmp_path), "x")
    os.close(lock)
    assert os.path.isdir(folder) and taken != [folder]


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
    assert asked > 3 and any(failures)


@pytest.mark.filterwarnings("ignore:Expected to remove")
def test_whatever_request_of_s3_fails_the_newest_whole_checkpoint_is_right(bucket):
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    asked, _ = one_fault(f"faulty://{bucket}/run", None, False)
    for _ in range(2):
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


@pytest.mark.parametrize(
    ("how", "url"),
    [("missing", "s3"), ("missing", "memory"), ("cut", "memory"), ("flipped", "memory")],
    indirect=["url"],
)
@pytest.mark.parametrize("name", ["rows-*", "dense-*.index", "dense-*.data*", "manifest.json"])
def test_a_damaged_object_is_found_before_anything_changes(url, name, how):
    table, manager = one_table(url)
    manager.save(1, incremental=True)
    table.assign([2], np.full([1, 4], 2, np.float32))
    manager.save(2, incremental=True)
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    # A restore reads the rows and the manifest of the older checkpoint, and no dense weights.
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
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
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


def test_what_reads_folders_alone_refuses_urls(url, tmp_path):
    table, manager = one_table(url)
    folder = manager.save(1)
    before = files_below(url)
    calls = (
        lambda: sok.checkpoint.compact(folder),
        lambda: sok.callbacks.EarlyStopping(restore_best_weights=True, directory=url),
        lambda: verify(folder),
        lambda: open_saved(folder),
        lambda: listed(url),
        lambda: checkpoints_in(folder),
        lambda: pruned(url, 1, None, False),
        lambda: convert(folder, str(tmp_path / "rows.npz"), "npz"),
        lambda: convert(str(tmp_path), f"{url}/rows", "checkpoint"),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"file system that is mounted.*'{url}"):
            call()
    for arguments in (["ls", url], ["verify", folder], ["diff", folder, str(tmp_path)],
                      ["show", folder], ["prune", url, "--keep", "1"], ["compact", folder],
                      ["convert", folder, str(tmp_path / "rows.npz")],
                      ["convert", str(tmp_path), f"{url}/rows.npz"]):  # fmt: skip
        result = CliRunner().invoke(main, ["checkpoint", *arguments])
        assert result.exit_code == 2 and "file system that is mounted" in result.output
    assert files_below(url) == before


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
