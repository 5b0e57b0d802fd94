"""How much sooner does a step end whose rows were read from the disk ahead?

    python benchmarks/look_ahead.py --folder /data/rows
    sok-embed run -np 2 python benchmarks/look_ahead.py --folder /data/rows

Makes a table on disk of --rows rows of 16 floats with Adagrad's accumulator, and trains it with
batches of 2,048 examples of 26 keys, by Zipf's law and uniform. Each step has other work too, of 0,
10 and 40 ms: with --work sleep the processor waits for it, as for an accelerator, and with --work
matmul it computes on all cores. Steps with `sok_embed.data.look_ahead` and without alternate in
blocks, on the same table and its cache, each block with batches that no other has; a table in
memory of --memory-rows rows takes turns too. Several workers share the rows and the cache, and each
has batches of its own. Prints the median milliseconds of a step, and the
ratios. Goals by Zipf's law and 40 ms of other work: 1.6 times the steps a second, and at most 1.25
times the time of the table in memory.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import report
from disk_scale import keys_of, zipf_places

import sok_embed as sok

DIM, EXAMPLES, FEATURES = 16, 2048, 26
GOALS = {"ratio": 1.6, "of_memory": 1.25}
CHUNK = 65_536


class Trained:
    """Holds a table that is trained, on disk or in memory, with some other work in each step."""

    def __init__(self, rows: int, storage: Any = None) -> None:
        self.rows = rows
        self.layer = sok.DynamicEmbedding(
            DIM, storage=storage, seed=1, name=f"rows_{'memory' if storage is None else 'disk'}"
        )
        self.optimizer = keras.optimizers.Adagrad(0.01)
        self.layer.build((None, FEATURES))
        self.optimizer.build(self.layer.trainable_variables)

    def fill(self) -> None:
        """Makes all rows."""
        vectors = np.full([CHUNK, DIM], 0.01, np.float32)
        for first in range(0, self.rows, CHUNK):
            places = np.arange(first, min(first + CHUNK, self.rows), dtype=np.uint64)
            keys = keys_of(places).view(np.int64)
            keys = keys[keys % sok.size() == sok.rank()]
            self.layer.table.assign(keys, vectors[: len(keys)])

    def step(self, work: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns a step of training, which returns its loss, with what `work` makes of it."""

        @tf.function(jit_compile=False)
        def step(keys: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.layer(keys, training=True) ** 2)
                loss = loss + tf.stop_gradient(work(loss))
            variables = self.layer.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        return step


def waiting(milliseconds: float) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns work for which the processor waits."""

    def wait(loss: Any) -> Any:
        time.sleep(milliseconds / 1e3)
        return loss

    return lambda loss: tf.ensure_shape(tf.numpy_function(wait, [loss], tf.float32), [])


def computing(milliseconds: float) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns work that computes on all cores, for so long where nothing else runs."""
    factor = tf.random.normal([512, 512], stddev=0.04)

    @tf.function(jit_compile=False)
    def multiply(start: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        return tf.foldl(lambda a, _: tf.matmul(a, factor), tf.range(times), start)

    start = tf.random.normal([512, 512])
    multiply(start, tf.constant(50))
    began = time.perf_counter()
    multiply(start, tf.constant(200))
    times = max(1, round(200 * milliseconds / 1e3 / (time.perf_counter() - began)))
    # Not zero times that, which TensorFlow would leave out.
    return lambda loss: 1e-30 * multiply(start + loss, tf.constant(times))[0, 0]


WORK = {"sleep": waiting, "matmul": computing}


def batches(dist: str, rows: int, count: int, random: np.random.Generator) -> tf.data.Dataset:
    """Returns so many batches of keys, int64 `[EXAMPLES, FEATURES]`."""
    size = EXAMPLES * FEATURES

    def draw() -> Iterator[Any]:
        for _ in range(count):
            if dist == "zipf":
                places = zipf_places(rows, size, random)
            else:
                places = random.integers(0, rows, size).astype(np.uint64)
            yield keys_of(places).view(np.int64).reshape(EXAMPLES, FEATURES)

    drawn = np.stack(list(draw()))
    return tf.data.Dataset.from_tensor_slices(drawn)


def measure(
    disk: Trained,
    memory: Trained,
    dist: str,
    kind: str,
    milliseconds: float,
    random: np.random.Generator,
    args: argparse.Namespace,
) -> dict[str, float]:
    """Returns the median milliseconds of a step of each contender, in blocks that alternate."""
    work = WORK[kind](milliseconds) if milliseconds else lambda loss: 0.0 * loss
    count = args.block * (args.blocks + 1)
    plain = batches(dist, disk.rows, count, random)
    ahead = sok.data.look_ahead(
        batches(dist, disk.rows, count, random), lambda keys: disk.layer(keys), args.steps
    )
    contenders = {
        "without": (disk.step(work), iter(plain)),
        "with": (disk.step(work), iter(ahead)),
        "memory": (memory.step(work), iter(batches(dist, memory.rows, count, random))),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for block in range(args.blocks + 1):
        for name, (step, keys) in contenders.items():
            began = time.perf_counter()
            for _ in range(args.block):
                step(next(keys))
            if block:  # the first one traces, and fills what is read ahead
                seconds[name].append((time.perf_counter() - began) / args.block)
    return {name: 1e3 * statistics.median(times) for name, times in seconds.items()}


def draw(cases: list[dict[str, Any]], path: str) -> None:
    """Draws the milliseconds of a step of each case, without and with, and in memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    contenders = {
        "without": ("on disk", "#b4b4b4"),
        "with": ("on disk, with look_ahead", "#2a62b8"),
        "memory": ("in memory", "#7fb069"),
    }
    for place, (name, (label, color)) in enumerate(contenders.items()):
        bars = axes.bar(
            [number + 0.27 * (place - 1) for number in range(len(cases))],
            [case[f"{name}_ms"] for case in cases],
            width=0.25,
            label=label,
            color=color,
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    names = [f"{case['dist']}\n{case['work_ms']:g} ms" for case in cases]
    axes.set_xticks(range(len(cases)), names)
    axes.set_xlabel("keys, and other work of a step for which the processor waits")
    axes.set_ylabel("milliseconds of a step")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000_000)
    parser.add_argument("--memory-rows", type=int, default=20_000_000)
    parser.add_argument("--cache-gib", type=float, default=2.0)
    parser.add_argument("--dist", nargs="+", default=["zipf", "uniform"])
    parser.add_argument("--work", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--ms", type=float, nargs="+", default=[0.0, 10.0, 40.0])
    parser.add_argument("--steps", type=int, default=2, help="the batches that are read ahead")
    parser.add_argument("--block", type=int, default=25, help="steps of a block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chart", help="a file for a picture of all cases")
    parser.add_argument("--folder", help="where the table lies; it is removed at the end")
    args = parser.parse_args()
    sok.init()
    cases = []
    folder = tempfile.mkdtemp(prefix="look-ahead-", dir=args.folder)
    try:
        cache_bytes = int(args.cache_gib * 2**30) // sok.size()
        storage = sok.Storage(f"{folder}/rows", cache_bytes=cache_bytes)
        disk, memory = Trained(args.rows, storage), Trained(args.memory_rows)
        for table in (disk, memory):
            table.fill()
        storage.flush()
        # No case has the batches of another one.
        random = np.random.default_rng([args.seed, sok.rank()])
        for dist in args.dist:
            for kind in args.work:
                for milliseconds in args.ms:
                    if not milliseconds and kind != args.work[0]:
                        continue
                    before = disk.layer.table.stats()
                    found = measure(disk, memory, dist, kind, milliseconds, random, args)
                    after = disk.layer.table.stats()
                    case = {
                        "workers": sok.size(),
                        "dist": dist,
                        "work": kind if milliseconds else "none",
                        "work_ms": milliseconds,
                        **{f"{name}_ms": round(value, 1) for name, value in found.items()},
                        "ratio": round(found["without"] / found["with"], 2),
                        "of_memory": round(found["with"] / found["memory"], 2),
                        **{n: after[n] - before[n] for n in ("read_ahead", "left_behind")},
                        "goals": GOALS,
                    }
                    cases.append(case)
                    line = " ".join(f"{name}={value}" for name, value in case.items())
                    if sok.rank() == 0:
                        report(case, line)
        storage.close()
        if args.chart and sok.rank() == 0:
            draw(cases, args.chart)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
