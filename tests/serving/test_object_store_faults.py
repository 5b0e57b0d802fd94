"""Whatever request of a store fails, readers see whole versions, and the next call goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import tempfile
import time

import faulty_stores
import fsspec
import keras
import live_models as live_tests
import numpy as np
import pytest
import s3fs
import stored
from faulty_proxy import FaultyProxy
from faulty_stores import FAULTS
from tiers import rounds

import sok_embed as sok
from sok_embed.callbacks import PublishDeltas
from sok_embed.files.object_store import StoreError
from sok_embed.kv import CorruptionError
from sok_embed.serving import Publisher, export, load, prune, push
from sok_embed.serving.store_versions import stored_at

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(autouse=True)
def no_fault():
    """Nothing fails unless a test says so."""
    FAULTS.plan(None)
    yield
    FAULTS.plan(None)
    faulty_stores.FaultyMemory.store.clear()


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """The folder of two exports with three deltas each, which is not to be changed."""
    folder = tmp_path_factory.mktemp("versions") / "served"
    stored.published(folder, deltas=3, exports=2)
    return folder


def each_fault(call, *before):
    """Calls a function again and again, of which another request fails each time.

    Yields whether it failed. All functions get the number of the turn; those of `before` are called
    first, without a fault.
    """
    turn, is_reached = 0, True
    while is_reached:
        is_reached = False
        for done in (False, True):
            for each in before:
                each(turn)
            FAULTS.plan(turn, done)
            try:
                call(turn)
                failed = False
            except StoreError:
                failed = True
            is_reached |= FAULTS.asked > turn
            FAULTS.plan(None)
            yield failed
        turn += rounds(7, 1)  # `make test` has each seventh request fail


def test_a_push_that_is_interrupted_shows_whole_versions_and_goes_on(versions, tmp_path):
    whole = stored.files_in(versions)
    outcomes, states = [], set()
    url = "faulty-memory://push/served"
    for failed in each_fault(
        lambda _: push(versions, url), lambda _: faulty_stores.FaultyMemory.store.clear()
    ):
        there = stored.visible(url, tmp_path / "visible")
        stored.assert_part_of(there, whole)
        outcomes.append(failed)
        states.add(len(there))
        assert push(versions, url) == (2, 3)
        assert stored.visible(url, tmp_path / "visible") == whole
    assert any(outcomes) and len(outcomes) > 20
    # Nothing is there, then the first export with all its deltas, then both.
    assert states == {0, len(whole) // 2, len(whole)}


def test_a_delta_whose_upload_fails_is_sent_by_the_next_publish(tmp_path):
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)
    url = "faulty-memory://publish/served"
    export(model, url)
    publisher = Publisher(model, url)
    failures = 0
    follower = load(url)

    def publish(_):
        told.advance(model)
        publisher.publish()

    for failed in each_fault(publish):
        number = stored.told_by(load(url))
        assert number == told.number or failed and number == told.number - 1
        failures += failed
        if failed:
            publisher.publish()  # nothing has changed since
        assert stored.told_by(load(url)) == told.number
        follower.update()
        assert stored.told_by(follower) == told.number and follower.deltas_behind() == 0
    assert failures > 1


def test_fit_raises_where_an_upload_fails_and_the_next_fit_goes_on():
    url = "faulty-memory://fit/served"
    ids = keras.Input((2,), dtype="int64", name="ids")
    model = keras.Model(ids, sok.DynamicEmbedding(2, "ones", combiner="sum", name="t")(ids))
    model.compile("sgd", "mse")
    export(model, url)
    fed = np.arange(64).reshape(-1, 2)
    for after in (30, None):
        FAULTS.plan(after)
        expected = contextlib.nullcontext() if after is None else pytest.raises(OSError)
        with expected:
            model.fit(
                fed,
                np.zeros([32, 2]),
                batch_size=4,
                verbose=0,
                callbacks=[PublishDeltas(url, every=1)],
            )
    live_tests.assert_serves(load(url), model, [fed])


def test_a_publisher_that_was_killed_at_any_request_goes_on_elsewhere(tmp_path):
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)
    url = "faulty-memory://killed/served"
    export(model, url)
    failures = 0

    def publish(_):
        told.advance(model)
        publishers[0].publish()

    publishers = [None]
    for failed in each_fault(publish, lambda _: publishers.insert(0, Publisher(model, url))):
        # What it had on its machine is lost.
        failures += failed
        publishers.clear()
        told.advance(model)
        Publisher(model, url).publish()
        assert stored.told_by(load(url)) == told.number
    assert failures > 1


def test_a_reader_that_is_interrupted_has_whole_versions_and_goes_on(versions, tmp_path, cache):
    url = "faulty-memory://read/served"
    push(versions, url)
    whole = {n: each for n, each in stored.files_in(versions).items() if n.startswith("2/")}
    roots = []

    def begin(_):
        shutil.rmtree(cache, ignore_errors=True)
        roots[:] = [stored.cache_of(url)]

    def there():
        root = cache / os.path.basename(roots[0].root)
        files = stored.files_in(root)
        return {name: each for name, each in files.items() if not name.startswith(".")}

    outcomes = []
    for failed in each_fault(lambda _: roots[0].bring(), begin):
        outcomes.append(failed)
        if not failed:
            continue
        stored.assert_part_of(there(), whole)
        roots[0].bring()
        assert there() == whole
        assert not [name for name in os.listdir(roots[0].root) if "pulled" in name]
    assert sum(outcomes) > 3


def test_prune_that_is_interrupted_leaves_whole_versions(versions, tmp_path):
    url = "faulty-memory://prune/served"
    whole = stored.files_in(versions)
    newest = {name: each for name, each in whole.items() if name.startswith("2/")}
    outcomes = []
    for failed in each_fault(lambda _: prune(url, keep=1), lambda _: push_anew(versions, url)):
        assert stored.visible(url, tmp_path / "visible") in (whole, newest)
        outcomes.append(failed)
        prune(url, keep=1)
        assert stored.visible(url, tmp_path / "visible") == newest
        assert not [name for name in stored.files_at(url) if name.startswith("1")]
    assert any(outcomes)


def push_anew(versions, url):
    faulty_stores.FaultyMemory.store.clear()
    push(versions, url)


@pytest.mark.parametrize("how", ["missing", "cut", "changed"])
def test_damaged_objects_are_not_taken_up_until_they_are_whole(versions, how, tmp_path):
    url = f"memory://damaged-{how}/served"
    push(versions, url)
    names = [each for each in stored.files_at(url) if each.startswith("2")]
    assert len(names) > 20
    for name in names:
        put_back = stored.damage(url, name, how)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        cache = stored.cache_of(url)
        if name.endswith("CURRENT.json") and how == "missing":
            cache.bring()
            assert cache.has(2, 0) and not cache.has(2, 1)
        elif name == "2.json" and how == "missing":
            cache.bring()
            assert cache.newest() == 1
        else:
            with pytest.raises((CorruptionError, FileNotFoundError, ValueError)):
                cache.bring()
            is_of_delta = "/deltas/" in name and not name.endswith("CURRENT.json")
            reached = int(name.split("/deltas/")[1][:8]) - 1 if is_of_delta else 0
            whole = "/deltas/" in name
            assert cache.has(2, reached) == whole and not cache.has(2, reached + 1)
        put_back()
        cache.bring()
        assert cache.newest() == 2 and cache.has(2, 3)


def test_a_damaged_delta_of_a_store_stops_a_follower_until_it_is_whole(tmp_path, caplog):
    url = "memory://follow-damaged/served"
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)
    export(model, url)
    publisher = Publisher(model, url)
    for _ in range(3):
        told.advance(model)
        publisher.publish()
    (name,) = [
        n for n in stored.files_at(url) if "/00000002-" in n and n.endswith("rows-0.safetensors")
    ]
    put_back = stored.damage(url, name, "changed")
    with caplog.at_level(logging.WARNING, "sok_embed.serving"):
        with load(url, follow=True, poll_seconds=0.01) as live:
            time.sleep(0.5)
            assert live.version == (1, 1) and live.deltas_behind() == 2
            assert stored.told_by(live) == 1
            (line,) = caplog.messages
            assert "version (1, 1) goes on" in line and "The delta is damaged" in line
            put_back()
            wait_for(lambda: live.version == (1, 3))
            assert stored.told_by(live) == 3


def test_a_delta_that_was_damaged_on_this_host_is_copied_once_more(versions, cache):
    url = "memory://host/served"
    push(versions, url)
    load(url)
    (root,) = cache.iterdir()
    for path in (root / "2" / "deltas" / "00000002").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    live = load(url, follow=True, poll_seconds=0.01)
    wait_for(lambda: live.version == (2, 3))
    assert stored.told_by(live) == 6
    live.close()


def wait_for(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not come to hold"
        time.sleep(0.01)


@pytest.fixture
def proxied(s3, bucket, monkeypatch):
    """A proxy before a store, which clients ask instead of it, and give up soon."""
    with FaultyProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patient = {"retries": {"max_attempts": 1}, "connect_timeout": 2, "read_timeout": 2}
        monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": patient})
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 2)
        s3.clear_instance_cache()
        yield proxy
        s3.clear_instance_cache()


def test_a_store_that_fails_is_logged_once_and_comes_back(proxied, bucket, caplog, tmp_path):
    url = f"s3://{bucket}/served"
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)
    export(model, url)
    publisher = Publisher(model, url)
    told.advance(model)
    publisher.publish()
    with caplog.at_level(logging.WARNING, "sok_embed.serving"):
        with load(url, follow=True, poll_seconds=0.05) as live:
            proxied.down = True
            told.advance(model)
            with pytest.raises(StoreError, match=r"Expected to list .*Received: "):
                publisher.publish()
            with pytest.raises(StoreError):
                live.deltas_behind()
            wait_for(lambda: caplog.messages)
            time.sleep(6)  # for more than one look
            assert live.version == (1, 1) and stored.told_by(live) == 1
            (line,) = caplog.messages
            assert line.startswith(f"{url} is left alone, version (1, 1) goes on: Expected to list")
            begun = time.monotonic()
            live.roll_back((1, 0))
            assert stored.told_by(live) == 0 and time.monotonic() - begun < 1
            live.follow()
            # A process that starts meanwhile has what this host has, if it is to follow.
            with pytest.raises(StoreError):
                load(url)
            with load(url, follow=True, poll_seconds=0.05) as other:
                assert stored.told_by(other) == 1
                assert load(url, version=(1, 1)).version == (1, 1)
                proxied.down = False
                publisher.publish()
                wait_for(lambda: live.version == other.version == (1, 2))
                assert stored.told_by(live) == stored.told_by(other) == 2


@pytest.mark.parametrize("seed", range(rounds(1, 10)))
def test_errors_cuts_and_half_writes_lose_nothing(proxied, bucket, seed, tmp_path):
    seed = int(os.environ.get("SOK_TEST_SEED_OF_PROXY", seed))
    print("seed", seed)
    chance = random.Random(seed)
    url = f"s3://{bucket}/served"
    proxied._random.seed(seed)
    proxied.slow_seconds = 0.05
    proxied.rates = dict.fromkeys(
        ("500", "503", "dropped", "half_sent", "answer_lost", "cut", "slow"), 0.03
    )
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)

    def persist(call):
        for _ in range(100):
            try:
                return call()
            except StoreError:
                continue
        raise AssertionError("it never succeeds")

    persist(lambda: export(model, url))
    # A number whose answer was lost may have been given twice, to the same export or to another.
    publisher = persist(lambda: Publisher(model, url))
    live = persist(lambda: load(url, follow=True, poll_seconds=0.02))
    with live:
        for _ in range(rounds(6, 30)):
            told.advance(model)
            persist(publisher.publish)
            if chance.random() < 0.2:
                publisher = None
                publisher = persist(lambda: Publisher(model, url))
            assert stored.told_by(live) <= told.number
        wait_for(lambda: stored.told_by(live) == told.number)
    assert sum(proxied.done.values()) > 5
    print(dict(proxied.done))


def test_a_store_that_keeps_half_of_what_it_is_given_is_found_out(versions, monkeypatch):
    url = "memory://lying/served"
    put_file = faulty_stores.MemoryFileSystem.put_file

    def put_half(self, source, goal, **options):
        with tempfile.NamedTemporaryFile() as half:
            content = open(source, "rb").read()
            half.write(content[: len(content) // 2])
            half.flush()
            put_file(self, half.name, goal, **options)

    with monkeypatch.context() as patch:
        patch.setattr(faulty_stores.MemoryFileSystem, "put_file", put_half)
        with pytest.raises(StoreError, match="does not keep what it is given"):
            push(versions, url)
    versions_there = stored_at(url)
    assert versions_there is not None and versions_there.numbers() == []
    assert push(versions, url) == (2, 3)
