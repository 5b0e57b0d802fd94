"""Each answer is that of one published version, whoever publishes, dies or predicts meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import forked
import live_models as live_tests
import numpy as np
import pytest
from tiers import few_or_many

from sok_embed.serving import Publisher, export, load


def exported(path):
    model = live_tests.telling()
    live_tests.tell(model, 0, [])
    live_tests.Told().put(model)
    export(model, path)
    return model


class Predicting:
    """Threads that predict, with a pause after each answer, and what is wrong with the answers."""

    def __init__(self, live, threads, versions, pause=0.0):
        self._live, self._versions, self._pause = live, versions, pause
        self.errors, self.answers = [], 0
        self._ended = False
        self._threads = [
            threading.Thread(target=self._run, args=(each,)) for each in range(threads)
        ]

    def __enter__(self):
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_):
        self._ended = True
        for each in self._threads:
            each.join()

    def _run(self, seed):
        random, last = np.random.default_rng(seed), 0
        try:
            while not self._ended:
                ids = random.integers(0, live_tests.KEYS, [7, 3])
                answer = self._live(ids=ids)["output_0"].numpy()
                version = live_tests.version_of(answer, ids, self._versions)
                if version < last:
                    raise AssertionError(f"Expected version {last} or later, received {version}.")
                last = version
                self.answers += 1
                time.sleep(self._pause)
        except BaseException as error:
            self.errors.append(error)


@pytest.mark.parametrize("deltas", few_or_many(20, 10_000))
def test_threads_that_predict_see_one_version_at_a_time(deltas, tmp_path):
    model = exported(tmp_path)
    versions = live_tests.versions_to(deltas)
    publisher, told = Publisher(model, tmp_path), live_tests.Told()
    with (
        load(tmp_path, follow=True, poll_seconds=0.001) as live,
        Predicting(live, 8, versions) as predicting,
    ):
        for _ in range(deltas):
            told.advance(model)
            publisher.publish()
        end = time.monotonic() + 60
        while live.version.delta < deltas and time.monotonic() < end:
            time.sleep(0.01)
    assert predicting.errors == []
    assert live.version == (1, deltas)
    assert predicting.answers > deltas / 10
    assert all(len(table.layers) <= 4 for table in live.snapshot.state.tables)
    mapped = Path("/proc/self/maps").read_text().count("sok-served")
    assert mapped < 100, "files of versions that nobody has any more stay mapped"
    print(f"{deltas} deltas, {predicting.answers} answers")


@pytest.mark.parametrize("kills", few_or_many(2, 200))
def test_a_publisher_that_is_killed_goes_on_where_it_was(kills, tmp_path, monkeypatch):
    # Each kill would wait for an import of TensorFlow otherwise, which is not what is tested.
    monkeypatch.delenv("SOK_TEST_FRESH", raising=False)
    path = tmp_path / "served"
    exported(path)
    random = np.random.default_rng(kills)
    live = load(path, follow=True, poll_seconds=0.001)
    script = Path(__file__).with_name("live_publisher.py")
    versions = live_tests.versions_to(1000)
    # Publishers need the processors too.
    with live, Predicting(live, 2, versions, pause=0.002) as predicting:
        for number in range(kills):
            newest = newest_version(path)
            process = subprocess.Popen(
                forked.command(script, path), stdout=subprocess.PIPE, start_new_session=True
            )
            if number % 8 == 7:  # while it starts, reads deltas or exports
                time.sleep(random.uniform(0, 3))
            else:
                begun = process.stdout.readline().split()
                assert begun[:1] == [b"publishes"], "the publisher does not go on"
                export, delta, told = map(int, begun[1:])
                assert newest <= (export, delta)
                if told + 500 > len(versions):
                    versions += live_tests.versions_to(told + 1000)[len(versions) :]
                time.sleep(random.uniform(0, 0.6))
            os.killpg(process.pid, signal.SIGKILL)
            process.stdout.read()  # until the fork, which publishes, has ended, too
            process.wait()
            process.stdout.close()
            if number % 10 == 0:
                assert predicting.errors == []
    assert predicting.errors == []
    last = live.update()
    assert last >= (1, 1)
    ids = np.arange(live_tests.KEYS - 1).reshape(-1, 3)
    told = {
        live_tests.version_of(served(ids=ids)["output_0"].numpy(), ids, versions)
        for served in (live, load(path, version=last), load(path))
    }
    assert len(told) == 1
    print(
        f"{kills} kills, {told.pop()} deltas, {last.export} exports, {predicting.answers} answers"
    )


def newest_version(path):
    """Returns the numbers of the newest export, and of the newest delta by `CURRENT.json`."""
    newest = max(int(each.name) for each in path.iterdir() if each.name.isdigit())
    current = path / str(newest) / "deltas" / "CURRENT.json"
    return newest, json.loads(current.read_text())["delta"] if current.exists() else 0
