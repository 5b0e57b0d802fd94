"""A model is served from an object store as from a folder, by versions that are copied whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import threading

import fsspec
import keras
import live_models as live_tests
import numpy as np
import pytest
import served_models as models
import stored
from click.testing import CliRunner
from thread_workers import on_workers  # noqa: F401

import sok_embed as sok
from sok_embed.callbacks import PublishDeltas
from sok_embed.cli import main
from sok_embed.files.object_store import StoreFolder
from sok_embed.kv import CorruptionError
from sok_embed.serving import Publisher, Version, export, load, prune, push

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """The folder of two exports with three deltas each, which is not to be changed."""
    folder = tmp_path_factory.mktemp("versions") / "served"
    stored.published(folder, deltas=3, exports=2)
    return folder


def trained_model(seed):
    """Returns a model with tables of several kinds of inputs, and its training."""
    model, _ = models.trained(
        sok.DynamicEmbedding(4, "ones", combiner="sum", name="items"), "dense"
    )
    return model, live_tests.Training(model, np.random.default_rng(seed), np.arange(50))


def test_answers_are_those_of_a_folder(url, tmp_path):
    model, training = trained_model(1)
    export(model, tmp_path / "served")
    local = Publisher(model, tmp_path / "served")
    assert push(tmp_path / "served", url) == (1, 0)
    follower = load(url, follow=True, poll_seconds=60)
    for delta in range(1, 6):
        training.step()
        local.publish()
        assert push(tmp_path / "served", url) == (1, delta)
        assert follower.deltas_behind() == 1
        assert follower.update() == (1, delta) and follower.deltas_behind() == 0
        fed = training.batch()
        live_tests.assert_serves(follower, model, fed)
        live_tests.assert_serves(load(tmp_path / "served"), model, fed)
    for delta in range(6):
        of_folder, of_store = (
            load(each, version=(1, delta)) for each in (tmp_path / "served", url)
        )
        answers = [
            list(each(**dict(zip([i.name for i in model.inputs], fed, strict=True))).values())
            for each in (of_folder, of_store)
        ]
        models.assert_same_bits(*([part.numpy() for part in each] for each in answers))
    follower.close()


def test_a_training_publishes_to_a_store_and_goes_on_elsewhere(url, monkeypatch, tmp_path):
    model, training = trained_model(2)
    assert export(model, url) == f"{url}/1"
    seen = []
    for host in ("first", "second"):
        (tmp_path / host).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / host))
        monkeypatch.setenv("SOK_EMBED_CACHE", str(tmp_path / host / "cache"))
        batches = [training.batch() for _ in range(4)]
        fed = [np.concatenate(each) for each in zip(*batches, strict=True)]
        targets = [np.ones([len(fed[0]), *out.shape[1:]], np.float32) for out in model.outputs]
        model.fit(fed, targets, batch_size=8, verbose=0, callbacks=[PublishDeltas(url, every=2)])
        served = load(url)
        live_tests.assert_serves(served, model, training.batch())
        seen.append(served.version)
    assert seen == [(1, 2), (1, 4)]
    assert export(model, url) == f"{url}/2"
    publisher = Publisher(model, url)
    training.step()
    assert publisher.publish() == 1
    live_tests.assert_serves(load(url), model, training.batch())
    # A training that runs goes on at an export that has come.
    assert export(model, url) == f"{url}/3"
    assert publisher.publish() == 0
    training.step()
    assert publisher.publish() == 1
    assert load(url).version == (3, 1)


def test_what_is_there_is_not_sent_again(url, versions, monkeypatch):
    assert push(versions, url) == Version(2, 3)
    before = stored.files_at(url)
    assert not any(name.endswith(".tmp") for name in before)
    for name in ("create", "put", "write"):
        monkeypatch.setattr(StoreFolder, name, None)
    assert push(versions, url) == (2, 3)
    assert stored.files_at(url) == before


def test_a_reader_copies_what_was_pushed(url, versions, tmp_path):
    push(versions, url)
    assert stored.visible(url, tmp_path / "visible") == stored.files_in(versions)


@pytest.mark.parametrize(
    "name", ["2/assets/first.safetensors", "2/deltas/00000002/rows-0.safetensors"]
)
def test_damaged_files_are_not_pushed(url, versions, name, tmp_path):
    shutil.copytree(versions, tmp_path / "served")
    path = tmp_path / "served" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptionError, match=name):
        push(tmp_path / "served", url)
    path.write_bytes(content)
    assert push(tmp_path / "served", url) == (2, 3)
    assert stored.visible(url, tmp_path / "visible") == stored.files_in(versions)


def test_another_export_of_the_same_number_is_refused(url, versions, tmp_path):
    push(versions, url)
    before = stored.files_at(url)
    stored.published(tmp_path / "others", deltas=1)
    with pytest.raises(ValueError, match="export 1 of .* Received: another export of this number"):
        push(tmp_path / "others", url)
    assert stored.files_at(url) == before


def test_another_delta_of_the_same_number_is_refused(url, tmp_path):
    model = live_tests.telling()
    told = live_tests.Told()
    told.put(model)
    export(model, tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    for name, steps in (("first", 1), ("second", 2)):
        publisher = Publisher(model, tmp_path / name)
        for _ in range(2):
            for _ in range(steps):
                told.advance(model)
            publisher.publish()
        publisher.close()
    assert push(tmp_path / "first", url) == (1, 2)
    before = stored.files_at(url)
    with pytest.raises(ValueError, match="Received: another delta of this number"):
        push(tmp_path / "second", url)
    assert stored.files_at(url) == before


def test_two_trainings_that_publish_to_one_export_are_told(url):
    model = live_tests.telling()
    told = live_tests.Told()
    told.put(model)
    export(model, url)
    first, second = Publisher(model, url), Publisher(model, url)
    told.advance(model)
    assert first.publish() == 1
    before = stored.files_at(url)
    told.advance(model)
    for _ in range(2):
        with pytest.raises(ValueError, match="Another process has published"):
            second.publish()
    assert {name: stored.files_at(url)[name] for name in before} == before
    assert first.publish() == 2
    assert stored.told_by(load(url)) == told.number


@pytest.mark.parametrize("copies", ["same", "different"])
def test_two_pushes_at_once(bucket, copies, versions, tmp_path):
    # A file of fsspec's memory is empty for others while it is written: it is no store for threads.
    url = f"s3://{bucket}/runs/run7"
    sources = [versions, versions]
    if copies == "different":
        stored.published(tmp_path / "others", deltas=1)
        sources[1] = tmp_path / "others"
    outcomes = [None, None]
    barrier = threading.Barrier(2)

    def copy(number):
        barrier.wait()
        try:
            outcomes[number] = push(sources[number], url)
        except ValueError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=copy, args=(each,)) for each in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    there = stored.visible(url, tmp_path / "visible")
    if copies == "same":
        assert outcomes == [(2, 3), (2, 3)]
        assert there == stored.files_in(versions)
        return
    won = [number for number, each in enumerate(outcomes) if not isinstance(each, ValueError)]
    assert len(won) == 1 and "another export" in str(outcomes[1 - won[0]])
    assert there == stored.files_in(sources[won[0]])


def test_old_exports_are_removed_and_stay_so(url, tmp_path):
    stored.published(tmp_path / "served", deltas=1, exports=5)
    push(tmp_path / "served", url)
    with load(url, version=(1, 1)) as old:
        assert prune(url) == [1, 2] and prune(url) == []
        assert push(tmp_path / "served", url) == (5, 1)
        assert {name.partition("-")[0].partition(".")[0] for name in stored.files_at(url)} == set(
            "345"
        )
        assert stored.told_by(old) == 1
        old.roll_back((1, 0))  # from the cache of this host
        assert stored.told_by(old) == 0
        assert old.update() == (5, 1)
        with pytest.raises(FileNotFoundError, match=r"export 2 in .* Received: 3, 4, 5\."):
            old.roll_back((2, 1))
        assert stored.told_by(old) == 5
    assert prune(tmp_path / "served", keep=4) == [1]
    assert sorted(os.listdir(tmp_path / "served")) == ["2", "3", "4", "5"]
    assert prune(tmp_path / "served", keep=1) == [2, 3, 4]
    shutil.rmtree(tmp_path / "served" / "5")
    stored.published(tmp_path / "served", deltas=0)
    with pytest.raises(ValueError, match="not older than export 3, .* Received: export 1"):
        push(tmp_path / "served", url)
    with pytest.raises(ValueError, match="keep"):
        prune(url, keep=0)


def test_the_command_pushes(bucket, versions):
    url = f"s3://{bucket}/served"
    ended = CliRunner().invoke(main, ["push", str(versions), url, "--json"])
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout) == {"url": url, "export": 2, "delta": 3, "removed": []}
    ended = CliRunner().invoke(main, ["push", str(versions), url, "--keep", "1"])
    assert re.fullmatch(rf"export 2 of .* is at {url}, with 3 deltas; removed: 1\n", ended.stdout)
    ended = CliRunner().invoke(main, ["push", str(versions), "elsewhere"])
    assert ended.exit_code == 1
    assert "Expected the URL of an object store" in ended.stderr
    ended = CliRunner().invoke(main, ["push", url, url])
    assert ended.exit_code == 2 and "Expected a folder" in ended.stderr


def test_the_command_exports_to_a_store(bucket, tmp_path):
    model, training = trained_model(3)
    model.save(tmp_path / "m.keras")
    ended = CliRunner().invoke(main, ["export", str(tmp_path / "m.keras"), f"s3://{bucket}/m"])
    assert ended.stdout == f"s3://{bucket}/m/1\n", ended.output
    live_tests.assert_serves(load(f"s3://{bucket}/m"), model, training.batch())


def test_what_is_not_there_is_an_error(url, versions):
    assert prune(url) == []
    for call in (load, lambda url: Publisher(live_tests.telling(), url)):
        with pytest.raises(FileNotFoundError, match="Expected an export in .* Received: none"):
            call(url)
    push(versions, url)
    for version, message in (((7, 0), r"Received: 1, 2\."), ((2, 4), "Received: 3 as the newest")):
        with pytest.raises(FileNotFoundError, match=message):
            load(url, version=version)
    with pytest.raises(ValueError, match="object store, where a file is there as a whole"):
        load("https://host/served")


def test_several_workers_are_sent_to_a_folder_that_they_share(on_workers, tmp_path):  # noqa: F811
    def each(communicator):
        ids = keras.Input((2,), dtype="int64", name="ids")
        model = keras.Model(ids, sok.DynamicEmbedding(2, "ones", name="t")(ids))
        for call in (export, Publisher):
            with pytest.raises((ValueError, RuntimeError), match="workers? share|another worker"):
                call(model, "memory://served")

    on_workers(2, each)
    files, _ = fsspec.core.url_to_fs("memory://served")
    assert not files.find("/served")
