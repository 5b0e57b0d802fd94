"""How fast is a lookup in which some ids have rows of their own and others share static rows?

    python benchmarks/adaptive_lookup.py --dim 16 64 --dist uniform zipf

The same batches of ids are read in four ways: `mask_gather`, the op behind the feature columns,
with a mask; `adaptive`, the lookup behind the AdaptiveEmbedding layer, which finds out by itself;
`dynamic`, a plain lookup of all ids in a table where each has a row; and `composed`, the routing of
`mask_gather` built of tf.dynamic_partition of ids by mask, tf.strings.to_hash_bucket_fast of
tf.as_string and tf.gather for the one part, a lookup in a table for the other, and
tf.dynamic_stitch. `hashed_gather` and `hashed_composed` are both given the hashes beforehand.
`--own` is the share of a batch's entries that read rows of their own.

Targets: mask_gather and adaptive at least 0.7 x dynamic; mask_gather at least 3 x composed. Figures
are in docs/guide/performance.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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

from sok_embed import tf_ops

TARGETS = {
    ("mask_gather", "dynamic"): 0.7,
    ("adaptive", "dynamic"): 0.7,
    ("mask_gather", "composed"): 3.0,
    ("hashed_gather", "hashed_composed"): 0.0,  # this one has no target
}


class Batch(NamedTuple):
    """One batch, `[n]` each."""

    ids: tf.Tensor
    buckets: tf.Tensor
    mask: tf.Tensor


def contenders(
    keys: Any, rows: Any, is_own: Any, num_buckets: int
) -> dict[str, Callable[[Batch], tf.Tensor]]:
    """Returns functions from batches to embeddings; those of own rows are `rows`."""
    dim = rows.shape[1]
    zero = {"initializer": "constant", "initializer_a": 0.0}
    everything = tf_ops.anonymous_table("dynamic", dim, **zero)
    tf_ops.assign(everything, keys, rows)
    own = tf_ops.anonymous_table("own", dim, **zero)
    tf_ops.assign(own, keys[is_own], rows[is_own])
    static = tf.Variable(np.random.default_rng(1).standard_normal((num_buckets, dim), np.float32))
    adaptive = tf_ops.anonymous_adaptive_table("adaptive", dim, static_buckets=num_buckets)
    adaptive_own, adaptive_static = tf_ops.adaptive_tables(adaptive)
    tf_ops.assign(adaptive_own, keys[is_own], rows[is_own])
    tf_ops.assign(adaptive_static, np.arange(num_buckets), static.numpy())

    def composed(batch: Batch, hashed: bool) -> tf.Tensor:
        places = tf.dynamic_partition(tf.range(tf.size(batch.mask)), batch.mask, 2)
        shared, owned = tf.dynamic_partition(batch.ids, batch.mask, 2)
        if hashed:
            buckets, _ = tf.dynamic_partition(batch.buckets, batch.mask, 2)
        else:
            buckets = tf.strings.to_hash_bucket_fast(tf.as_string(shared), num_buckets)
        own_rows = tf_ops.lookup(own, owned, dim, make_rows=False).embeddings
        return tf.dynamic_stitch(places, [tf.gather(static, buckets), own_rows])

    def gather(batch: Batch, hashed: bool) -> tf.Tensor:
        buckets = batch.buckets if hashed else None
        return tf_ops.adaptive_mask_gather(
            own, static, batch.ids, buckets, batch.mask, dim=dim, make_rows=False
        ).embeddings

    functions = {
        "mask_gather": lambda batch: gather(batch, False),
        "adaptive": lambda batch: (
            tf_ops.adaptive_lookup(adaptive, batch.ids, dim, training=False).embeddings
        ),
        "dynamic": lambda batch: (
            tf_ops.lookup(everything, batch.ids, dim, make_rows=False).embeddings
        ),
        "composed": lambda batch: composed(batch, False),
        "hashed_gather": lambda batch: gather(batch, True),
        "hashed_composed": lambda batch: composed(batch, True),
    }
    return functions


def batches_of(
    keys: Any, is_own: Any, num_buckets: int, share: float, arguments: Any, dist: str
) -> list[Batch]:
    """Returns batches of which `share` of the entries are keys with rows of their own."""
    rng = np.random.default_rng(arguments.seed + 1)
    shape = (arguments.batches, arguments.batch)
    owned = keys[is_own][positions(dist, int(is_own.sum()), shape, rng)]
    others = keys[~is_own][positions(dist, int((~is_own).sum()), shape, rng)]
    mask = (rng.random(shape) < share).astype(np.int32)
    drawn = np.where(mask == 1, owned, others)
    buckets = tf_ops.static_buckets(tf.constant(drawn), num_buckets).numpy()
    parts = zip(tensors(list(drawn)), tensors(list(buckets)), tensors(list(mask)), strict=True)
    return [Batch(*part) for part in parts]


def check(functions: dict[str, Callable[[Batch], tf.Tensor]], batch: Batch) -> None:
    """Raises unless the contenders read the same, where they should."""
    owned = batch.mask.numpy() == 1
    read = {name: function(batch).numpy() for name, function in functions.items()}
    for name in ("composed", "hashed_gather", "hashed_composed"):
        np.testing.assert_array_equal(read[name], read["mask_gather"], err_msg=name)
    for name in ("mask_gather", "adaptive"):
        np.testing.assert_array_equal(read[name][owned], read["dynamic"][owned], err_msg=name)


def _call(traces: list[Callable[[], tf.Tensor]], i: int) -> tf.Tensor:
    return traces[i]()


def run(dim: int, dist: str, arguments: Any) -> bool:
    """Times one case; returns whether it meets its targets."""
    rng = np.random.default_rng(arguments.seed)
    keys = distinct_keys(arguments.keys, rng)
    rows = rng.standard_normal((len(keys), dim), dtype=np.float32)
    is_own = np.arange(len(keys)) < arguments.keys // 2
    functions = contenders(keys, rows, is_own, arguments.buckets)
    batches = batches_of(keys, is_own, arguments.buckets, arguments.own, arguments, dist)
    for batch in batches:
        check(functions, batch)
    # There is a function without arguments for each batch, since finding the trace of a call takes
    # longer than reading some thousand rows.
    traces = {
        name: [tf.function(partial(function, batch)).get_concrete_function() for batch in batches]
        for name, function in functions.items()
    }
    calls = {name: partial(_call, each) for name, each in traces.items()}
    rate = rates(interleaved(calls, arguments.batches, arguments.repeats), arguments.batch)
    ratio = {f"{ours} / {rival}": rate[ours] / rate[rival] for ours, rival in TARGETS}
    report(
        {
            "benchmark": "adaptive_lookup",
            "dim": dim,
            "dist": dist,
            "own": arguments.own,
            "keys": arguments.keys,
            "buckets": arguments.buckets,
            "batch": arguments.batch,
            "threads": arguments.threads,
            "million_keys_per_s": rate,
            "ratio": ratio,
        },
        f"adaptive lookup dim {dim:3} {dist:7}: "
        + ", ".join(f"{name} {value:.1f} M keys/s" for name, value in rate.items())
        + "; "
        + ", ".join(f"{name} {value:.2f}" for name, value in ratio.items()),
    )
    return all(ratio[f"{ours} / {rival}"] >= target for (ours, rival), target in TARGETS.items())


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--own", type=float, default=0.5, help="share of entries with own rows")
    parser.add_argument("--buckets", type=int, default=100_000, help="static rows")
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    met = [run(dim, dist, arguments) for dim in arguments.dim for dist in arguments.dist]
    sys.exit(arguments.check and not all(met))


if __name__ == "__main__":
    main()
