"""How long do checkpoints take, and how long does training wait for them?

    python benchmarks/checkpoint.py
    python benchmarks/checkpoint.py --keys 1000000 --folder /mnt/disk

One table of rows with the slots of Adam, in memory. In turns:

    save        Checkpoint.save, against `dd` writing and syncing the same bytes, and against
                tf.train.Checkpoint.write of the same table, which is synced too
    restore     Checkpoint.restore, against np.fromfile of the file of rows, which checks nothing
                and makes no table, and against tf.train.Checkpoint.read; all from memory
    delta       CheckpointManager.save(incremental=True) after a share of rows was trained,
                against the save of all rows, in time and in bytes
    background  steps of training while a save is written, against steps without one: the longest,
                what all of them took longer than the median, and the call of save itself; the
                steps do nothing but train rows, and keys are drawn evenly
    model       the same of a model with FEATURES keys a sample, some of them far more frequent than
                others, and dense layers
    noting      steps while changes are noted for the next delta, against steps without

Saves and their rivals write new files; a disk may be quicker where it wrote before.

The times are medians; ratios are those of one run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import environment, interleaved, report

import sok_embed
from sok_embed.binding import _core
from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.checkpoint.state.tables import Part

SHARES = (0.01, 0.1)
FEATURES = 26  # keys a sample of a model


class Table:
    """A layer whose rows are trained with Adam, and a step of training.

    With `as_model`, a small network stands on the layer, and the chance of a key falls with its
    number as 1 / key. Otherwise a step trains rows and nothing else.
    """

    def __init__(
        self, keys: int, dim: int, batch: int, rng: np.random.Generator, as_model: bool = False
    ) -> None:
        self.keys, self.dim, self.batch = keys, dim, batch
        self.layer = sok_embed.DynamicEmbedding(dim, name="rows")
        self.optimizer = keras.optimizers.Adam()
        self.model = keras.Sequential([keras.Input((), dtype="int64"), self.layer])
        fill = tf.function(lambda some: self._train(self.model, some))
        if as_model:
            layers = [keras.layers.Dense(units, activation="relu") for units in (256, 128)]
            layers = [keras.layers.Flatten(), *layers, keras.layers.Dense(1)]
            shape = keras.Input((FEATURES,), dtype="int64")
            self.trained = keras.Sequential([shape, self.layer, *layers])
            drawn = keys ** rng.random((64, batch // FEATURES, FEATURES)) - 1
        else:
            self.trained = self.model
            drawn = rng.integers(0, keys, (16, batch))
        self.optimizer.build(self.trained.trainable_variables)
        for begin in range(0, keys, batch):
            fill(tf.range(begin, begin + batch, dtype=tf.int64))
        self.batches = [tf.constant(each, tf.int64) for each in drawn.astype(np.int64)]
        self.step_of = tf.function(lambda some: self._train(self.trained, some))

    def _train(self, model: keras.Model, keys: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(keys, training=True))
        variables = model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)

    def step(self, number: int) -> float:
        """Trains on a batch; the seconds that it took."""
        begin = time.perf_counter()
        self.step_of(self.batches[number % len(self.batches)])
        return time.perf_counter() - begin

    def checkpoint(self) -> Checkpoint:
        """Makes a checkpoint of the table and its optimizer."""
        return Checkpoint(model=self.trained, optimizer=self.optimizer)


def emptied(folder: Path) -> Path:
    """Returns the folder, with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def bytes_in(folder: str | Path) -> int:
    """Returns the length of all files."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def saving(table: Table, folder: Path, repeats: int) -> dict[str, Any]:
    """Saves and restores, against others. All write files that were not there before."""
    checkpoint, theirs = table.checkpoint(), tf.train.Checkpoint(layer=table.layer)
    checkpoint.save(folder / "first")
    (rows,) = (folder / "first").glob("rows-*.sok")
    numbers = itertools.count()

    def dd(_: int) -> None:
        paths = [f"if={rows}", f"of={folder / f'dd-{next(numbers)}'}"]
        subprocess.run(["dd", *paths, "bs=4M", "conv=fsync"], check=True, capture_output=True)

    def tf_write(_: int) -> None:
        made = folder / f"tf-{next(numbers)}"
        theirs.write(str(made / "all"))
        for path in made.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())

    seconds = interleaved(
        {
            "save": lambda _: checkpoint.save(folder / f"ours-{next(numbers)}"),
            "dd": dd,
            "tf_write": tf_write,
        },
        1,
        repeats,
    )
    for path in [*folder.glob("dd-*"), *folder.glob("ours-*"), *sorted(folder.glob("tf-*"))[:-1]]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (written,) = folder.glob("tf-*")
    seconds |= interleaved(
        {
            "restore": lambda _: checkpoint.restore(folder / "first"),
            "fromfile": lambda _: np.fromfile(rows, np.uint8),
            "tf_read": lambda _: theirs.read(str(written / "all")),
        },
        1,
        repeats,
    )
    length = bytes_in(folder / "first")
    for path in (folder / "first", written):
        shutil.rmtree(path)
    return {
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "bytes": length,
        "dd_over_save": round(seconds["dd"] / seconds["save"], 2),
        "tf_over_save": round(seconds["tf_write"] / seconds["save"], 2),
        "fromfile_over_restore": round(seconds["fromfile"] / seconds["restore"], 2),
        "tf_over_restore": round(seconds["tf_read"] / seconds["restore"], 2),
    }


def deltas(table: Table, folder: Path, repeats: int) -> dict[str, Any]:
    """Saves of shares of the rows, against saves of all."""
    found: dict[str, Any] = {}
    for share in SHARES:
        times: dict[str, list[float]] = {"all": [], "delta": []}
        manager = CheckpointManager(table.checkpoint(), emptied(folder / "deltas"), max_to_keep=1)
        sizes = {}
        changed = np.random.default_rng(1).permutation(table.keys)[: int(share * table.keys)]
        for step in range(0, 2 * (repeats + 1), 2):
            # The first save of a manager has everything.
            manager = CheckpointManager(
                table.checkpoint(), emptied(folder / "deltas"), max_to_keep=None
            )
            for name, number in (("all", step), ("delta", step + 1)):
                begin = time.perf_counter()
                path = manager.save(number, incremental=True)
                times[name].append(time.perf_counter() - begin)
                sizes[name] = bytes_in(path)
                for part in np.array_split(changed, -(-len(changed) // table.batch)):
                    table.step_of(tf.constant(part))
        medians = {name: statistics.median(each[1:]) for name, each in times.items()}
        found[f"{share:g}"] = {
            "seconds": {name: round(value, 3) for name, value in medians.items()},
            "time_over_share": round(medians["delta"] / medians["all"] / share, 2),
            "bytes_over_share": round(sizes["delta"] / sizes["all"] / share, 2),
        }
    shutil.rmtree(folder / "deltas")
    return found


def in_background(table: Table, folder: Path, repeats: int, whole: float) -> dict[str, Any]:
    """Steps of training while saves are written."""
    manager = CheckpointManager(
        table.checkpoint(), emptied(folder / "background"), max_to_keep=1, save_on_background=True
    )
    runs: dict[str, list[float]] = {
        name: [] for name in ("call", "longest", "stalls", "slower", "written_in", "copies_mib")
    }
    for repeat in range(repeats + 1):
        before = statistics.median(table.step(i) for i in range(30))
        _core.set_capture_budget(256 << 20)
        begin = time.perf_counter()
        manager.save(repeat)
        call = time.perf_counter() - begin
        steps = []
        while not manager.poll():
            steps.append(table.step(len(steps)))
        took = time.perf_counter() - begin
        manager.wait()
        if not repeat:
            continue
        stalls = call + sum(max(0.0, step - 2 * before) for step in steps)
        figures = {
            "call": call,
            "longest": max(*steps, call),
            "stalls": stalls,
            "slower": statistics.fmean(steps) / before - 1,
            "written_in": took,
            "copies_mib": _core.capture_figures()["peak"] / 2**20,
        }
        for name, value in figures.items():
            runs[name].append(value)
    medians = {name: statistics.median(values) for name, values in runs.items()}
    return {
        **{name: round(value, 4) for name, value in medians.items()},
        "longest_over_save": round(medians["longest"] / whole, 4),
        "stalls_over_save": round(medians["stalls"] / whole, 4),
    }


def noting(table: Table, repeats: int) -> dict[str, Any]:
    """Steps while changes are noted, against steps without, in short turns.

    The first steps of a turn note rows that were not noted yet; later ones find most of them noted.
    """
    layer = table.layer.table
    ratios: dict[str, list[float]] = {"first": [], "later": []}
    times: dict[str, list[float]] = {"plain": [], "noted": []}
    count = len(table.batches)
    for turn in range(20 * repeats):
        turns = {}
        for name in ("plain", "noted") if turn % 2 else ("noted", "plain"):
            # Only the notes of this capture go on once it is released. They end with it.
            _, _, capture = Part(layer, "rows").capture(1, 0)
            capture.release()
            if name == "plain":
                capture.end()
            turns[name] = [table.step(i) for i in range(3 * count)]
            capture.end()
            times[name].append(statistics.median(turns[name]))
        for when, part in (("first", slice(count)), ("later", slice(count, None))):
            plain, noted = (statistics.median(turns[name][part]) for name in ("plain", "noted"))
            ratios[when].append(noted / plain)
    return {
        "milliseconds": {
            name: round(statistics.median(each) * 1e3, 3) for name, each in times.items()
        },
        **{
            f"{when}_noted_over_plain": round(statistics.median(each), 4)
            for when, each in ratios.items()
        },
    }


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=16, help="floats a row")
    parser.add_argument("--keys", type=int, default=10_000_000, help="rows in the table")
    parser.add_argument("--batch", type=int, default=65_536, help="keys a step")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where to write; default: a temporary folder")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=["save", "delta", "background", "model", "noting"],
        default=["save", "delta", "background", "model", "noting"],
    )
    arguments = parser.parse_args()
    shape = arguments.keys, arguments.dim, arguments.batch
    table = Table(*shape, np.random.default_rng(0))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as path:
        folder = Path(path)
        begin = time.perf_counter()
        table.checkpoint().save(folder / "first")
        whole = time.perf_counter() - begin
        shutil.rmtree(folder / "first")
        cases: dict[str, Callable[[], dict[str, Any]]] = {
            "save": lambda: saving(table, folder, arguments.repeats),
            "delta": lambda: deltas(table, folder, arguments.repeats),
            "background": lambda: in_background(table, folder, arguments.repeats, whole),
            "model": lambda: in_background(
                Table(*shape, np.random.default_rng(0), as_model=True),
                folder,
                arguments.repeats,
                whole,
            ),
            "noting": lambda: noting(table, arguments.repeats),
        }
        for name in arguments.cases:
            found = cases[name]()
            if name == "save":
                whole = found["seconds"]["save"]
            case = {"benchmark": "checkpoint", "case": name, **vars(arguments), **found}
            report(case, f"{name}: {found}")
    print(f"{os.cpu_count()} cores, TensorFlow {environment()['tensorflow']}", file=sys.stderr)


if __name__ == "__main__":
    main()
