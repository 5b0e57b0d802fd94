"""Divides the cores of a host among its workers."""

from __future__ import annotations

import logging
import os

import tensorflow as tf

_log = logging.getLogger("sok_embed")


def share_of(local_size: int, cores: int, allowed: int) -> int:
    """Returns the number of cores that a worker may keep busy.

    `allowed` cores are those on which this process may run: `taskset` and some launchers limit it.
    """
    return max(1, min(allowed, cores // local_size))


def share_cores(local_size: int) -> None:
    """Limits TensorFlow to as many threads as this worker has cores.

    Otherwise each of several workers of a host would start as many threads as the host has cores,
    and they would slow each other down. A number that the script or `TF_NUM_INTRAOP_THREADS` has
    set stays.
    """
    threading = tf.config.threading
    chosen = threading.get_intra_op_parallelism_threads() or os.environ.get(
        "TF_NUM_INTRAOP_THREADS"
    )
    if local_size < 2 or chosen:
        return
    cores = os.cpu_count() or 1
    share = share_of(local_size, cores, len(os.sched_getaffinity(0)))
    try:
        threading.set_intra_op_parallelism_threads(share)
    except RuntimeError:
        _log.warning(
            "TensorFlow has started with %d threads in each of %d workers on this host, which slow "
            "each other down: call sok_embed.init() before anything is computed.",
            cores,
            local_size,
        )
        return
    _log.info("%d of %d cores for each of %d workers on this host.", share, cores, local_size)
