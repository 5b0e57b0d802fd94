"""Adaptive gathers of rows in a storage, beside calls that hold it."""

import threading
import time

import numpy as np
import tensorflow as tf
from adaptive_gather_model import DIM, gather, new_static, new_table

from sok_embed import kv, tf_ops

KEYS = np.arange(50_000, dtype=np.int64)
SECONDS = 60  # all calls together must end in this time


def test_gathers_assignments_and_flushes_do_not_wait_for_each_other_for_good(tmp_path):
    storage = kv.Storage(tmp_path / "rows", cache_bytes=1 << 20)
    table, static = new_table(storage=str(storage.path)), new_static()
    ones = tf.ones([KEYS.size, DIM])
    tf_ops.assign(table, tf.constant(KEYS), ones)
    wrong = []

    def look_up(seed):
        keys = np.random.default_rng(seed).permutation(KEYS)
        rows = gather(table, static, keys, keys % 2, make_rows=False).numpy()
        if not (rows[keys % 2 == 1] == 1).all():
            wrong.append(seed)

    def assign(seed):
        keys = np.random.default_rng(seed).permutation(KEYS)
        tf_ops.assign(table, tf.constant(keys), ones)

    def repeat(call, times):
        for seed in range(times):
            call(seed)

    work = [(look_up, 10)] * 6 + [(assign, 10), (lambda _: storage.flush(), 20)]
    # The threads are daemons, since those that wait for good would keep the process, too.
    threads = [threading.Thread(target=repeat, args=each, daemon=True) for each in work]
    deadline = time.monotonic() + SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "calls wait for each other for good"
    assert wrong == []
    storage.close()
