"""How many keys a second does a lookup in a tf.function serve, against lookups without a hash?

    python benchmarks/lookup.py --dim 16 64 --dist uniform zipf

`gather` is tf.gather on a static table by row number: no hash, the bound of what memory gives.
`dense_hash_table` is tf.lookup.experimental.DenseHashTable with vectors as values.
Targets for uniform keys: at least 0.5 x gather with rows of 16 floats, 1.0 x with 64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import (
    distinct_keys,
    interleaved,
    options,
    positions,
    rates,
    ratios,
    report,
    table_of,
    tensors,
    use_threads,
)

import sok_embed

TARGETS = {(16, "uniform"): 0.5, (64, "uniform"): 1.0}


def contenders(keys: Any, rows: Any) -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
    """Returns functions from keys, or row numbers for `gather`, to the same embeddings."""
    dim = rows.shape[1]
    layer = sok_embed.DynamicEmbedding(dim)
    layer.build()
    table_of(layer, keys, rows)
    hashed = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, default_value=tf.zeros(dim), empty_key=-1, deleted_key=-2
    )
    hashed.insert(keys, rows)
    static = tf.Variable(rows)
    return {
        "sok_embed": tf.function(lambda batch: layer(batch, training=False)),
        "gather": tf.function(lambda batch: tf.gather(static, batch)),
        "dense_hash_table": tf.function(hashed.lookup),
    }


def _call(
    function: Callable[[tf.Tensor], tf.Tensor], batches: list[tf.Tensor], i: int
) -> tf.Tensor:
    return function(batches[i])


def run(dim: int, dist: str, arguments: Any) -> bool:
    """Times one case; returns whether it meets its target, if it has one."""
    rng = np.random.default_rng(arguments.seed)
    keys = distinct_keys(arguments.keys, rng)
    rows = rng.standard_normal((len(keys), dim), dtype=np.float32)
    drawn = positions(dist, len(keys), (arguments.batches, arguments.batch), rng)
    by_key = tensors(list(keys[drawn]))
    by_position = tensors(list(drawn))
    functions = contenders(keys, rows)
    batches = {name: by_key if name != "gather" else by_position for name in functions}
    for name, function in functions.items():
        for got, expected in zip(batches[name], drawn, strict=True):
            np.testing.assert_array_equal(function(got).numpy(), rows[expected], err_msg=name)
    calls = {name: partial(_call, function, batches[name]) for name, function in functions.items()}
    rate = rates(interleaved(calls, arguments.batches, arguments.repeats), arguments.batch)
    ratio = ratios(rate)
    report(
        {
            "benchmark": "lookup",
            "dim": dim,
            "dist": dist,
            "keys": arguments.keys,
            "batch": arguments.batch,
            "threads": arguments.threads,
            "million_keys_per_s": rate,
            "ratio": ratio,
            "target_of_gather": TARGETS.get((dim, dist)),
        },
        f"lookup dim {dim:3} {dist:7}: {rate['sok_embed']:7.1f} M keys/s = "
        + ", ".join(f"{value:.2f} x {name} ({rate[name]:.1f})" for name, value in ratio.items())
        + (f"; target {TARGETS[dim, dist]} x gather" if (dim, dist) in TARGETS else ""),
    )
    return ratio["gather"] >= TARGETS.get((dim, dist), 0.0)


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument(
        "--optimizer", nargs="+", help="ignored; for `make bench`, which runs train_step.py too"
    )
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    met = [run(dim, dist, arguments) for dim in arguments.dim for dist in arguments.dist]
    sys.exit(arguments.check and not all(met))


if __name__ == "__main__":
    main()
