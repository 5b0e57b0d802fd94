"""Walks through the rows of tables, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.arguments import check_integer

Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


def batches_in_memory(owner: Any, handle: tf.Tensor, dim: int, n: int) -> Iterator[Batch]:
    """Returns an iterator over the rows of a table in memory; see `Table.batches`.

    It lists the keys of one part of the table at a time, of which there are at least 8, and reads
    the rows of `n` keys. The iterator keeps `owner`, the object that owns the rows, alive.
    """
    return _batches(owner, handle, dim, check_integer("n", n, 1, 2**32))


def _batches(owner: Any, handle: tf.Tensor, dim: int, n: int) -> Iterator[Batch]:
    waiting = np.zeros(0, np.int64)
    part, parts = 0, 1
    while True:
        while len(waiting) < n and part < parts:
            keys, number = tf_ops.list_keys(handle, part)
            waiting = np.concatenate([waiting, keys.numpy()])
            part, parts = part + 1, int(number)
        if len(waiting) == 0:
            return
        keys, waiting = waiting[:n], waiting[n:]
        vectors = tf_ops.lookup(handle, keys, dim, make_rows=False).embeddings.numpy()
        # Rows may have gone since their keys were listed.
        there = tf_ops.metadata(handle, keys).exists.numpy()
        if not there.all():
            keys, vectors = keys[there], vectors[there]
        if len(keys):
            yield keys, vectors
