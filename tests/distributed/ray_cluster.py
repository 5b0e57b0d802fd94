"""A cluster of Ray on this machine, and runs that are disturbed on it at random moments.

python ray_cluster.py [--seed SEED] [--rounds ROUNDS] [KIND ...]

It runs rounds of each kind, of `KINDS`, and prints a line for each run, with the seed that has the
same settings and moments again: `--seed SEED --rounds 1 KIND`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import forked
import numpy as np
from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from sharded.meeting import free_port

# isort: split
import psutil  # Ray brings it

from sok_embed.checkpoint.tools.verify import verify

HERE = Path(__file__).parent
TIME_LIMIT_S = 300
STEPS = 9  # in an epoch
# Ray notices lost nodes within a second or two, and asks for those that will be taken away.
QUICK = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.3",
    "RAY_AUTH_MODE": "disabled",
}


class Trained(NamedTuple):
    """Holds the losses, weights and rows that a run has trained."""

    losses: Any  # those of all epochs
    weights: Any  # all dense weights
    rows: dict[int, Any]  # the rows of all workers by key


def until(is_so: Callable[[], Any], what: str, seconds: float = TIME_LIMIT_S) -> Any:
    """Waits for something, and returns it."""
    end = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > end:
            raise TimeoutError(f"Expected {what} within {seconds} s.")
        time.sleep(0.02)
    return found


class Cluster:
    """A cluster of Ray on this machine: a head with a CPU, and nodes with seats for two workers.

    Args:
        folder: The folder of Ray's own files, whose path is short.
    """

    def __init__(self, folder: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self._processes: dict[str, psutil.Popen] = {}  # by the name of the node
        self._names: dict[str, str] = {}  # of nodes by their IDs

    def start(self, nodes: int = 2) -> None:
        """Starts the head and so many nodes beside it."""
        port = self.address.rpartition(":")[2]
        # The head is never killed. Its CPU is for Ray Data.
        self._start("head", "--head", f"--port={port}", "--num-cpus=1", "--disable-usage-stats",
                    "--include-dashboard=false", f"--temp-dir={self._folder}")  # fmt: skip
        self._gcs = until(self._joined, "a head of Ray")
        for _ in range(nodes):
            self.add_node()

    def _start(self, name: str, *arguments: str) -> None:
        ray = Path(sys.executable).parent / "ray"
        common = ["--block", "--node-ip-address=127.0.0.1", f"--node-name={name}",
                  f"--labels=node={name}", "--object-store-memory=100000000",
                  "--min-worker-port=0", "--max-worker-port=0"]  # fmt: skip
        with open(f"{self._folder}/{name}.log", "ab") as log:
            self._processes[name] = psutil.Popen(
                [ray, "start", *common, *arguments],
                stdout=log,
                stderr=log,
                env=os.environ | QUICK | {"RAY_ADDRESS": self.address},
            )

    def _joined(self) -> Any:
        with contextlib.suppress(Exception):
            os.environ |= QUICK
            gcs = GcsClient(address=self.address)
            gcs.get_all_node_info()
            return gcs

    def nodes(self) -> dict[str, str]:
        """Returns the names of the living nodes beside the head by their IDs."""
        found = self._gcs.get_all_node_info(state_filter=GcsNodeInfo.GcsNodeState.ALIVE)
        names = {info.node_id.hex(): info.node_name for info in found.values()}
        return {node: name for node, name in names.items() if name != "head"}

    def add_node(self) -> None:
        """Starts a node, and waits until it has joined."""
        name = f"node-{len(self._processes)}"
        self._start(name, f"--address={self.address}", "--num-cpus=2", '--resources={"seat": 2}')
        until(lambda: name in self.nodes().values(), f"{name} to join")
        self._names |= self.nodes()

    def kill_node(self, node: str) -> None:
        """Kills all processes of a node at once, and waits until Ray knows.

        Those that are no raylet outlive a node that was drained.
        """
        _kill(self._processes[self._names[node]])
        until(lambda: node not in self.nodes(), "a lost node to be noticed")

    def drain_node(self, node: str, seconds: int) -> None:
        """Says that a node will be taken away after some seconds."""
        ray = Path(sys.executable).parent / "ray"
        command = [ray, "drain-node", f"--address={self.address}", f"--node-id={node}",
                   "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot",
                   f"--deadline-remaining-seconds={seconds}"]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def end(self) -> None:
        """Kills all processes of all nodes."""
        for process in reversed(self._processes.values()):
            _kill(process)


def _kill(process: psutil.Popen) -> None:
    if process.poll() is None:
        every = [*process.children(recursive=True), process]
        for each in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Starts a cluster of two nodes, and ends it."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as path:
        found = Cluster(path)
        try:
            found.start()
            yield found
        finally:
            found.end()


class Driver:
    """A process of `trained_on_ray.py` in a folder.

    Args:
        folder: The folder of the run.
        address: The address of Ray; `None`: it starts one.
        **settings: The settings of `trained_on_ray.Settings`.
    """

    def __init__(self, folder: Path, address: str | None = None, **settings: Any) -> None:
        self.folder = folder
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        if address:
            environment |= QUICK | {"RAY_ADDRESS": address}
        settings["python"] = shlex.join(forked.command("")[:-1])
        command = forked.command(HERE / "trained_on_ray.py", folder, json.dumps(settings))
        self._log = folder / "log"
        self._settings = settings
        for each in ("step", "kept.json", *folder.glob("worker-*.json")):
            (folder / each).unlink(missing_ok=True)  # of a driver before
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def wait(self, fails: bool = False) -> None:
        """Waits for its end."""
        status = self._process.wait(TIME_LIMIT_S)
        assert bool(status) == fails, f"status {status}: {self._log.read_text()[-6000:]}"

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()

    @property
    def starts(self) -> list[list[int]]:
        """The steps at which workers started, with their numbers."""
        path = self.folder / "starts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def step(self) -> int:
        """The number of steps so far."""
        path = self.folder / "step"
        return int(path.read_text() or 0) if path.exists() else 0

    def extra_steps(self) -> set[int]:
        """Returns the steps of whole checkpoints that were not saved at the end of an epoch."""
        found = (self.folder / "run" / "sok_embed").glob("step-*/manifest.json")
        return {step for path in found if (step := int(path.parent.name[5:])) % STEPS}

    def is_running(self) -> bool:
        """Returns true, or raises if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"Expected a run that goes on. {self._log.read_text()[-6000:]}")
        return True

    def wait_for_extra_step(self, before: set[int]) -> None:
        """Waits until there is another one of `extra_steps`."""
        until(lambda: self.is_running() and self.extra_steps() - before, "a checkpoint", 6)

    @contextlib.contextmanager
    def held(self, place: int) -> Iterator[None]:
        """Has the run wait in an epoch, after so many of its steps."""
        hold = self.folder / "hold"
        step = (self.step // STEPS + 1) * STEPS + place
        hold.write_text(str(step))
        self.wait_for_step(step)
        yield
        hold.unlink()

    def wait_for_signal(self) -> None:
        """Waits until worker 0 knows that a node will be taken away."""
        said = f"(RayTrainWorker pid={self.worker(0)['pid']})"
        until(
            lambda: any(
                said in line and "received preemption signal" in line
                for line in self._log.read_text().splitlines()
            ),
            "a signal",
        )

    def wait_for_start(self, start: int) -> None:
        """Waits until the workers have started so many times."""
        until(lambda: self.is_running() and len(self.starts) >= start, f"start {start}")

    def wait_for_workers(self, workers: int, after: int = 0) -> int:
        """Waits until so many workers start, after so many starts. Returns the number of starts."""
        until(
            lambda: (
                self.is_running() and [each for _, each in self.starts[after:]][-1:] == [workers]
            ),
            f"a start of {workers} workers",
        )
        return len(self.starts)

    def wait_for_step(self, step: int) -> None:
        """Waits until so many steps were made."""
        until(lambda: self.is_running() and self.step >= step, f"step {step}")

    def worker(self, rank: int) -> dict[str, Any]:
        """Returns the process and the node of a worker."""
        return json.loads((self.folder / f"worker-{rank}.json").read_text())

    def trained(self) -> Trained:
        """Returns what was trained."""
        rows = {}
        for rank in range(self.starts[-1][1]):
            each = np.load(self.folder / f"rows-{rank}.npz")
            rows |= dict(zip(each["keys"].tolist(), each["vectors"], strict=True))
        trained = np.load(self.folder / "trained.npz")
        return Trained(trained["losses"], trained["weights"], rows)

    def check_kept(self) -> list[Any]:
        """Checks that Ray's list is what lies on the disk, and whole. Returns paths and metrics."""
        kept = json.loads((self.folder / "kept.json").read_text())
        folder = self.folder / "run" / "sok_embed"
        assert {Path(path).name for path, _ in kept} == set(os.listdir(folder))
        assert len(kept) == 2 or (len(kept) == 3 and self._settings["score"])
        assert folder / "step-000000000" not in [Path(path) for path, _ in kept]  # the worst one
        assert all(verify(path).faults == [] for path, _ in kept)
        return kept


EPOCHS = 14  # 126 steps
SEATS = {"CPU": 1, "seat": 1}
# Workers add parts of a gradient in another order if there are more of them. Losses, weights and
# rows are of the order of 1, so that a sum of float32 differs by some 1e-7.
OF_OTHER_SUMS = 1e-6


class Runs:
    """Runs that are disturbed.

    Args:
        folder: The folder of all runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._undisturbed: dict[str, Trained] = {}  # by the kind of data

    def run(self, on: Cluster, kind: str, seed: int) -> str:
        """Runs and disturbs a training on a cluster, and compares it. Returns what happened."""
        self._on = on
        began = time.monotonic()
        draw = random.Random(f"{kind} {seed}")
        settings = {
            "epochs": EPOCHS,
            "per_worker": SEATS,
            "failures": 10,
            "pace": 0.03,
            "trainer": draw.choice(["TensorflowTrainer", "DataParallelTrainer"]),
            "data": draw.choice(["ray", "tf"]),
            "save_freq": draw.choice([2, 3, 5]),
            "score": draw.choice([None, "loss"]),
        }
        expected = self._trained_undisturbed(settings["data"])
        self._path = self._folder / f"{kind}-{seed}"
        self._path.mkdir()
        try:
            events = KINDS[kind](self, draw, settings)
            self._driver.wait()
        finally:
            self._driver.kill()
        difference = _difference(self._driver.trained(), expected)
        sizes = [size for _, size in self._driver.starts]
        assert difference <= (0 if set(sizes) == {2} else OF_OTHER_SUMS), difference
        self._driver.check_kept()
        chosen = ", ".join(f"{settings[key]}" for key in ("trainer", "data", "save_freq", "score"))
        return (
            f"{kind} {seed}: {chosen}; {'; '.join(events)}; started at {self._driver.starts}; "
            f"differs by {difference:.1e}; {time.monotonic() - began:.0f} s"
        )

    def _trained_undisturbed(self, data: str) -> Trained:
        if data not in self._undisturbed:
            path = self._folder / f"undisturbed-{data}"
            path.mkdir()
            self._path = path
            driver = self._start(data=data, epochs=EPOCHS, per_worker=SEATS, save_freq="epoch")
            driver.wait()
            driver.check_kept()
            self._undisturbed[data] = driver.trained()
        return self._undisturbed[data]

    def _start(self, **settings: Any) -> Driver:
        self._driver = Driver(self._path, self._on.address, **settings)
        return self._driver

    def _wait(self, draw: random.Random, start: int) -> dict[str, Any]:
        """Waits for a random moment after a start. Returns a random worker."""
        driver = self._driver
        driver.wait_for_start(start)
        first, size = driver.starts[-1]
        driver.wait_for_step(first + draw.randrange(1, 25))
        time.sleep(draw.random() / 5)
        return driver.worker(draw.randrange(size))

    def kill_workers(self, draw: random.Random, settings: dict[str, Any]) -> list[str]:
        """Kills workers three times."""
        self._start(**settings)
        events = []
        for start in (1, 2, 3):
            worker = self._wait(draw, start)
            os.kill(worker["pid"], signal.SIGKILL)
            events.append(f"worker killed at {self._driver.step}")
        self._wait(draw, 4)
        return events

    def kill_nodes(self, draw: random.Random, settings: dict[str, Any]) -> list[str]:
        """Kills nodes twice, and starts others."""
        self._start(**settings)
        events = []
        for start in (1, 2):
            self._on.kill_node(self._wait(draw, start)["node"])
            events.append(f"node killed at {self._driver.step}")
            self._on.add_node()
        self._wait(draw, 3)
        return events

    def drain_nodes(self, draw: random.Random, settings: dict[str, Any]) -> list[str]:
        """Says twice that a node will be taken away, which it then is."""
        settings["save_freq"] = "epoch"  # each other checkpoint is one that was asked for
        settings["pace"] = 0.2
        self._start(**settings)
        events = []
        for start in (1, 2):
            node = self._wait(draw, start)["node"]
            self._on.add_node()
            before = self._driver.extra_steps()
            # Workers are asked about each fourth step, and at the end of an epoch, which is saved
            # anyway.
            with self._driver.held(draw.randrange(1, 5)):
                self._on.drain_node(node, 8)
                self._driver.wait_for_signal()
            seconds = time.monotonic()
            self._driver.wait_for_extra_step(before)
            seconds = time.monotonic() - seconds
            self._driver.wait_for_start(start + 1)
            self._on.kill_node(node)
            events.append(f"saved within {seconds:.1f} s")
        return events

    def restart(self, draw: random.Random, settings: dict[str, Any]) -> list[str]:
        """Ends the driver twice, and starts it with another number of workers."""
        workers = draw.choice([2, 3])
        events = []
        for start in (1, 2):
            fails = draw.random() < 0.5
            self._start(**settings | {"workers": workers, "failures": 0})
            worker = self._wait(draw, start)
            if fails:
                os.kill(worker["pid"], signal.SIGKILL)
                self._driver.wait(fails=True)
            else:
                self._driver.kill()
            events.append(f"{'failed' if fails else 'killed'} with {workers} workers")
            workers = 5 - workers
        self._start(**settings | {"workers": workers})
        self._wait(draw, 3)
        return events

    def resize(self, draw: random.Random, settings: dict[str, Any]) -> list[str]:
        """Has Ray go on with fewer workers when a node is lost, and with more when one comes."""
        # Ray notices a new node within some 20 s.
        driver = self._start(**settings | {"workers": (2, 3), "pace": 0.4})
        starts = driver.wait_for_workers(3)
        self._on.kill_node(self._wait(draw, starts)["node"])
        starts = driver.wait_for_workers(2, starts)
        self._wait(draw, starts)
        self._on.add_node()
        self._wait(draw, driver.wait_for_workers(3, starts))
        return ["node killed", "node added"]


def _difference(found: Trained, expected: Trained) -> float:
    """Returns the greatest absolute difference."""
    assert found.rows.keys() == expected.rows.keys()
    pairs = [(found.rows[key], row) for key, row in expected.rows.items()]
    pairs += [(found.losses, expected.losses), (found.weights, expected.weights)]
    return max(float(np.abs(one - other).max()) for one, other in pairs)


KINDS = {
    "worker": Runs.kill_workers,
    "node": Runs.kill_nodes,
    "drain": Runs.drain_nodes,
    "restart": Runs.restart,
    "resize": Runs.resize,
}


def main() -> None:
    """Runs rounds of all kinds, or of those that are given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the cluster ends too
    failures = 0
    runs = Runs(Path(tempfile.mkdtemp(prefix="runs-on-ray-")))
    for kind in given.kinds:
        # Ray keeps what a driver that was killed had asked for, for some minutes.
        with cluster() as on:
            for seed in range(given.seed, given.seed + given.rounds):
                try:
                    print(runs.run(on, kind, seed), flush=True)
                except Exception:
                    failures += 1
                    print(f"{kind} {seed} FAILED", flush=True)
                    traceback.print_exc()
    sys.exit(failures and f"{failures} failures")


if __name__ == "__main__":
    main()
