"""Measures how long whole models take to answer: exports, and one with static embeddings.

    python benchmarks/serving_latency.py --rows 100000 --seconds 1

The model has four bags of ids and dense features, embeddings of dim 16, and two dense layers. It is
asked in one process, in turns, as an export with `ops="native"`, as one with `ops="stock"`, and as
`model.export` of the same layers over `keras.layers.Embedding`, whose ids are positions. It prints
milliseconds of a call at p50 and p99 for a batch of 1 and 512 examples, from one client and from
eight threads, and how many times those of the static model they are. `--ragged` gives the exports
the same bags as ragged inputs; those of the static model stay dense.

    python benchmarks/serving_latency.py --load 1000000

It prints the seconds in which the SavedModel of `sok_embed.export_model` is loaded, which inserts
each row again, and in which a native and a stock export are.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok
from sok_embed.serving import export

FIELDS, VALUES, FEATURES = 4, 3, 8
KINDS = ("native", "stock", "static")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="of each of four tables")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--ragged", action="store_true", help="give the exports ragged bags")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a kind, in five turns")
    parser.add_argument("--load", type=int, metavar="ROWS", help="time loading instead")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        if options.load:
            print_loads(Path(folder), options.load, options.dim)
        else:
            print_latencies(Path(folder), options)


def model_of(
    embedding: Callable[[int], Callable[[Any], Any]], dim: int, pooled: bool, ragged: bool = False
) -> keras.Model:
    """Returns the model over an embedding, which pools by itself or makes a vector an id."""
    features = keras.Input((FEATURES,), name="features")
    shape = (None,) if ragged else (VALUES,)
    ids = [
        keras.Input(shape, dtype="int64", ragged=ragged, name=f"ids_{field}")
        for field in range(FIELDS)
    ]
    vectors = []
    for field, each in enumerate(ids):
        vector = embedding(field)(each)
        vectors.append(vector if pooled else keras.ops.mean(vector, axis=1))
    joined = keras.layers.Concatenate()([features, *vectors])
    for units in (128, 64):
        joined = keras.layers.Dense(units, activation="relu")(joined)
    return keras.Model([features, *ids], keras.layers.Dense(1, activation="sigmoid")(joined))


def print_latencies(folder: Path, options: argparse.Namespace) -> None:
    """Prints a line for each batch and number of clients."""
    rows, dim = options.rows, options.dim
    random = np.random.default_rng(0)
    keys = np.unique(random.integers(-(2**63), 2**63, rows, dtype=np.int64))
    layers = [sok.DynamicEmbedding(dim, "zeros", combiner="mean") for _ in range(FIELDS)]
    own = model_of(lambda field: layers[field], dim, pooled=True, ragged=options.ragged)
    for layer in layers:
        layer.table.assign(keys, random.normal(size=(len(keys), dim)))
    static = model_of(lambda field: keras.layers.Embedding(len(keys), dim), dim, pooled=False)
    static.export(folder / "static", verbose=False)
    paths = {ops: export(own, folder / ops, ops=ops) for ops in ("native", "stock")}
    loaded = {kind: tf.saved_model.load(str(paths.get(kind, folder / "static"))) for kind in KINDS}
    print("| Batch | Clients | | p50 | p99 | Of static, p50 | p99 |\n|---|---|---|---|---|---|---|")
    for batch in options.batch:
        calls = {
            kind: [
                _call(loaded[kind], kind, keys, batch, random, options.ragged) for _ in range(16)
            ]
            for kind in KINDS
        }
        for clients in options.clients:
            seconds = _asked(calls, clients, options.seconds)
            quantiles = {kind: np.quantile(each, (0.5, 0.99)) for kind, each in seconds.items()}
            for kind, (p50, p99) in quantiles.items():
                times = quantiles[kind] / quantiles["static"]
                print(
                    f"| {batch} | {clients} | {kind} | {1e3 * p50:.2f} ms | {1e3 * p99:.2f} ms "
                    f"| {times[0]:.2f} | {times[1]:.2f} |",
                    flush=True,
                )


def _call(
    loaded: Any,
    kind: str,
    keys: np.ndarray,
    batch: int,
    random: np.random.Generator,
    ragged: bool,
) -> Callable[[], Any]:
    """Returns a call of a model with random known ids."""
    places = random.integers(0, len(keys), (FIELDS, batch, VALUES))
    ids = places if kind == "static" else keys[places]
    given = {f"ids_{field}": tf.constant(ids[field]) for field in range(FIELDS)}
    if ragged and kind != "static":
        given = {f"{name}_values": tf.reshape(each, [-1]) for name, each in given.items()}
        lengths = tf.fill([batch], tf.constant(VALUES, tf.int64))
        given |= {f"ids_{field}_row_lengths": lengths for field in range(FIELDS)}
    given["features"] = tf.constant(random.normal(size=(batch, FEATURES)), tf.float32)
    serve = loaded.signatures["serving_default"]
    return lambda: serve(**given)


def _asked(
    calls: dict[str, list[Callable[[], Any]]], clients: int, seconds: float
) -> dict[str, list[float]]:
    """Returns the seconds of each call of each kind, which take turns."""
    took: dict[str, list[float]] = {kind: [] for kind in calls}
    turns = 5
    for number in range(-1, turns):
        for kind, each in calls.items():
            found = turn(each, clients, seconds / turns)
            if number >= 0:  # the first turn warms up
                took[kind] += found
    return took


def turn(calls: list[Callable[[], Any]], clients: int, seconds: float) -> list[float]:
    """Returns the seconds of calls that clients make one after another, all at the same time."""
    took: list[list[float]] = [[] for _ in range(clients)]
    end = time.perf_counter() + seconds

    def client(number: int) -> None:
        call = number
        while (begun := time.perf_counter()) < end:
            for output in calls[call % len(calls)]().values():
                output.numpy()
            took[number].append(time.perf_counter() - begun)
            call += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(1, clients)]
    for thread in threads:
        thread.start()
    client(0)
    for thread in threads:
        thread.join()
    return [each for part in took for each in part]


def print_loads(folder: Path, rows: int, dim: int) -> None:
    """Prints how long each SavedModel of one table takes to load."""
    random = np.random.default_rng(0)
    layer = sok.DynamicEmbedding(dim, "zeros")
    model = keras.Sequential([keras.Input((), dtype="int64", name="ids"), layer])
    keys = np.unique(random.integers(-(2**63), 2**63, rows, dtype=np.int64))
    layer.table.assign(keys, random.normal(size=(len(keys), dim)))
    model.compile("adam", "mse")  # its slots go along in the SavedModel of today
    model.fit(keys[:1024], np.zeros([1024, dim], np.float32), verbose=0)
    sok.export_model(model, folder / "inserted")
    paths = {"export_model": str(folder / "inserted")}
    paths |= {f"ops='{ops}'": export(model, folder / ops, ops=ops) for ops in ("native", "stock")}
    asked = tf.constant(keys[:1])
    for name, path in paths.items():
        begun = time.perf_counter()
        loaded = tf.saved_model.load(path)
        opened = time.perf_counter() - begun
        loaded.signatures["serving_default"](ids=asked)
        answered = time.perf_counter() - begun
        size = sum(each.stat().st_size for each in Path(path).rglob("*") if each.is_file())
        print(
            f"{name:14} load {opened:6.2f} s, first answer after {answered:6.2f} s, "
            f"{size / len(keys):6.1f} bytes a row"
        )


if __name__ == "__main__":
    main()
