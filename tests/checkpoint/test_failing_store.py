"""Whatever a store does or has lost, what is restored is whole, or an error says why."""

import fnmatch
import json
import os
import random
import re

import fsspec
import held_state
import numpy as np
import pytest
from faulty_stores import FAULTS, FaultyS3
from one_table import files_below, last_restored, one_table, restored
from tiers import long, rounds

import sok_embed as sok
from sok_embed.checkpoint.files import manifest
from sok_embed.files.object_store import StoreError
from sok_embed.files.place_of import place_of

pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture(autouse=True)
def no_fault():
    """Nothing fails unless a test says so."""
    FAULTS.plan(None)
    yield
    FAULTS.plan(None)
    FaultyS3.clear_instance_cache()


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


@pytest.mark.cover(1)
@pytest.mark.filterwarnings("ignore:Expected to remove")
@pytest.mark.parametrize("done", [False, True], ids=["refused", "answer_lost"])
def test_whatever_request_fails_the_newest_whole_checkpoint_is_right(done):
    asked, _ = one_fault("faulty-memory://run", None, done)
    stride = rounds(3, 1)  # `make test` has each third request fail
    failures = [one_fault("faulty-memory://run", n, done)[1] for n in range(0, asked, stride)]
    assert asked > 3 and any(failures)


@pytest.mark.long
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


def damaged(files, path, how):
    whole = files.cat_file(path)
    if how == "missing":
        files.rm_file(path)
    elif how == "cut":
        files.pipe_file(path, whole[:-1])
    else:
        at = len(whole) // 2
        files.pipe_file(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


@pytest.mark.cover("values")
@pytest.mark.parametrize(
    ("how", "url"),
    [long("missing", "s3"), ("missing", "memory"), ("cut", "memory"), ("flipped", "memory")],
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
    content = json.loads(place_of(folder).read("manifest.json", 1 << 20))
    content["rows"][0]["name"] = f"../{content['rows'][0]['name']}"
    del content["checksum"]
    content["checksum"] = manifest.checksum_of_json(content)
    place_of(folder).write("manifest.json", json.dumps(content).encode(), "unused")
    with pytest.raises(sok.kv.CorruptionError, match=r"as 'rows\[0\]\.name'"):
        restored(folder)
