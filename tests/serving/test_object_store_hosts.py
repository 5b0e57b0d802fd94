"""Servers of two hosts follow a training through a store, whatever fails or is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import live_models as live_tests
import pytest
from faulty_proxy import KINDS, FaultyProxy

from sok_embed.files.object_store import StoreError
from sok_embed.serving import export
from sok_embed.serving.store_versions import stored_at

HERE = Path(__file__).parent
WITHIN_SECONDS = 60


@contextlib.contextmanager
def hosts(count):
    """Makes networks of their own, if this user may.

    Yields:
        Of each the start of a command that runs within, and the address of this process there.
    """
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(count):
            name, link = f"sok-{os.getpid()}-{number}", f"sok{number}{os.getpid() % 10**6}"
            net = f"10.213.{number}"
            inside = ["ip", "netns", "exec", name]
            commands = [
                ["ip", "netns", "add", name],
                ["ip", "link", "add", f"{link}o", "type", "veth", "peer", "name", f"{link}i"],
                ["ip", "link", "set", f"{link}i", "netns", name],
                ["ip", "addr", "add", f"{net}.1/24", "dev", f"{link}o"],
                ["ip", "link", "set", f"{link}o", "up"],
                [*inside, "ip", "addr", "add", f"{net}.2/24", "dev", f"{link}i"],
                [*inside, "ip", "link", "set", f"{link}i", "up"],
                [*inside, "ip", "link", "set", "lo", "up"],
            ]
            stack.callback(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
            try:
                for each in commands:
                    subprocess.run(each, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"no networks of their own ({error}): processes with a cache each")
                made = [([], "127.0.0.1")] * count
                break
            made.append((inside, f"{net}.1"))
        else:
            print(f"{count} hosts: network namespaces with a cache each")
        yield made


class Program:
    """A process that is started again when it was killed, and what it has said last."""

    def __init__(self, command, env, folder):
        self._command, self._env, self._folder = command, env, folder
        self.said, self.errors, self.kills = None, [], 0
        self.answers = 0
        self._start()

    def _start(self):
        for name in ("cache", "tmp"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            self._command,
            env={
                **self._env,
                "SOK_EMBED_CACHE": str(self._folder / "cache"),
                "TMPDIR": str(self._folder / "tmp"),
            },
            stdout=subprocess.PIPE,
            stderr=open(self._folder / "errors", "a"),
            text=True,
        )
        self.said = None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def _read(self, lines):
        before = 0
        for line in lines:
            if line.startswith("{"):
                self.said = json.loads(line)
                self.answers += self.said["answers"] - before
                before = self.said["answers"]

    def end(self):
        if self._reader is None:
            return
        if self._process.poll() is not None:
            errors = (self._folder / "errors").read_text()[-3000:]
            self.errors.append(f"it has ended by itself: {errors}")
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._reader = None

    def is_running(self):
        return self._process.poll() is None

    def kill(self):
        self.end()
        self.kills += 1
        self._start()


@pytest.mark.long
def test_each_answer_is_of_one_version_and_the_newest_comes(s3, bucket, tmp_path):
    deltas = int(os.environ.get("SOK_TEST_MANY", 1000))
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    url = f"s3://{bucket}/served"
    model = live_tests.telling()
    live_tests.Told().put(model)
    export(model, url)
    versions = stored_at(url)
    patient = {"retries": {"max_attempts": 1}, "connect_timeout": 2, "read_timeout": 5}
    env = {**os.environ, "FSSPEC_S3": json.dumps({"config_kwargs": patient})}
    rates = dict.fromkeys(KINDS, 0.004)
    published, seen, caught_up = {}, [{}, {}], [[], []]
    # Of each server that answers: the version before, when it began, and the newest one then.
    last_seen, since, goals = [None, None], [0.0, 0.0], [None, None]
    begun = time.monotonic()
    with (
        hosts(2) as places,
        FaultyProxy(os.environ["AWS_ENDPOINT_URL"], rates, seed, "0.0.0.0") as proxy,
        contextlib.ExitStack() as stack,
    ):
        proxy.slow_seconds = 1.0
        command = [sys.executable, str(HERE / "live_publisher.py"), url]
        env["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
        publisher = Program(command, env, tmp_path / "training")
        stack.callback(publisher.end)
        servers: list[Program] = []
        for number, (inside, address) in enumerate(places):
            command = [
                *inside,
                sys.executable,
                str(HERE / "stored_server.py"),
                url,
                str(2 * deltas),
            ]
            here = {**env, "AWS_ENDPOINT_URL": f"http://{address}:{proxy.port}"}
            servers.append(Program(command, here, tmp_path / f"host-{number}"))
            stack.callback(servers[-1].end)

        def look():
            """Notes when a version was published, and when each server first answered from it."""
            with contextlib.suppress(StoreError, FileNotFoundError):  # removed meanwhile
                number = versions.newest()
                newest = (number, versions.export(number).current())
                published.setdefault(newest, time.monotonic())
            for number, each in enumerate(servers):
                if each.said is None:
                    last_seen[number] = None
                    continue
                version = tuple(each.said["version"])
                if last_seen[number] is None:
                    # It answers from what its host has, if the store failed when it started.
                    last_seen[number], since[number] = version, time.monotonic()
                    goals[number] = max(published)
                for one, at in published.items():
                    if last_seen[number] < one <= version and at >= since[number]:
                        seen[number].setdefault(one, time.monotonic() - at)
                last_seen[number] = version
                if goals[number] is not None and version >= goals[number]:
                    caught_up[number].append(time.monotonic() - since[number])
                    goals[number] = None
            time.sleep(0.05)

        def told():
            return max((each.said or {"told": 0})["told"] for each in servers)

        def look_for(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                look()

        next_kill = 10
        while told() < deltas:
            look()
            if told() >= next_kill:
                victim = chance.choice([publisher, *servers])
                victim.kill()
                if chance.random() < 0.3:  # while it starts, copies or reads
                    look_for(chance.uniform(0, 15))
                    victim.kill()
                if chance.random() < 0.3:
                    proxy.down = True
                    look_for(chance.uniform(0, 5))
                    proxy.down = False
                next_kill += 1 + chance.randrange(60)
            for each in (publisher, *servers):
                assert each.is_running(), f"see 'errors' below {tmp_path}"
            assert time.monotonic() - begun < 5 * deltas + 300, "it does not get on"
        publisher.end()
        stopped = time.monotonic()

        def are_at_the_newest():
            # Requests of the publisher that was ended may still arrive.
            number = versions.newest()
            newest = [number, versions.export(number).current()]
            return all(each.said and each.said["version"] == newest for each in servers)

        while not are_at_the_newest():
            look()
            assert time.monotonic() - stopped < WITHIN_SECONDS, "the newest does not come"
        waited = time.monotonic() - stopped
        assert servers[0].said["told"] == servers[1].said["told"] >= deltas
    assert [error for each in (publisher, *servers) for error in each.errors] == []
    print(
        f"{servers[0].said['told']} deltas of {servers[0].said['version'][0]} exports in "
        f"{time.monotonic() - begun:.0f} s; faults {dict(proxy.done)} of "
        f"{sum(proxy.asked.values())} requests; kills: publisher {publisher.kills}, servers "
        f"{[each.kills for each in servers]}; answers, each of one version: "
        f"{[each.answers for each in servers]}"
    )
    for number, lags in enumerate(seen):
        values = sorted(lags.values())
        print(
            f"host {number}: {len(values)} versions seen after a median of "
            f"{statistics.median(values):.2f} s, 99 % within "
            f"{values[int(0.99 * len(values))]:.2f} s, at most {values[-1]:.2f} s; after each of "
            f"{len(caught_up[number])} starts it had the newest within "
            f"{max(caught_up[number]):.2f} s; the last one within {waited:.2f} s"
        )
    late = [each for each in seen if max(each.values()) >= WITHIN_SECONDS]
    late += [each for each in caught_up if max(each) >= WITHIN_SECONDS]
    assert late == []
    shutil.rmtree(tmp_path)
