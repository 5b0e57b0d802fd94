"""How long does a training step take, against that of another checkout?

    python benchmarks/paired_step.py --before ../other/.venv/bin/python

Each checkout trains in processes of its own, a block of steps in turns, and each block is compared
with the one beside it: a machine that is busy for a while slows both. Processes of one checkout
differ by some 3 % by where their memory lies, so that there are several rounds. What is compared:

    step        the compiled step of benchmarks/train_step.py
    fit         Keras' `fit` of a small model (4 features, dim 4, batch 256)
    collection  Keras' `fit` of a DistributedEmbedding of 26 tables (2,048 examples)
    tables      a compiled step of a DistributedEmbedding of many small tables
    workers     the same as `collection` on two workers, 1,024 examples each
    spread      the compiled step of one layer on two workers, half of the keys each, which do not
                repeat in a batch
    restore     the restore of a checkpoint of the table that `step` trains
    lookup      compiled lookups of an evaluation, of keys that all have a row
    absent      the same, where half of the keys have none
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

import keras
import numpy as np
import tensorflow as tf
from _common import distinct_keys, positions, report, table_of
from train_step import OPTIMIZERS, training_step

import sok_embed
from sok_embed.checkpoint import Checkpoint

FIT_FEATURES, FIT_DIM, FIT_BATCH = 4, 4, 256
TABLES, EXAMPLES = 26, 2048
BLOCK_SECONDS = 0.5
Run = Callable[[int], None]


def steps_of(case: dict[str, Any]) -> Run:
    """Returns a function that trains for a number of steps with the table of a model."""
    return _trained(case)[0]


def _trained(case: dict[str, Any]) -> tuple[Run, Any, Any]:
    """Returns a function that trains, the layer that it trains and the optimizer."""
    rng = np.random.default_rng(0)
    keys = distinct_keys(case["keys"], rng)
    layer = sok_embed.DynamicEmbedding(case["dim"])
    rows = rng.uniform(-0.05, 0.05, (len(keys), case["dim"])).astype(np.float32)
    drawn = keys[positions("zipf", len(keys), (16, case["batch"]), rng)]
    targets = tf.constant(rng.uniform(9.0, 10.0, case["batch"]).astype(np.float32))
    optimizer = OPTIMIZERS[case["optimizer"]]()
    step = training_step(layer, optimizer)
    table_of(layer, keys, rows)
    batches = [tf.constant(batch) for batch in drawn]

    def run(count: int) -> None:
        for i in range(count):
            step(batches[i % len(batches)], targets)

    return run, layer, optimizer


def restores_of(case: dict[str, Any]) -> Run:
    """Returns a function that restores a checkpoint a number of times."""
    run, layer, optimizer = _trained(case)
    run(1)
    folder = tempfile.TemporaryDirectory()
    checkpoint = Checkpoint(layer=layer, optimizer=optimizer)
    saved = os.path.join(folder.name, "saved")
    checkpoint.save(saved)

    def restore(count: int, kept: Any = folder) -> None:
        for _ in range(count):
            checkpoint.restore(saved)

    return restore


def lookups_of(case: dict[str, Any]) -> Run:
    """Returns a function that looks keys up a number of times, as an evaluation does."""
    rng = np.random.default_rng(0)
    keys = distinct_keys(case["keys"], rng)
    held = keys[: len(keys) // 2] if case["what"] == "absent" else keys
    layer = sok_embed.DynamicEmbedding(case["dim"])
    layer.build()
    table_of(layer, held, rng.standard_normal((len(held), case["dim"]), dtype=np.float32))
    batches = [
        tf.constant(batch) for batch in keys[rng.integers(0, len(keys), (16, case["batch"]))]
    ]
    look = tf.function(lambda batch: layer(batch, training=False))

    def run(count: int) -> None:
        for i in range(count):
            look(batches[i % len(batches)])

    return run


def collection_of(case: dict[str, Any]) -> Run:
    """Returns a function that fits a model of many tables for a number of steps."""
    sok_embed.init()
    rng = np.random.default_rng(sok_embed.rank())
    features = [
        sok_embed.FeatureConfig(f"field{i}", sok_embed.TableConfig(f"field{i}", None, case["dim"]))
        for i in range(TABLES)
    ]
    inputs = [keras.Input((), dtype="int64") for _ in features]
    vectors = sok_embed.DistributedEmbedding(features, output="concat")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(vectors))
    optimizer = OPTIMIZERS[case["optimizer"]]()
    if sok_embed.size() > 1:
        optimizer = sok_embed.DistributedOptimizer(optimizer)
    model.compile(optimizer, "mse")
    ids = positions("zipf", case["keys"] // 10, (TABLES, 16, case["batch"]), rng)
    targets = tf.constant(rng.normal(size=(16, case["batch"], 1)), tf.float32)
    keys = tuple(map(tf.constant, ids))
    batches = tf.data.Dataset.from_tensor_slices((keys, targets)).cache().repeat()

    def run(count: int) -> None:
        model.fit(batches, steps_per_epoch=count, epochs=1, verbose=0)

    return run


def tables_of(case: dict[str, Any]) -> Run:
    """Returns a function that trains many small tables for a number of steps."""
    rng = np.random.default_rng(0)
    shape = (16, case["tables"], case["batch"] // case["tables"])
    layer = sok_embed.DistributedEmbedding(
        [
            sok_embed.FeatureConfig(
                f"field{i}", sok_embed.TableConfig(f"table{i}", None, case["dim"])
            )
            for i in range(case["tables"])
        ],
        output="concat",
    )
    layer.build()
    variables = layer.trainable_variables
    optimizer = OPTIMIZERS[case["optimizer"]]()
    optimizer.build(variables)

    @tf.function
    def step(keys: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(tf.unstack(keys), training=True) - 9.0))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        optimizer.apply(gradients, variables)

    batches = [tf.constant(batch) for batch in rng.integers(0, case["rows"], shape)]

    def run(count: int) -> None:
        for i in range(count):
            step(batches[i % len(batches)])

    return run


def spread_of(case: dict[str, Any]) -> Run:
    """Returns a function that trains a layer on several workers for a number of steps."""
    sok_embed.init()
    rng = np.random.default_rng(sok_embed.rank())
    layer = sok_embed.DynamicEmbedding(case["dim"])
    optimizer = sok_embed.DistributedOptimizer(OPTIMIZERS[case["optimizer"]]())
    step = training_step(layer, optimizer)
    batches = [
        tf.constant(rng.choice(case["keys"], case["batch"], replace=False)) for _ in range(16)
    ]
    targets = tf.constant(rng.uniform(9.0, 10.0, case["batch"]).astype(np.float32))

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


RUNS: dict[str, Callable[[dict[str, Any]], Run]] = {
    "step": steps_of,
    "fit": fit_of,
    "collection": collection_of,
    "tables": tables_of,
    "workers": collection_of,
    "spread": spread_of,
    "restore": restores_of,
    "lookup": lookups_of,
    "absent": lookups_of,
}


def work() -> None:
    """Reads a case, then numbers of steps to train for; writes the seconds that they took."""
    case = json.loads(sys.stdin.readline())
    run = RUNS[case["what"]](case)
    run(3)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - start, flush=True)


class Checkout:
    """The processes that train with one checkout: one, or two workers."""

    def __init__(self, python: str, case: dict[str, Any]) -> None:
        command = [python, __file__, "--work"]
        size = 2 if case["what"] in ("workers", "spread") else 1
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        self.processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | (_environment(rank, size, port) if size > 1 else {}),
            )
            for rank in range(size)
        ]
        self.ask(json.dumps(case))

    def ask(self, line: str) -> str:
        """Returns what the first process answers, once all have answered."""
        for process in self.processes:
            questions: IO[str] = process.stdin  # type: ignore[assignment]
            print(line, file=questions, flush=True)
        said = []
        for process in self.processes:
            answers: IO[str] = process.stdout  # type: ignore[assignment]
            said.append(answers.readline())
            if not said[-1]:
                raise RuntimeError(f"{process.args} ended; see what it printed.")
        return said[0]

    def seconds(self, steps: int) -> float:
        """Returns how long one of so many steps takes."""
        return float(self.ask(str(steps))) / steps

    def close(self) -> None:
        """Ends the processes."""
        for process in self.processes:
            process.communicate()


def _environment(rank: int, size: int, port: str) -> dict[str, str]:
    """Returns the variables that tell a process which worker it is."""
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sizes = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    return ranks | sizes | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def compare(case: dict[str, Any], arguments: Any) -> None:
    """Prints the median step of each checkout and the median of the blocks' ratios."""
    pairs = []
    for _ in range(arguments.rounds):
        now, before = Checkout(sys.executable, case), Checkout(arguments.before, case)
        steps = max(2, int(BLOCK_SECONDS / before.seconds(4)))
        steps = max(2, int(BLOCK_SECONDS / before.seconds(steps)))
        now.seconds(steps)
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
        f"{case['what']:10} dim {case['dim']:3} {case['optimizer']:7} batch {case['batch']:6}: "
        f"{micros[0]:10.1f} us a step, before {micros[1]:10.1f}: {ratio:.3f} times",
    )


def main() -> None:
    """Compares the cases that the command line asks for, or trains for such a comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="the Python in which the other checkout is installed")
    parser.add_argument("--what", nargs="+", choices=[*RUNS], default=[*RUNS])
    parser.add_argument("--optimizer", nargs="+", choices=[*OPTIMIZERS], default=["adam", "sgd"])
    parser.add_argument("--dim", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=65_536, help="keys of a step")
    parser.add_argument("--tables", type=int, default=200, help="of the case `tables`")
    parser.add_argument("--rows", type=int, default=1000, help="of each of them")
    parser.add_argument("--table-keys", type=int, default=256, help="of a step, for each of them")
    parser.add_argument("--rounds", type=int, default=5, help="each with processes of its own")
    parser.add_argument("--blocks", type=int, default=8, help="pairs of blocks of a round")
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
            {"what": what, "dim": dim, "batch": batch, **common}
            for what, batch in (
                ("step", arguments.batch),
                ("collection", EXAMPLES),
                ("workers", EXAMPLES // 2),
                ("spread", arguments.batch // 2),
                ("restore", arguments.batch),
                ("lookup", arguments.batch),
                ("absent", arguments.batch),
            )
            for dim in arguments.dim
        ]
        for dim in arguments.dim:
            batch = arguments.tables * arguments.table_keys
            tables = {"tables": arguments.tables, "rows": arguments.rows}
            cases.append({"what": "tables", "dim": dim, "batch": batch, **tables, **common})
        cases.append({"what": "fit", "dim": FIT_DIM, "batch": FIT_BATCH, **common})
        for case in cases:
            if case["what"] in arguments.what:
                compare(case, arguments)


if __name__ == "__main__":
    main()
