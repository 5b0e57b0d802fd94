"""Times lookups in a mapped file of rows beside tf.gather on a variable, and the opening.

    python benchmarks/serving_lookup.py --dim 16 --dist uniform
    python benchmarks/serving_lookup.py --open 10000000

`gather` is tf.gather on a float32 variable by row number: it searches for no key. The second call
opens a file with a warm page cache, and loads the same rows by `np.load`.
Targets for uniform keys and rows of 16 floats: at least 0.9 x gather in float32, 0.8 x in int8.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from _common import (
    distinct_keys,
    interleaved,
    options,
    positions,
    rates,
    report,
    tensors,
    use_threads,
)

from sok_embed.serving import rows
from sok_embed.serving.served_table import ServedTable

DTYPES = ("float32", "float16", "int8", "int4")
TARGETS = {"float32": 0.9, "int8": 0.8}
MOST_OPENING_MILLISECONDS = 10


def _call(
    function: Callable[[tf.Tensor], tf.Tensor], batches: list[tf.Tensor], i: int
) -> tf.Tensor:
    return function(batches[i])


def run(dim: int, dist: str, arguments: Any, folder: Path) -> bool:
    """Times one case; returns whether it meets its targets, if it has any."""
    rng = np.random.default_rng(arguments.seed)
    keys = distinct_keys(arguments.keys, rng)
    vectors = rng.standard_normal((len(keys), dim), dtype=np.float32)
    drawn = positions(dist, len(keys), (arguments.batches, arguments.batch), rng)
    by_key, by_position = tensors(list(keys[drawn])), tensors(list(drawn))
    static = tf.Variable(vectors)
    calls = {"gather": partial(_call, tf.function(lambda at: tf.gather(static, at)), by_position)}
    bytes_a_row = {}
    for dtype in DTYPES:
        path = folder / f"{dim}-{dtype}.safetensors"
        written = rows.write(path, [(keys, vectors)], dim=dim, dtype=dtype)
        bytes_a_row[dtype] = round(written.file_bytes / len(keys), 2)
        function = tf.function(ServedTable(path, dim).lookup)
        bound = {"float32": 0, "float16": 3e-3, "int8": 3e-2, "int4": 0.5}[dtype]
        for batch, at in zip(by_key, drawn, strict=True):
            np.testing.assert_allclose(function(batch), vectors[at], atol=bound, rtol=0)
        calls[dtype] = partial(_call, function, by_key)
    rate = rates(interleaved(calls, arguments.batches, arguments.repeats), arguments.batch)
    ratio = {dtype: round(rate[dtype] / rate["gather"], 2) for dtype in DTYPES}
    targets = TARGETS if (dim, dist) == (16, "uniform") else {}
    report(
        {
            "benchmark": "serving_lookup",
            "dim": dim,
            "dist": dist,
            "keys": arguments.keys,
            "batch": arguments.batch,
            "threads": arguments.threads,
            "million_keys_per_s": rate,
            "ratio_of_gather": ratio,
            "targets": targets,
            "bytes_a_row": bytes_a_row,
        },
        f"serving lookup dim {dim:3} {dist:7}: gather {rate['gather']:.1f} M keys/s; "
        + ", ".join(f"{dtype} {ratio[dtype]:.2f} x" for dtype in DTYPES)
        + "".join(f"; target {dtype} {least} x" for dtype, least in targets.items()),
    )
    return all(ratio[dtype] >= least for dtype, least in targets.items())


def _batches(count: int, dim: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yields rows with the keys 0, 1, ..."""
    rng = np.random.default_rng(seed)
    for begin in range(0, count, 1_000_000):
        keys = np.arange(begin, min(begin + 1_000_000, count))
        yield keys, rng.standard_normal((len(keys), dim), dtype=np.float32)


def _milliseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return round((time.perf_counter() - begin) * 1e3, 3)


def open_file(count: int, dim: int, arguments: Any, folder: Path) -> bool:
    """Times the opening of a file of `count` rows; returns whether it meets its target."""
    path = folder / "opened.safetensors"
    took = {"write": _milliseconds(lambda: rows.write(path, _batches(count, dim, 0), dim=dim))}
    loaded = folder / "opened.npy"
    np.save(loaded, np.concatenate([part for _, part in _batches(count, dim, 0)]))
    for _ in range(arguments.repeats):  # the last one counts: the page cache is warm
        took["open"] = _milliseconds(lambda: rows.open(path).close())
        took["np.load"] = _milliseconds(lambda: np.load(loaded))
        took["verify"] = _milliseconds(lambda: rows.open(path).verify())
    with rows.open(path) as file:
        took["first 65,536 keys"] = _milliseconds(lambda: file.lookup(np.arange(65_536)))
    report(
        {"benchmark": "serving_open", "rows": count, "dim": dim, "milliseconds": took},
        f"serving open {count:,} rows of dim {dim}: "
        + ", ".join(f"{name} {value:,.1f} ms" for name, value in took.items())
        + f"; target open {MOST_OPENING_MILLISECONDS} ms",
    )
    return took["open"] <= MOST_OPENING_MILLISECONDS


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--open", type=int, help="time the opening of so many rows instead")
    parser.add_argument("--folder", help="a folder for the files; default: the system's")
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        if arguments.open:
            met = [open_file(arguments.open, arguments.dim[0], arguments, Path(name))]
        else:
            met = [
                run(dim, dist, arguments, Path(name))
                for dim in arguments.dim
                for dist in arguments.dist
            ]
    sys.exit(arguments.check and not all(met))


if __name__ == "__main__":
    main()
