"""How fast does a table on disk stay while it grows far beyond its cache?

    python benchmarks/disk_scale.py --keys 200000000 --folder /data/rows
    python benchmarks/disk_scale.py --keys 200000000 --chart docs/guide/images/disk-scale.png

Every step looks up a batch of new keys, which makes their rows, and updates them; the storage is
flushed every --flush rows, beside the steps that follow, or within a step with --wait. Prints the
rate of each tenth of the growth, the median step, also of those with a flush under way, and the
longest step, which includes the call of the flush; then the rates of lookups with updates of
uniform keys and of Zipf's law over all rows, the times of a checkpoint and of opening the folder
again, the resident memory beside `cache_bytes`, and what the storage says of itself. Targets: the
last tenth at least 0.7 of the first, no step above 1 s, memory within `cache_bytes` and a tenth,
opening below 1 s. Where it is installed (`pip install damo-embedding==1.1.12`, for Python 3.11),
Damo-Embedding then makes rows in the same batches, in a process of its own, for --rival-seconds.

The rows are 16 floats with Adagrad's accumulator. --keys 200000000 takes 33 GB on disk, and 20 GB
more while files are rewritten; with --slot-dtype bfloat16 a fifth less.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _common import ZIPF_EXPONENT, report
from _damo import has_damo, open_damo
from memory import resident_bytes

from sok_embed import kv

TARGETS = {"last_tenth": 0.7, "longest_s": 1.0, "memory": 1.1, "reopen_s": 1.0}
Places = npt.NDArray[np.uint64]


def keys_of(places: Places) -> Places:
    """Returns different keys for different places, `[count]`, without a list of all keys."""
    return places * np.uint64(0x9E3779B97F4A7C15)


def zipf_places(count: int, size: int, rng: np.random.Generator) -> Places:
    """Draws places of `count` by Zipf's law, by the inverse of the integral of its weights."""
    power = 1.0 - ZIPF_EXPONENT
    ranks = ((count**power - 1.0) * rng.random(size) + 1.0) ** (1.0 / power)
    # Ranks go to places in no order; the factor and 2**64 have no common divisor.
    scattered = ranks.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)
    return scattered % np.uint64(count)


class Growth:
    """Measures one storage, `arguments` being those of the command line."""

    def __init__(self, folder: str, arguments: argparse.Namespace) -> None:
        self.folder = folder
        self.arguments = arguments
        self.gradients = np.full([arguments.batch, arguments.dim], 0.01, np.float32)
        self.vectors = np.empty_like(self.gradients)
        self.open()

    def open(self) -> float:
        """Opens the storage; returns the seconds until the first row has been looked up."""
        start = time.perf_counter()
        self.storage = kv.Storage(
            self.folder, cache_bytes=int(self.arguments.cache_gib * 2**30), ttl=0
        )
        self.embedding = kv.Embedding(
            self.storage,
            kv.Optimizer("adagrad", gamma=0.01),
            kv.Initializer("uniform", min=-0.05, max=0.05),
            self.arguments.dim,
            row_dtype=self.arguments.row_dtype,
            slot_dtype=self.arguments.slot_dtype,
        )
        self.embedding.lookup(keys_of(np.zeros(1, np.uint64)), self.vectors[:1])
        return time.perf_counter() - start

    def step(self, places: Places) -> None:
        """Looks the rows of some keys up and updates them."""
        keys = keys_of(places)
        self.embedding.lookup(keys, self.vectors)
        self.embedding.apply_gradients(keys, self.gradients)

    def grow(self) -> list[dict[str, float]]:
        """Makes all rows; returns the figures of each tenth."""
        batch, flush = self.arguments.batch, self.arguments.flush
        steps = self.arguments.keys // batch
        tenths = []
        done = 0
        for tenth in range(10):
            seconds = []
            beside = []  # those of them with a flush under way
            used = time.process_time()
            while done < steps * (tenth + 1) // 10:
                places = np.arange(done * batch, (done + 1) * batch, dtype=np.uint64)
                flushing = self.storage.flushing
                start = time.perf_counter()
                self.step(places)
                done += 1
                if flush and done * batch // flush > (done - 1) * batch // flush:
                    self.storage.flush(wait=self.arguments.wait)
                seconds.append(time.perf_counter() - start)
                if flushing:
                    beside.append(seconds[-1])
            figures = {
                "rows": done * batch,
                "rows_per_s": round(len(seconds) * batch / sum(seconds)),
                "median_ms": round(float(np.median(seconds)) * 1e3, 1),
                "median_flushing_ms": round(float(np.median(beside)) * 1e3, 1) if beside else 0.0,
                "steps_flushing": len(beside),
                "longest_s": round(max(seconds), 3),
                "processor_s": round(time.process_time() - used, 2),
                "memory_gib": round(resident_bytes() / 2**30, 3),
            }
            tenths.append(figures)
            print(figures, file=sys.stderr, flush=True)
        return tenths

    def rate(self, draw: Callable[[], Places]) -> float:
        """Returns rows a second of lookups with updates, in --seconds."""
        done = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < self.arguments.seconds:
            self.step(draw())
            done += self.arguments.batch
        return round(done / elapsed)


@contextlib.contextmanager
def folder_of(arguments: argparse.Namespace) -> Iterator[str]:
    """Gives a new folder within --folder, and removes it at the end."""
    folder = tempfile.mkdtemp(prefix="disk-scale-", dir=arguments.folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def bytes_in(folder: str) -> int:
    """Returns the sizes of all files of a folder, in bytes."""
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def timed(call: Callable[[], object]) -> float:
    """Returns the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return round(time.perf_counter() - start, 3)


def measure(folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns all figures of one storage."""
    base = resident_bytes()
    growth = Growth(f"{folder}/rows", arguments)
    result: dict[str, Any] = {"tenths": growth.grow()}
    rows = result["tenths"][-1]["rows"]
    while growth.storage.flushing:  # the rates below are of steps with nothing beside them
        time.sleep(0.1)
    rng = np.random.default_rng(arguments.seed)
    batch = arguments.batch
    result["uniform_rows_per_s"] = growth.rate(
        lambda: rng.integers(0, rows, batch).astype(np.uint64)
    )
    result["zipf_rows_per_s"] = growth.rate(lambda: zipf_places(rows, batch, rng))
    result["memory"] = round((resident_bytes() - base) / growth.storage.cache_bytes, 3)
    result["stats"] = growth.embedding.stats() | growth.storage.stats()
    result["flush_s"] = timed(growth.storage.flush)
    result["checkpoint_s"] = timed(lambda: growth.storage.checkpoint(f"{folder}/checkpoint"))
    result["checkpoint_bytes"] = bytes_in(f"{folder}/checkpoint")
    shutil.rmtree(f"{folder}/checkpoint")
    result["close_s"] = timed(growth.storage.close)
    gc.collect()
    result["reopen_s"] = round(growth.open(), 3)
    assert len(growth.embedding) == rows, len(growth.embedding)
    growth.storage.close()
    return result


def grow_rival(pipe: Any, folder: str, arguments: argparse.Namespace) -> None:
    """Makes rows in Damo-Embedding for --rival-seconds; sends its rates.

    Batches, vectors and optimizer are those of `Growth`. The rates are those of the first and the
    last tenth of the time, and of uniform keys over all of its rows in a quarter of that time.
    """
    lookup, update = open_damo(
        f"{folder}/damo",
        arguments.dim,
        {"name": "adagrad", "gamma": 0.01},
        {"name": "random_uniform", "min": -0.05, "max": 0.05},
    )
    batch = arguments.batch
    gradients = np.full([batch, arguments.dim], 0.01, np.float32)
    vectors = np.empty_like(gradients)

    def step(places: Places) -> float:
        start = time.perf_counter()
        keys = keys_of(places)
        lookup(keys, vectors)
        update(keys, gradients)
        return time.perf_counter() - start

    seconds: list[float] = []
    while sum(seconds) < arguments.rival_seconds:
        rows = len(seconds) * batch
        seconds.append(step(np.arange(rows, rows + batch, dtype=np.uint64)))
    tenth = max(1, len(seconds) // 10)
    rows = len(seconds) * batch
    rng = np.random.default_rng(arguments.seed)
    uniform: list[float] = []
    while sum(uniform) < arguments.rival_seconds / 4:
        uniform.append(step(rng.integers(0, rows, batch).astype(np.uint64)))
    pipe.send(
        {
            "rows": rows,
            "first_rows_per_s": round(tenth * batch / sum(seconds[:tenth])),
            "last_rows_per_s": round(tenth * batch / sum(seconds[-tenth:])),
            "uniform_rows_per_s": round(len(uniform) * batch / sum(uniform)),
        }
    )


def rival_of(folder: str, arguments: argparse.Namespace) -> dict[str, float] | None:
    """Returns Damo-Embedding's rates, or None if it is not installed, or no time is for it."""
    if not has_damo() or arguments.rival_seconds <= 0:
        return None
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=grow_rival, args=(there, folder, arguments))
    process.start()
    there.close()
    try:
        rates: dict[str, float] = here.recv()
    except EOFError:
        raise RuntimeError("Expected rates of Damo-Embedding. Its process has ended.") from None
    finally:
        process.join()
    return rates


def draw_chart(tenths: list[dict[str, float]], path: Path) -> None:
    """Draws the rate of each tenth over the number of rows, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    axes.plot(
        [tenth["rows"] / 1e6 for tenth in tenths],
        [tenth["rows_per_s"] / 1e6 for tenth in tenths],
        marker="o",
    )
    axes.set(xlabel="million rows in the table", ylabel="million new rows a second", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=144)


def main() -> None:
    """Runs the benchmark as the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=20_000_000, help="rows at the end")
    parser.add_argument("--dim", type=int, default=16, help="floats a row")
    parser.add_argument("--row-dtype", default="float32", help="type of the vectors on disk")
    parser.add_argument("--slot-dtype", default="float32", help="type of Adagrad's accumulator")
    parser.add_argument("--batch", type=int, default=65_536, help="keys a step")
    parser.add_argument(
        "--flush", type=int, default=10_000_000, help="rows between flushes; 0: none"
    )
    parser.add_argument(
        "--wait", action="store_true", help="flush within a step, not beside those that follow"
    )
    parser.add_argument("--cache-gib", type=float, default=2.0, help="cache_bytes, in GiB")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the uniform and Zipf steps")
    parser.add_argument("--rival-seconds", type=float, default=60.0, help="of Damo-Embedding")
    parser.add_argument("--folder", help="where the rows go; default: the temporary folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chart", type=Path, help="a PNG to draw")
    parser.add_argument("--check", action="store_true", help="exit with status 1 below a target")
    arguments = parser.parse_args()
    with folder_of(arguments) as folder:
        result = measure(folder, arguments)
        result["damo"] = rival_of(folder, arguments)
    tenths = result["tenths"]
    reached = {
        "last_tenth": round(tenths[-1]["rows_per_s"] / tenths[0]["rows_per_s"], 3),
        "longest_s": max(tenth["longest_s"] for tenth in tenths),
        "memory": result["memory"],
        "reopen_s": result["reopen_s"],
    }
    case = {"benchmark": "disk_scale", **vars(arguments), "chart": str(arguments.chart), **result}
    report(
        {**case, "reached": reached, "targets": TARGETS},
        f"disk_scale {tenths[-1]['rows'] / 1e6:.0f} M rows: last tenth {reached['last_tenth']:.2f} "
        f"of the first, longest step {reached['longest_s']:.2f} s, memory {reached['memory']:.2f} "
        f"of the cache, opening {reached['reopen_s']:.2f} s; uniform "
        f"{result['uniform_rows_per_s'] / 1e6:.2f}, Zipf {result['zipf_rows_per_s'] / 1e6:.2f} "
        "M rows/s"
        + (
            ""
            if (damo := result["damo"]) is None
            else f"; Damo-Embedding made {damo['rows'] / 1e6:.1f} M rows at "
            f"{damo['first_rows_per_s'] / 1e6:.3f} to {damo['last_rows_per_s'] / 1e6:.3f} M rows/s"
        ),
    )
    if arguments.chart is not None:
        draw_chart(tenths, arguments.chart)
    met = reached["last_tenth"] >= TARGETS["last_tenth"] and all(
        reached[name] <= TARGETS[name] for name in ("longest_s", "memory", "reopen_s")
    )
    sys.exit(arguments.check and not met)


if __name__ == "__main__":
    main()
