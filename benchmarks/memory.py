"""How many bytes of memory does a key take, with its row and its optimizer's slots?

    python benchmarks/memory.py --dim 16 --optimizer adam

The growth of this process' resident memory while a layer trains on new keys, against the bytes of
what must be kept: the key, the row, its slots. Also right after each growth of the index, when a
table holds the fewest keys for its size. Target: at most 1.4 times.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from _common import distinct_keys, options, report

import sok_embed

TARGET = 1.4
SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2}


def resident_bytes() -> int:
    """Returns the resident set of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def training(dim: int, optimizer: str, name: str) -> tuple[Any, Callable[[tf.Tensor], tf.Tensor]]:
    """Returns a layer and a function that trains it on keys."""
    import keras

    layer = sok_embed.DynamicEmbedding(dim, name=name)
    layer.build()
    rule = keras.optimizers.get(optimizer)
    rule.build([layer.anchor])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(keys: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(keys, training=True) - 1.0))
        rule.apply([tape.gradient(loss, layer.anchor.value)], [layer.anchor])
        return loss

    return layer, step


def run(dim: int, optimizer: str, arguments: Any) -> bool:
    """Measures one case; returns whether it meets the target, also after growth."""
    keys = distinct_keys(arguments.keys, np.random.default_rng(arguments.seed))
    # TensorFlow's own memory for steps of this size is not the table's.
    warm, warm_step = training(dim, optimizer, f"warm_{dim}_{optimizer}")
    for _ in range(20):
        warm_step(tf.constant(keys[: arguments.batch]))
    layer, step = training(dim, optimizer, f"embedding_{dim}_{optimizer}")
    kept = 8 + 4 * dim * (1 + SLOTS[optimizer])
    gc.collect()
    start = resident_bytes()
    index, grown = layer.table.stats()["index_bytes"], []
    for first in range(0, len(keys), arguments.batch):
        step(tf.constant(keys[first : first + arguments.batch]))
        stats = layer.table.stats()
        if stats["index_bytes"] > index:
            index = stats["index_bytes"]
            grown.append((stats["rows"], (resident_bytes() - start) / stats["rows"]))
    stats = layer.table.stats()
    assert stats["rows"] == len(keys), stats
    bytes_per_key = (resident_bytes() - start) / len(keys)
    # Early on, a few megabytes of anything else weigh much for each key.
    late = [(rows, per_key) for rows, per_key in grown if rows >= len(keys) // 4]
    rows_then, worst = max(late, key=lambda pair: pair[1], default=(len(keys), bytes_per_key))
    report(
        {
            "benchmark": "memory",
            "dim": dim,
            "optimizer": optimizer,
            "keys": len(keys),
            "batch": arguments.batch,
            "bytes_per_key": round(bytes_per_key, 1),
            "bytes_of_key_row_slots": kept,
            "ratio": round(bytes_per_key / kept, 3),
            "after_growth": {"keys": rows_then, "ratio": round(worst / kept, 3)},
            "by_its_own_count": round(stats["bytes"] / len(keys) / kept, 3),
            "target": TARGET,
        },
        f"memory dim {dim:3} {optimizer:7}: {bytes_per_key:.0f} bytes a key = "
        f"{bytes_per_key / kept:.2f} x {kept}; {worst / kept:.2f} x after the index grew at "
        f"{rows_then} keys; target {TARGET}",
    )
    return max(bytes_per_key, worst) / kept <= TARGET


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = options(__doc__.splitlines()[0])
    parser.set_defaults(dim=[16])
    parser.add_argument("--optimizer", nargs="+", choices=[*SLOTS], default=["adam"])
    arguments = parser.parse_args()
    met = [run(dim, rule, arguments) for dim in arguments.dim for rule in arguments.optimizer]
    sys.exit(arguments.check and not all(met))


if __name__ == "__main__":
    main()
