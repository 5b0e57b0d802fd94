"""What does a row take in memory, and how long do lookups and steps take, by the types of rows?

    python benchmarks/row_bytes.py --keys 4000000

Makes a table of each pair of types, of distinct keys, and times compiled lookups and Adam steps of
all of them in turns. `payload` is what a row cannot do without: its vector and slots in their
types, its key and its counters, 8 bytes each.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import distinct_keys, interleaved, options, report, use_threads

import sok_embed
from sok_embed.tables.row_dtypes import stored_bytes

TYPES = (
    ("float32", "float32"),
    ("float32", "bfloat16"),
    ("bfloat16", "bfloat16"),
    ("float16", "bfloat16"),
    ("int8", "bfloat16"),
    ("int8", "float32"),
)
ADAM_SLOTS = 2


def trained(types: tuple[str, str], dim: int, keys: Any) -> Any:
    """Returns a layer with a row of each key, and its compiled lookup and step."""
    layer = sok_embed.DynamicEmbedding(dim, row_dtype=types[0], slot_dtype=types[1])
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def lookup(batch: tf.Tensor) -> tf.Tensor:
        return layer(batch, training=False)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(batch: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(batch, training=True) - 0.1))
        weights = layer.trainable_weights
        optimizer.apply(tape.gradient(loss, weights), weights)

    for part in np.array_split(keys, max(1, len(keys) // 100_000)):
        step(tf.constant(part))
    return layer, lookup, step


def main() -> None:
    """Measures all types for each dim, and reports them."""
    arguments = options(__doc__.splitlines()[0]).parse_args()
    use_threads(arguments.threads)
    rng = np.random.default_rng(arguments.seed)
    keys = distinct_keys(arguments.keys, rng)
    batches = [
        tf.constant(rng.choice(keys, arguments.batch, replace=False))
        for _ in range(arguments.batches)
    ]
    for dim in arguments.dim:
        made = {types: trained(types, dim, keys) for types in TYPES}
        contenders: dict[str, Any] = {}
        for types, (_, lookup, step) in made.items():
            contenders[f"lookup {types}"] = lambda i, run=lookup: run(batches[i])
            contenders[f"step {types}"] = lambda i, run=step: run(batches[i])
        seconds = interleaved(contenders, arguments.batches, arguments.repeats)
        for types, (layer, _, _) in made.items():
            stats = layer.table.stats()
            payload = stored_bytes(types[0], dim) + stored_bytes(types[1], ADAM_SLOTS * dim) + 16
            row_bytes, index_bytes = (
                stats[f"{part}_bytes"] / stats["rows"] for part in ("row", "index")
            )
            ratios = {
                what: seconds[f"{what} {types}"] / seconds[f"{what} {TYPES[0]}"]
                for what in ("lookup", "step")
            }
            figures = {
                "benchmark": "row_bytes",
                "dim": dim,
                "row_dtype": types[0],
                "slot_dtype": types[1],
                "rows": stats["rows"],
                "row_bytes": row_bytes,
                "index_bytes": index_bytes,
                "payload": payload,
                "of_payload": (row_bytes + index_bytes) / payload,
                **ratios,
            }
            report(
                figures,
                f"dim {dim:3d} {types[0]:8s} slots {types[1]:8s} {row_bytes:6.1f} bytes a row and "
                f"{index_bytes:4.1f} of index, {figures['of_payload']:.2f} of the payload; lookup "
                f"{ratios['lookup']:.2f}, step {ratios['step']:.2f} times float32",
            )


if __name__ == "__main__":
    main()
