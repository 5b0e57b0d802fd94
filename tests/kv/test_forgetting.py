"""The bytes of a vector that was removed: where they stay, and that `compact` has them go."""

import os

import numpy as np
import pytest
from kv_rows import keys, sgd

from sok_embed import kv

# A vector whose bytes are nowhere else, and long enough that no chance makes them.
SECRET = np.frombuffer(b"the vector of a user who is to be forgotten, as floats: 0123456", np.uint8)
SECRET = np.frombuffer(SECRET.tobytes().ljust(64, b"!"), np.float32)
MANY = np.arange(1000, 21_000, dtype=np.uint64)


def holders(path):
    """Returns the files of a folder that have the vector, those without a name too."""
    wanted, found = SECRET.tobytes(), []
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                if wanted in file.read():
                    found.append(name)
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{number}"
        try:
            target = os.readlink(link)
        except OSError:
            continue  # the one that has listed them
        if target.startswith(str(path)) and target.endswith(" (deleted)"):
            with open(link, "rb") as file:
                if wanted in file.read():
                    found.append("without a name")
    return found


@pytest.mark.parametrize("durability", ["checkpoint", "update"])
@pytest.mark.parametrize("lies", ["in the log", "in files", "in the spill", "in a closed group"])
def test_the_bytes_are_gone_after_remove_and_compact(tmp_path, durability, lies):
    path = tmp_path / "rows"
    storage = kv.Storage(path, cache_bytes=1 << 20, durability=durability)
    embedding = sgd(storage, 16)
    embedding.assign(keys(7), SECRET[None])
    if lies in ("in files", "in a closed group"):
        storage.flush()
        embedding.assign(MANY, np.zeros([len(MANY), 16], np.float32))
        storage.flush()
    if lies == "in the spill":
        for _ in range(20):  # threads choose the rows that leave the cache
            embedding.assign(MANY, np.zeros([len(MANY), 16], np.float32))
            if "without a name" in holders(path):
                break
        assert "without a name" in holders(path)
    if lies == "in the log":
        storage.flush()
    if lies == "in a closed group":
        storage.close()
        storage = kv.Storage(path, durability=durability)
    assert holders(path), "the test must find what is there"
    with storage:
        assert storage.remove(0, 7) == 1
        storage.compact()
        assert holders(path) == []
    assert holders(path) == []
    with kv.Storage(path, read_only=True) as storage:
        assert not storage.table(0).contains(keys(7)).any()


def test_checkpoints_and_dumps_keep_the_bytes_until_they_go_themselves(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage, 16).assign(keys(7), SECRET[None])
        storage.checkpoint(tmp_path / "copy")
        storage.dump(tmp_path / "dumped")
        storage.remove(0, 7)
        storage.compact()
        assert holders(tmp_path / "rows") == []
        assert holders(tmp_path / "copy") and holders(tmp_path) and storage.groups()[0].rows == 0
    with kv.Storage(tmp_path / "copy") as copy:
        assert copy.remove(0, 7) == 1
        copy.compact()
        assert holders(tmp_path / "copy") == []


def test_the_counts_of_a_key_that_waits_are_forgotten(tmp_path):
    key = 0x0123456789ABCDEF
    with kv.Storage(tmp_path / "rows") as storage:
        admission = kv.FrequencyAdmission(min_count=3)
        sgd(storage, admission=admission).lookup(np.array([key, 5], np.uint64))
    with kv.Storage(tmp_path / "rows") as storage:
        storage.remove(0, key)
        storage.compact()
    bits = (key.to_bytes(8, "little"), key.to_bytes(8, "big"))
    for folder, _, names in os.walk(tmp_path / "rows"):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            assert not any(each in content for each in bits), name
