"""Sizes that no memory holds are errors of the call, and the process goes on."""

import os
import subprocess

import forked
from limits import HANG_S

# This runs in a process with little memory, so that a machine with a lot of it tests the same.
PROGRAM = """
import dataclasses
import resource
import tempfile
import numpy as np
import tensorflow as tf
from sok_embed import tf_ops
from sok_embed.binding import _core
from sok_embed.binding.spec_text import spec_text
from sok_embed.tf_ops.native import ops

KEYS = tf.constant([1, 2, 3], tf.int64)
HUGE = [2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1]
PLAN = tf_ops.CollectionPlan(
    table_names=("t",), dims=(4,), salts=(0,), key_limits=(0,), placements=(tf_ops.BY_MODULO,),
    holders=(0,), feature_names=("f",), feature_tables=(0,), max_lengths=(0,), workers=2, rank=0,
    fingerprint=1,
)

def request(**options):
    how = {"combiners": ["sum"], "pools": [False]}
    plan = dataclasses.replace(PLAN, **options)
    return tf_ops.collection_request(plan, [KEYS], [tf_ops.BAG_A_KEY], [], **how)

assert request().splits.shape == [2]
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

def table(**attributes):
    dim = min(attributes.get("dim", 4), 2**31 - 1)
    made = ops.sok_embed_anonymous_table(**{"dim": 4, **attributes})
    return tf_ops.lookup(made, KEYS, dim, make_rows=True)

def adaptive(**attributes):
    return ops.sok_embed_anonymous_adaptive_table(**{"dim": 4, "static_buckets": 16, **attributes})

folder = tempfile.mkdtemp()

def core_table(cache_bytes=1 << 20, **arguments):
    storage = _core.Storage(folder, None, cache_bytes, False, False)
    try:
        spec = {"initializer": "constant", "initializer_a": 0.0, **arguments}
        made = storage.open_table(spec_text(4, spec))
        made.lookup(np.arange(3, dtype=np.uint64), np.zeros(12, np.float32), False)
    finally:
        storage.close()

BLOOM = {"admission": "counting_bloom", "admission_min_count": 2, "admission_capacity": 9}
cases = {
    "workers": lambda n: request(workers=n),
    "few workers too many": lambda n: request(workers=2**16 + 1),
    "rank": lambda n: request(rank=n),
    "key_limit": lambda n: request(key_limits=(n,)),
    "request dim": lambda n: request(dims=(n,)),
    "request buckets": lambda n: request(placements=(tf_ops.BY_BUCKET,), buckets=(n,)),
    "static_buckets": lambda n: tf_ops.static_buckets(KEYS, n),
    "adaptive_buckets": lambda n: tf_ops.adaptive_buckets(KEYS, n),
    "direct": lambda n: table(max_rows=n, direct=True),
    "direct of owners": lambda n: table(max_rows=n, direct=True, owners=n, owner=1),
    "capacity": lambda n: table(**(BLOOM | {"admission_capacity": n})),
    "counter_bits": lambda n: table(**(BLOOM | {"admission_counter_bits": n})),
    "min_count": lambda n: table(**(BLOOM | {"admission_min_count": n})),
    **{
        f"table {name}": lambda n, name=name: table(**{name: n})
        for name in ("dim", "max_rows", "shards", "owners", "group")
    },
    **{
        f"adaptive {name}": lambda n, name=name: adaptive(**{name: n})
        for name in (
            "dim", "static_buckets", "sketch_capacity", "counter_bits", "promote_after", "owners",
            "max_rows", "decay_every", "ttl",
        )
    },
    **{
        f"core {name}": lambda n, name=name: core_table(**{name: n})
        for name in ("dim", "group", "max_rows", "cache_bytes")
    },
    "core capacity": lambda n: core_table(group=1, admission=("counting_bloom", 2, n, 0.01, 4)),
    "core rate": lambda n: core_table(group=2, admission=("counting_bloom", 2, 9, 1 / n, 16)),
    "slot_floats": lambda n: _core.Optimizer("kv_adam", []).slot_floats(n),
    "slot_start": lambda n: _core.Optimizer("kv_adam", []).slot_start(n),
}
for name, call in cases.items():
    for size in HUGE:
        print(name, size, end=" ", flush=True)
        try:
            call(size)
            print("taken", flush=True)
        except (ValueError, TypeError, OSError, MemoryError, tf.errors.OpError) as error:
            print(type(error).__name__, str(error).splitlines()[0], flush=True)
print("end", len(tf_ops.adaptive_buckets(KEYS, 2)))
"""


def test_no_size_ends_the_process() -> None:
    result = subprocess.run(
        forked.program(PROGRAM),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    lines = result.stdout.splitlines()
    assert lines, result.stderr
    assert lines[-1] == "end 3", (lines[-1], result.stderr[-2000:])
    workers = [line for line in lines if line.startswith(("workers", "few workers"))]
    assert len(workers) == 10
    assert not [line for line in workers if line.endswith("taken")]
    assert "at most 65536 workers" in workers[0]
