"""Memory that a broadcast of a dense variable takes on the worker that sends it.

    sok-embed run -np 4 benchmarks/broadcast_memory.py --mebibytes 100

Each worker prints its peak of resident memory above what it had before the broadcast.
"""

from __future__ import annotations

import argparse
import resource

import tensorflow as tf

import sok_embed


def main() -> None:
    """Broadcasts one tensor from worker 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=100)
    given = parser.parse_args()
    communicator = sok_embed.init()
    small = communicator.broadcast(tf.zeros([1]), 0, "warm")
    tensor = tf.fill([given.mebibytes << 18], float(communicator.rank) + float(small[0]))
    communicator.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    received = communicator.broadcast(tensor, 0, "benchmark")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert float(received[-1]) == 0.0
    taken = (after - before) / 1024
    print(f"{given.mebibytes} MiB to {communicator.size} workers: {taken:.0f} MiB more", flush=True)


if __name__ == "__main__":
    main()
