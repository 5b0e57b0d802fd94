"""Measures how an export is written, loaded and asked, with our ops and with TensorFlow's own.

    python benchmarks/serving_exports.py --rows 1000000 --dim 16

It prints a line for each `ops=`: seconds to export, bytes a row, seconds to load, and milliseconds
of a batch of lookups of known keys, the median of several. Another line has the gather of the
rows of a variable by their places, which no lookup by key can beat.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok
from sok_embed.serving import export

_CHUNK = 1 << 20


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    keys = np.unique(random.integers(-(2**63), 2**63, options.rows, dtype=np.int64))
    inputs = keras.Input((), dtype="int64", name="ids")
    layer = sok.DynamicEmbedding(options.dim, "zeros")
    model = keras.Model(inputs, layer(inputs))
    for begin in range(0, len(keys), _CHUNK):
        part = keys[begin : begin + _CHUNK]
        layer.table.assign(part, random.normal(size=(len(part), options.dim)))
    batch = tf.constant(random.choice(keys, options.batch))
    print(f"{len(keys):,} rows of {options.dim} {options.dtype}, batch {options.batch:,}")
    with tempfile.TemporaryDirectory() as folder:
        for ops in ("native", "stock"):
            begun = time.perf_counter()
            version = export(model, folder, options.dtype, ops=ops)
            written = time.perf_counter() - begun
            files = [path for path in Path(version).rglob("*") if path.is_file()]
            size = sum(os.path.getsize(path) for path in files) / len(keys)
            begun = time.perf_counter()
            loaded = tf.saved_model.load(version)
            opened = time.perf_counter() - begun
            serve = loaded.signatures["serving_default"]
            asked = _milliseconds(lambda serve=serve: serve(ids=batch), options.rounds)
            print(
                f"{ops:7} export {written:6.2f} s, {size:6.1f} bytes a row, "
                f"load {opened:5.2f} s, lookup {asked:6.2f} ms"
            )
    variable = tf.Variable(tf.zeros([len(keys), options.dim]))
    places = tf.constant(random.integers(0, len(keys), options.batch))
    gather = tf.function(lambda: tf.gather(variable, places))
    print(f"gather  lookup {_milliseconds(gather, options.rounds):6.2f} ms")


def _milliseconds(call: Callable[[], Any], rounds: int) -> float:
    """Returns the median time of a call, after three that are not counted."""
    times = []
    for _ in range(3 + rounds):
        begun = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begun))
    return median(times[3:])


if __name__ == "__main__":
    main()
