"""The versions of a store on a host: whole, shared by its processes, and of bounded size."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import live_models as live_tests
import pytest
import s3fs
import stored
from faulty_proxy import FaultyProxy
from limits import HANG_S
from tiers import rounds

from sok_embed.serving import Publisher, export, load, prune, push

pytestmark = pytest.mark.usefixtures("cache")

# Copies versions again and again, as a server does that follows.
PULLING = """
import sys
sys.path[:0] = sys.argv[2:]
import stored
while True:
    cache = stored.cache_of(sys.argv[1])
    cache.bring()
    print("brought", flush=True)
"""
FOLLOWING = """
import sys, time
sys.path[:0] = sys.argv[3:]
import stored
from sok_embed.serving import load
with load(sys.argv[1], follow=True, poll_seconds=0.1) as live:
    print(*live.version, stored.told_by(live), flush=True)
    while live.version != (1, int(sys.argv[2])):
        time.sleep(0.01)
    print(*live.version, stored.told_by(live), flush=True)
"""
HERE = os.path.dirname(os.path.abspath(__file__))


def started(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments), HERE, os.path.dirname(HERE)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def proxied(s3, bucket, monkeypatch):
    """A proxy before a store, which clients ask instead of it."""
    with FaultyProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
        s3fs.S3FileSystem.clear_instance_cache()


def bytes_of(cache):
    return sum(len(each) for each in stored.files_in(cache).values())


def test_versions_that_nobody_uses_make_room(cache, monkeypatch, tmp_path):
    url = "memory://room/served"
    stored.published(tmp_path / "served", deltas=2, exports=6)
    push(tmp_path / "served", url)
    size = bytes_of(tmp_path / "served" / "1")
    monkeypatch.setenv("SOK_EMBED_CACHE_BYTES", str(3 * size + size // 2))
    (root,) = [stored.cache_of(url).root]

    def there():
        assert bytes_of(cache) <= 3.5 * size + 100
        return {name for name in os.listdir(root) if name.isdigit()}

    first = load(url, version=(1, 2))
    for number in (2, 3, 4):
        load(url, version=(number, 2))
    assert "1" in there() and "4" in there() and "2" not in there()
    snapshot = load(url, version=(2, 1)).snapshot
    load(url, version=(3, 1))
    assert there() == {"1", "2", "3"}
    # What is in use stays, and then there is no room.
    third = load(url, version=(3, 0))
    with pytest.raises(OSError, match=r"Expected room for \d+ bytes .*SOK_EMBED_CACHE_BYTES"):
        load(url)
    assert there() == {"1", "2", "3"}
    third.close()
    assert [stored.told_by(each) for each in (first, third)] == [2, 4]
    ids = stored.IDS
    answer = snapshot(ids=ids)["output_0"].numpy()
    assert live_tests.version_of(answer, ids, live_tests.versions_to(9)) == 3
    del first, third, snapshot
    assert stored.told_by(load(url)) == 12
    assert "6" in there()


def test_versions_of_other_urls_make_room_too(cache, monkeypatch, tmp_path):
    stored.published(tmp_path / "served", deltas=1)
    size = bytes_of(tmp_path / "served")
    monkeypatch.setenv("SOK_EMBED_CACHE_BYTES", str(2 * size + size // 2))
    for number in range(5):
        url = f"memory://others/{number}"
        push(tmp_path / "served", url)
        assert stored.told_by(load(url)) == 1
        assert bytes_of(cache) <= 2.5 * size + 500
    # Somebody has emptied a bucket and begun anew.
    files = stored.fsspec.filesystem("memory")
    files.rm("/others/4", recursive=True)
    stored.published(tmp_path / "anew", deltas=3)
    push(tmp_path / "anew", "memory://others/4")
    assert stored.told_by(load("memory://others/4")) == 3


def test_sizes_and_folders_that_are_none_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SOK_EMBED_CACHE_BYTES", "much")
    with pytest.raises(ValueError, match="SOK_EMBED_CACHE_BYTES to be a positive number of bytes"):
        load("memory://sizes/served")
    monkeypatch.delenv("SOK_EMBED_CACHE_BYTES")
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOK_EMBED_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="Set SOK_EMBED_CACHE to another folder"):
        load("memory://sizes/served")


def test_processes_of_a_host_copy_each_file_once(proxied, bucket):
    url = f"s3://{bucket}/served"
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)
    export(model, url)
    publisher = Publisher(model, url)
    told.advance(model)
    publisher.publish()
    proxied.asked.clear()
    followers = [started(FOLLOWING, url, 5) for _ in range(2)]
    assert [each.stdout.readline() for each in followers] == ["1 1 1\n"] * 2
    for _ in range(4):
        told.advance(model)
        publisher.publish()
    assert [each.stdout.readline() for each in followers] == ["1 5 5\n"] * 2
    assert [each.wait(HANG_S) for each in followers] == [0, 0]
    copied = {
        path: count
        for (method, path), count in proxied.asked.items()
        if method == "GET" and path.endswith((".safetensors", ".pb", ".index"))
    }
    assert len(copied) > 15 and set(copied.values()) == {1}


def test_a_look_takes_two_requests(proxied, bucket):
    url = f"s3://{bucket}/served"
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)
    export(model, url)
    live = load(url)
    for _ in range(2):
        proxied.asked.clear()
        live.update()
        assert sum(proxied.asked.values()) == 2
    proxied.asked.clear()
    live.deltas_behind()
    assert sum(proxied.asked.values()) == 1
    publisher = Publisher(model, url)
    told.advance(model)
    publisher.publish()
    proxied.asked.clear()
    told.advance(model)
    publisher.publish()
    files = 2 * 2 + 1  # of two tables rows and keys that went, and the weights
    sent = sum(count for (method, _), count in proxied.asked.items() if method == "PUT")
    assert files - 2 <= sent - 2 <= files  # the manifest and CURRENT.json too
    assert sum(proxied.asked.values()) - sent <= 7
    print(proxied.asked)


def test_a_process_that_is_killed_leaves_whole_versions(proxied, bucket, cache, tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    url = f"s3://{bucket}/served"
    stored.published(tmp_path / "served", deltas=8, exports=2)
    push(tmp_path / "served", url)
    whole = {
        name: each
        for name, each in stored.files_in(tmp_path / "served").items()
        if name.startswith("2/")
    }
    root = stored.cache_of(url).root
    proxied.slow_seconds, proxied.rates = 0.02, {"slow": 1}
    begun = None
    for _ in range(rounds(2, 60)):
        process = started(PULLING, url)
        while not os.listdir(root) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 1.5))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it has ended by itself"
        process.stdout.close()
        found = stored.files_in(tmp_path / "cache" / os.path.basename(root))
        found = {
            name: each
            for name, each in found.items()
            if not any(part.startswith(".") for part in name.split("/"))
            and not name.endswith(".tmp")  # it takes the place of a file as a whole
        }
        stored.assert_part_of(found, whole)
        if len(found) == len(whole):
            stored.shutil.rmtree(root)
            os.makedirs(root)
            begun = True
    proxied.rates = {}
    assert stored.told_by(load(url)) == 16
    hidden = [name for name in os.listdir(root) if name.startswith(".") and name != ".looked"]
    assert hidden == []
    assert not [name for name in os.listdir(f"{root}/2/deltas") if name.startswith(".")]
    print("whole once" if begun else "never whole")


def test_a_push_that_is_killed_shows_whole_versions_and_goes_on(proxied, bucket, tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    stored.published(tmp_path / "served", deltas=3, exports=2)
    whole = stored.files_in(tmp_path / "served")
    for number in range(rounds(2, 40)):
        url = f"s3://{bucket}/{number}"
        for _ in range(3):
            proxied.slow_seconds, proxied.rates = 0.05, {"slow": 1}
            command = [sys.executable, "-m", "sok_embed", "push", tmp_path / "served", url]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.5, 5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            proxied.rates = {}
            stored.assert_part_of(stored.visible(url, tmp_path / "visible"), whole)
        assert push(tmp_path / "served", url) == (2, 3)
        assert stored.visible(url, tmp_path / "visible") == whole


def test_a_version_that_is_removed_while_it_is_used_answers_on(bucket, s3):
    url = f"s3://{bucket}/served"
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)
    export(model, url)
    publisher = Publisher(model, url)
    told.advance(model)
    publisher.publish()
    with load(url, follow=True, poll_seconds=0.05) as live, load(url, version=(1, 1)) as pinned:
        export(model, url)
        prune(url, keep=1)
        end = time.monotonic() + 30
        while live.version != (2, 0) and time.monotonic() < end:
            assert stored.told_by(pinned) == stored.told_by(live) == 1
        assert live.version == (2, 0) and stored.told_by(live) == 1
        live.roll_back((1, 0))
        assert stored.told_by(live) == 0 and stored.told_by(pinned) == 1
        assert pinned.deltas_behind() == 0


def test_a_process_ends_though_a_store_does_not_answer(bucket, s3):
    url = f"s3://{bucket}/served"
    stored_model = live_tests.telling()
    live_tests.Told().put(stored_model)
    export(stored_model, url)
    with FaultyProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        program = f"""
import sys, time
sys.path[:0] = sys.argv[1:]
from sok_embed.serving import load
live = load("{url}", follow=True, poll_seconds=0.05)
print("serves", flush=True)
sys.stdin.readline()
"""
        process = subprocess.Popen(
            [sys.executable, "-c", program, HERE, os.path.dirname(HERE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "AWS_ENDPOINT_URL": proxy.url},
        )
        assert process.stdout.readline() == "serves\n"
        proxy.rates, proxy.slow_seconds = {"slow": 1}, 1000
        time.sleep(1)
        begun = time.monotonic()
        process.communicate("end\n", timeout=HANG_S)
        assert process.returncode == 0
        assert time.monotonic() - begun < 20
        proxy.slow_seconds = 0
