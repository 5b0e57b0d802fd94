"""How long does a training step take, against that of another checkout?

    python benchmarks/paired_step.py --before ../other/.venv/bin/python

Each checkout trains in a process of its own, a block of steps in turns, and each block is compared
with the one beside it: a machine that is busy for a while slows both. `step` is the compiled step
of benchmarks/train_step.py; `fit` is Keras' `fit` of a small model (4 features, dim 4, batch 256).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import keras
import numpy as np
import tensorflow as tf
from _common import distinct_keys, positions, report, table_of
from train_step import OPTIMIZERS, training_step

import sok_embed

FIT_FEATURES, FIT_DIM, FIT_BATCH = 4, 4, 256
BLOCK_SECONDS = 0.5
Run = Callable[[int], None]


def steps_of(case: dict[str, Any]) -> Run:
    """Returns a function that trains for a number of steps with the table of a model."""
    rng = np.random.default_rng(0)
    keys = distinct_keys(case["keys"], rng)
    layer = sok_embed.DynamicEmbedding(case["dim"])
    rows = rng.uniform(-0.05, 0.05, (len(keys), case["dim"])).astype(np.float32)
    drawn = keys[positions("zipf", len(keys), (16, case["batch"]), rng)]
    targets = tf.constant(rng.uniform(9.0, 10.0, case["batch"]).astype(np.float32))
    step = training_step(layer, OPTIMIZERS[case["optimizer"]]())
    table_of(layer, keys, rows)
    batches = [tf.constant(batch) for batch in drawn]

    def run(count: int) -> None:
        for i in range(count):
            step(batches[i % len(batches)], targets)

    return run


def fit_of(case: dict[str, Any]) -> Run:
    """Returns a function that fits a small model for a number of steps."""
    rng = np.random.default_rng(0)
    model = keras.Sequential(
        [
            keras.Input((FIT_FEATURES,), dtype="int64"),
            sok_embed.DynamicEmbedding(FIT_DIM),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(OPTIMIZERS[case["optimizer"]](), "mse")
    keys = tf.constant(rng.integers(0, case["keys"], (64, FIT_BATCH, FIT_FEATURES)))
    targets = tf.constant(rng.normal(size=(64, FIT_BATCH, 1)), tf.float32)
    batches = tf.data.Dataset.from_tensor_slices((keys, targets)).cache().repeat()

    def run(count: int) -> None:
        model.fit(batches, steps_per_epoch=count, epochs=1, verbose=0)

    return run


def work() -> None:
    """Reads a case, then numbers of steps to train for; writes the seconds that they took."""
    case = json.loads(sys.stdin.readline())
    run = {"step": steps_of, "fit": fit_of}[case["what"]](case)
    run(3)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - start, flush=True)


class Checkout:
    """The process that trains with one checkout."""

    def __init__(self, python: str, case: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ask(json.dumps(case))

    def ask(self, line: str) -> str:
        questions: IO[str] = self.process.stdin  # type: ignore[assignment]
        answers: IO[str] = self.process.stdout  # type: ignore[assignment]
        print(line, file=questions, flush=True)
        if answer := answers.readline():
            return answer
        raise RuntimeError(f"{self.process.args} ended; see what it printed.")

    def seconds(self, steps: int) -> float:
        return float(self.ask(str(steps))) / steps

    def close(self) -> None:
        self.process.communicate()


def compare(case: dict[str, Any], arguments: Any) -> None:
    """Prints the median step of each checkout and the median of the blocks' ratios."""
    now, before = Checkout(sys.executable, case), Checkout(arguments.before, case)
    steps = max(2, int(BLOCK_SECONDS / before.seconds(4)))
    steps = max(2, int(BLOCK_SECONDS / before.seconds(steps)))
    now.seconds(steps)
    pairs = []
    for block in range(arguments.blocks):
        order = (now, before) if block % 2 else (before, now)
        taken = {each: each.seconds(steps) for each in order}
        pairs.append((taken[now], taken[before]))
    now.close()
    before.close()
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    micros = [round(statistics.median(each) * 1e6, 1) for each in zip(*pairs, strict=True)]
    report(
        {"benchmark": "paired_step", **case, "us_a_step": micros, "ratio": round(ratio, 4)},
        f"{case['what']:4} dim {case['dim']:3} {case['optimizer']:7} batch {case['batch']:6}: "
        f"{micros[0]:10.1f} us a step, before {micros[1]:10.1f}: {ratio:.3f} times",
    )


def main() -> None:
    """Compares the cases that the command line asks for, or trains for such a comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="the Python in which the other checkout is installed")
    parser.add_argument("--what", nargs="+", choices=["step", "fit"], default=["step", "fit"])
    parser.add_argument("--optimizer", nargs="+", choices=[*OPTIMIZERS], default=["adam", "sgd"])
    parser.add_argument("--dim", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=65_536, help="keys of a step")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work()
        return
    if not arguments.before:
        parser.error("expected --before, the Python of another checkout")
    for optimizer in arguments.optimizer:
        common = {"optimizer": optimizer, "keys": arguments.keys}
        cases = [
            {"what": "step", "dim": dim, "batch": arguments.batch, **common}
            for dim in arguments.dim
        ]
        cases.append({"what": "fit", "dim": FIT_DIM, "batch": FIT_BATCH, **common})
        for case in cases:
            if case["what"] in arguments.what:
                compare(case, arguments)


if __name__ == "__main__":
    main()
