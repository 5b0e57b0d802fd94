"""How fast are lookups and updates of a table on disk, beside Damo-Embedding's?

    python benchmarks/rocksdb.py
    pip install damo-embedding==1.1.12    # for Python 3.11, to have the rival in the same run

One million keys of 16 floats, AdamW, batches of 4,096. Each contender runs in a process of its own,
and they take turns, a few steps each. Cases:

    insert   the first lookup of every key, which makes its row
    uniform  distinct keys, each as likely: a lookup and an update of every batch
    zipf     batches as a log has them, keys of Zipf's law with their duplicates
    flat     1,000 uniform steps on end of a process that is alone, since the others' databases go
             on working behind their steps, and with nothing of theirs left to be written: the
             median step of 900 to 1,000 against 100 to 200; the mean, and the longest

Contenders: a cache of all rows, one of a tenth of them, the same two with durability="update",
where every update survives the process before it returns, and Damo-Embedding, if it is there. A
round ends after --limit seconds: Damo-Embedding's steps take longer and longer with repeated keys.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import distinct_keys, positions, report
from _damo import has_damo, open_damo

LEARNING = {"gamma": 1e-3, "beta1": 0.9, "beta2": 0.999, "lambda": 1e-2, "epsilon": 1e-8}
# For a contender and a case: how many times Damo-Embedding's rate it is to reach.
TARGETS = {
    ("all cached", "insert"): 5,
    ("all cached", "uniform"): 20,
    ("tenth cached", "uniform"): 5,
    ("all cached", "zipf"): 200,
    ("all cached, update", "uniform"): 6,
    ("tenth cached, update", "uniform"): 4,
}
FLAT = 1.5
Step = Callable[[Any], None]


def ours(folder: str, arguments: argparse.Namespace, cached: float, durability: str) -> Any:
    """Returns a lookup, and a lookup with an update, of a batch of keys."""
    from sok_embed import kv

    row_bytes = 4 * 3 * arguments.dim + 32
    cache = int(max(arguments.keys * row_bytes * cached, 1 << 20))
    storage = kv.Storage(folder, cache_bytes=cache, durability=durability)
    embedding = kv.Embedding(
        storage, kv.Optimizer("adamw", None, LEARNING), kv.Initializer("zeros"), arguments.dim
    )
    weights = np.empty([arguments.batch, arguments.dim], np.float32)

    def lookup(keys: Any) -> None:
        embedding.lookup(keys, weights[: len(keys)])

    return lookup, embedding.apply_gradients


def work(pipe: Any, name: str, folder: str, arguments: argparse.Namespace) -> None:
    """Runs a contender: reads a case and a number of steps, and writes the seconds of each step."""
    keys = distinct_keys(arguments.keys, np.random.default_rng(arguments.seed))
    rng = np.random.default_rng(arguments.seed + 1)
    if name == "damo":
        pull, update = open_damo(
            folder, arguments.dim, {"name": "adamw", **LEARNING}, {"name": "zeros"}
        )
        vectors = np.empty([arguments.batch, arguments.dim], np.float32)

        def lookup(keys: Any) -> None:
            pull(keys, vectors[: len(keys)])

    else:
        cached = 0.1 if name.startswith("tenth") else 1.5
        durability = "update" if name.endswith("update") else "checkpoint"
        lookup, update = ours(folder, arguments, cached, durability)
    # One law holds for all steps, so that frequent keys stay frequent.
    log = keys[positions("zipf", arguments.keys, (256, arguments.batch), rng)]
    gradients = rng.standard_normal([arguments.batch, arguments.dim], np.float32)

    def batch(case: str, number: int) -> Any:
        if case == "insert":
            first = number * arguments.batch
            return keys[first : first + arguments.batch]
        if case == "uniform":
            return keys[rng.choice(arguments.keys, arguments.batch, replace=False, shuffle=False)]
        return log[number % len(log)]

    pipe.send("ready")
    done: dict[str, int] = {}
    while (task := pipe.recv()) is not None:
        case, steps = task
        first = done.get(case, 0)
        done[case] = first + steps
        batches = [batch(case, number) for number in range(first, first + steps)]
        seconds = []
        began = time.perf_counter()
        for selected in batches:
            start = time.perf_counter()
            if start - began > arguments.limit:
                break
            lookup(selected)
            if case != "insert":
                update(selected, gradients[: len(selected)])
            seconds.append(time.perf_counter() - start)
        pipe.send(seconds)


class Contender:
    """A process that runs steps when it is asked to."""

    def __init__(self, name: str, folder: str, arguments: argparse.Namespace) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, name, folder, arguments))
        self._process.start()
        theirs.close()
        assert self._pipe.recv() == "ready"

    def run(self, case: str, steps: int) -> list[float]:
        self._pipe.send((case, steps))
        seconds: list[float] = self._pipe.recv()
        return seconds

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join(60)
        self._process.kill()


def measure(arguments: argparse.Namespace, folder: Path) -> bool:
    """Runs all cases; returns whether every target was met."""
    names = ["all cached", "tenth cached", "all cached, update", "tenth cached, update"]
    if has_damo():
        names.append("damo")
    else:
        print("damo-embedding is not installed: there is no rival in this run", file=sys.stderr)
    contenders = [
        Contender(name, str(folder / name.replace(" ", "_").replace(",", "")), arguments)
        for name in names
    ]
    inserts = arguments.keys // arguments.batch
    met = True
    for case in ("insert", *(case for case in arguments.cases if case in ("uniform", "zipf"))):
        repeats = 4 if case == "insert" else arguments.repeats
        steps = inserts // repeats if case == "insert" else arguments.steps
        rounds: dict[str, list[float]] = {name: [] for name in names}
        for repeat in range(repeats):
            for contender in contenders:
                seconds = contender.run(case, steps)
                # A round before the first that counts fills the caches.
                if repeat or case == "insert":
                    rate = arguments.batch * len(seconds) / sum(seconds) / 1e6
                    rounds[contender.name].append(rate)
        rates = {name: statistics.median(rates) for name, rates in rounds.items()}
        met &= tell(case, rates, arguments)
    for contender in contenders:
        contender.stop()
    if "flat" in arguments.cases:
        for name in names:
            if name != "damo":
                met &= is_flat(name, folder / "flat", arguments)
    return met


def is_flat(name: str, folder: Path, arguments: argparse.Namespace) -> bool:
    """Reports how the steps of a contender go on; returns whether they keep their time."""
    # What earlier contenders wrote must not be on its way to the disk meanwhile.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.sync()
    contender = Contender(name, str(folder / "rows"), arguments)
    contender.run("insert", arguments.keys // arguments.batch)
    seconds = contender.run("uniform", 1000)
    contender.stop()
    early, late = statistics.median(seconds[100:200]), statistics.median(seconds[900:])
    mean, longest = statistics.fmean(seconds[100:]), max(seconds[100:])
    report(
        {
            "benchmark": "rocksdb",
            "case": "flat",
            "contender": name,
            "early_ms": round(early * 1e3, 2),
            "late_ms": round(late * 1e3, 2),
            "mean_ms": round(mean * 1e3, 2),
            "longest_ms": round(longest * 1e3, 2),
            "ratio": round(late / early, 2),
            "target": FLAT,
        },
        f"rocksdb flat    {name:20}: {early * 1e3:.2f} ms a step at first, "
        f"{late * 1e3:.2f} ms at last; {late / early:.2f} x, target {FLAT}; "
        f"{mean * 1e3:.2f} ms in the mean, {longest * 1e3:.0f} ms the longest",
    )
    return late <= FLAT * early


def tell(case: str, rates: dict[str, float], arguments: argparse.Namespace) -> bool:
    """Reports a case; returns whether its targets were met."""
    met = True
    for name, rate in rates.items():
        ratio = rate / rates["damo"] if "damo" in rates else None
        target = TARGETS.get((name, case))
        if target is not None and ratio is not None:
            met &= ratio >= target
        report(
            {
                "benchmark": "rocksdb",
                "case": case,
                "contender": name,
                "keys": arguments.keys,
                "batch": arguments.batch,
                "dim": arguments.dim,
                "million_keys_per_second": round(rate, 4),
                "times_damo": None if ratio is None else round(ratio, 2),
                "target": target,
            },
            f"rocksdb {case:7} {name:20}: {rate:.4f} M keys/s"
            + (f", {ratio:.1f} x Damo-Embedding" if ratio is not None else "")
            + (f", target {target}" if target else ""),
        )
    return met


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000, help="rows in the table")
    parser.add_argument("--dim", type=int, default=16, help="floats a vector")
    parser.add_argument("--batch", type=int, default=4096, help="keys a step")
    parser.add_argument(
        "--cases",
        nargs="*",
        choices=["uniform", "zipf", "flat"],
        default=["uniform", "zipf", "flat"],
    )
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--repeats", type=int, default=7, help="rounds, one of which is warm-up")
    parser.add_argument("--limit", type=float, default=30, help="seconds of a round, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where the storages are made; default: a temporary one")
    parser.add_argument(
        "--check", action="store_true", help="exit with status 1 when a target is missed"
    )
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sok_embed_", dir=arguments.folder))
    try:
        met = measure(arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(arguments.check and not met)


if __name__ == "__main__":
    main()
