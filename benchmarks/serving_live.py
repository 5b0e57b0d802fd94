"""Measures what live updates cost: the latency of a model that follows, and a delta itself.

    python benchmarks/serving_live.py --rows 100000 --changed 1000 --seconds 3

Another process publishes a delta a second, in which so many rows of each of four tables and all
dense weights have changed. A model that follows is asked meanwhile, and in turns while nothing is
published: the model of `serving_latency.py`, with a batch of 1 and 512 examples, from one client
and from eight threads. It prints milliseconds of a call at p50 and p99, and how many times those
without deltas they are; then the milliseconds in which a delta is published and taken up by a
process that does nothing else, and its bytes. The process that publishes has a low priority: in a
deployment it is on another machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from serving_latency import FEATURES, FIELDS, VALUES, model_of, turn

import sok_embed as sok
from sok_embed.serving import LiveModel, Publisher, export, load

_TURNS = 5


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="of each of four tables")
    parser.add_argument("--changed", type=int, default=1000, help="rows of each table a delta")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two deltas")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of a kind, in each of five turns"
    )
    parser.add_argument("--publish", metavar="PATH", help=argparse.SUPPRESS)
    return parser.parse_args()


def made(rows: int, dim: int) -> tuple[keras.Model, list[Any], np.ndarray]:
    """Returns the model, its layers with tables, and the keys: the same in each process."""
    random = np.random.default_rng(0)
    keys = np.unique(random.integers(-(2**63), 2**63, rows, dtype=np.int64))
    keras.utils.set_random_seed(0)
    layers = [
        sok.DynamicEmbedding(dim, "zeros", combiner="mean", name=f"ids_{field}_table")
        for field in range(FIELDS)
    ]
    model = model_of(lambda field: layers[field], dim, pooled=True)
    for layer in layers:
        layer.table.assign(keys, random.normal(size=(len(keys), dim)))
    return model, layers, keys


def publish(options: argparse.Namespace) -> None:
    """Publishes as many deltas as each line of stdin says, and prints a line when it has."""
    os.nice(19)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    model, layers, keys = made(options.rows, options.dim)
    random = np.random.default_rng(1)
    publisher = Publisher(model, options.publish)
    publisher.publish()  # compares all rows
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            begun = time.perf_counter()
            change(model, layers, keys, options, random)
            publisher.publish()
            time.sleep(max(0.0, options.every - (time.perf_counter() - begun)))
        print("done", flush=True)


def change(
    model: keras.Model,
    layers: list[Any],
    keys: np.ndarray,
    options: argparse.Namespace,
    random: np.random.Generator,
) -> None:
    """Changes some rows of each table, and all kernels."""
    for layer in layers:
        some = random.choice(keys, options.changed, replace=False)
        layer.table.assign(some, random.normal(size=(len(some), options.dim)))
    for weight in model.trainable_weights:
        if weight.name == "kernel":
            weight.assign(weight + 1e-3)


class Other:
    """The process that publishes.

    Args:
        options: The options of this process.
        path: The folder of the export.
    """

    def __init__(self, options: argparse.Namespace, path: Path) -> None:
        command = [sys.executable, __file__, "--publish", str(path)]
        for name in ("rows", "changed", "dim", "every"):
            command += [f"--{name}", str(getattr(options, name))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.wait()

    def begin(self, deltas: int) -> None:
        """Starts the publication of deltas."""
        assert self._process.stdin is not None
        print(deltas, file=self._process.stdin, flush=True)

    def wait(self) -> None:
        """Waits until the process is ready, or has published."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("Expected the process that publishes to answer. It has ended.")

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def calls_of(served: LiveModel, keys: np.ndarray, batch: int) -> list[Callable[[], Any]]:
    """Returns calls of the model with random known ids."""
    random = np.random.default_rng(2)

    def call() -> Callable[[], Any]:
        ids = random.choice(keys, (FIELDS, batch, VALUES))
        given = {f"ids_{field}": tf.constant(ids[field]) for field in range(FIELDS)}
        given["features"] = tf.constant(random.normal(size=(batch, FEATURES)), tf.float32)
        return lambda: served(**given)

    return [call() for _ in range(16)]


def main() -> None:
    """Prints the figures."""
    options = parse()
    if options.publish:
        publish(options)
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "served"
        model, layers, keys = made(options.rows, options.dim)
        export(model, path)
        other = Other(options, path)
        print("| Batch | Clients | Deltas | p50 | p99 | Of idle, p50 | p99 |")
        print("|---|---|---|---|---|---|---|")
        with load(path, follow=True, poll_seconds=0.1) as served:
            for batch in options.batch:
                calls = calls_of(served, keys, batch)
                for clients in options.clients:
                    turn(calls, clients, 0.5)  # warms up
                    print_latencies(served, calls, clients, other, options, f"{batch} | {clients}")
        other.end()
        print_costs(options, path, model, layers, keys)


def print_latencies(
    served: LiveModel,
    calls: list[Callable[[], Any]],
    clients: int,
    other: Other,
    options: argparse.Namespace,
    case: str,
) -> None:
    """Prints a line for turns without deltas, and a line for turns with deltas."""
    idle: list[float] = []
    live: list[float] = []
    before = served.version.delta
    for _ in range(_TURNS):
        idle += turn(calls, clients, options.seconds)
        other.begin(max(1, round(options.seconds / options.every)))
        live += turn(calls, clients, options.seconds)
        other.wait()
        while served.deltas_behind():
            time.sleep(0.01)
    beside = np.quantile(idle, (0.5, 0.99))
    for deltas, seconds in ((0, idle), (served.version.delta - before, live)):
        p50, p99 = np.quantile(seconds, (0.5, 0.99))
        print(
            f"| {case} | {deltas} | {1e3 * p50:.2f} ms | {1e3 * p99:.2f} ms "
            f"| {p50 / beside[0]:.2f} | {p99 / beside[1]:.2f} |",
            flush=True,
        )


def print_costs(
    options: argparse.Namespace, path: Path, model: keras.Model, layers: list[Any], keys: np.ndarray
) -> None:
    """Prints what a delta costs, with nothing else at work in these processes."""
    random = np.random.default_rng(3)
    published, taken = [], []
    publisher = Publisher(model, path)
    publisher.publish()  # compares all rows
    with load(path) as served:
        for _ in range(20):
            change(model, layers, keys, options, random)
            begun = time.perf_counter()
            number = publisher.publish()
            written = time.perf_counter()
            served.update()
            published.append(written - begun)
            taken.append(time.perf_counter() - written)
    files = (path / "1" / "deltas" / f"{number:08d}").iterdir()
    size = sum(each.stat().st_size for each in files)
    print(
        f"a delta of {FIELDS} x {options.changed} rows: published in {1e3 * median(published):.0f} "
        f"ms, taken up in {1e3 * median(taken):.0f} ms, {size:,} bytes"
    )


if __name__ == "__main__":
    main()
