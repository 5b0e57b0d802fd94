"""Lookups in several tables at once: three messages between workers, whatever the number of tables.

A message has a segment for each worker. A segment of the keys says first how many rows of each of T
tables follow, `[T counts | rows of table 0 | rows of table 1 | …]`. Such a row is a key and what is
said of it. The vectors come back in the same order, and their gradients go the way that these came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.communicators.segments import transposed
from sok_embed.lookups.lookup import Call, Column, Request, TableLookup


class Asked(NamedTuple):
    """The request of the rows of one table.

    Attributes:
        lookup: Finds the rows of the table.
        call: The call, from the lookup's `begin`.
        keys: int64 of any shape.
        columns: The values for the owners beside each key.
    """

    lookup: TableLookup
    call: Call
    keys: tf.Tensor
    columns: Sequence[Column] = ()

    @property
    def width(self) -> int:
        """The number of integers in a row of a message: a key, and its columns."""
        return 1 + len(self.columns)


def vectors_of_many(asked: Sequence[Asked], name: str) -> list[tf.Tensor]:
    """Looks keys up in several tables, each of which is read once. Collective.

    Args:
        asked: The request of each table; the same tables in the same order on every worker.
        name: The name of these exchanges; the same on every worker.

    Returns:
        float32 `keys.shape + [dim]` for each table.

    Raises:
        ValueError: If a table was made for another worker.
    """
    if not asked:
        return []
    communicator = [one.lookup.communicator() for one in asked][0]
    workers = communicator.size
    dims = [one.lookup.table.dim for one in asked]
    requests = [one.lookup.request(one.keys, one.columns, workers) for one in asked]
    # int32 [T, workers], as all counts here.
    wanted = tf.reshape(tf.stack([request.splits for request in requests]), [len(asked), workers])
    message, splits = _packed(asked, requests, wanted)
    name = f"sok_embed.{name}"
    received = communicator.all_to_all(message, splits, f"{name}.keys")
    served, rows = _unpacked(asked, *received, workers)
    found = [
        one.lookup.read(one.call, tf.float32, *tf.unstack(asked_rows, one.width, axis=1))
        for one, asked_rows in zip(asked, rows, strict=True)
    ]
    floats_of_a_row = tf.constant(dims)[:, tf.newaxis]
    sent, expected = served * floats_of_a_row, wanted * floats_of_a_row
    by_worker = transposed(tf.concat([tf.reshape(vectors, [-1]) for vectors in found], 0), sent)
    by_worker = communicator.exchange(
        by_worker, tf.reduce_sum(sent, 0), tf.reduce_sum(expected, 0), name
    )
    by_table = transposed(by_worker, tf.transpose(expected))
    answers = tf.split(by_table, tf.reduce_sum(expected, 1), num=len(asked))
    return [
        one.lookup.shaped(tf_ops.expand(tf.reshape(answer, [-1, dim]), request.inverse), one.keys)
        for one, dim, answer, request in zip(asked, dims, answers, requests, strict=True)
    ]


def _packed(
    asked: Sequence[Asked], requests: Sequence[Request], wanted: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message of the keys.

    Args:
        asked: The request of each of T tables.
        requests: The distinct keys of each, by owner.
        wanted: `[T, workers]`, how many rows of each table every worker is asked for.

    Returns:
        int64 `[m]`, and how many integers go to each worker, int32 `[workers]`.
    """
    tables, workers = wanted.shape
    counts = tf.cast(tf.transpose(wanted), tf.int64)
    fields = [tf.reshape(rows, [-1]) for rows in (counts, *(request.rows for request in requests))]
    header = tf.fill([1, workers], tables)
    sizes = tf.concat([header, wanted * _widths(asked)[:, tf.newaxis]], 0)
    return transposed(tf.concat(fields, 0), sizes), tf.reduce_sum(sizes, 0)


def _unpacked(
    asked: Sequence[Asked], message: tf.Tensor, splits: tf.Tensor, workers: int
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the requests of all workers to this one.

    Args:
        asked: The requests, as for `_packed`.
        message: int64 `[m]`, what has come.
        splits: int32 `[workers]`, how many integers came from each worker.
        workers: The number of workers.

    Returns:
        int32 `[T, workers]`, how many rows of each table every worker asks for; and those of each
        table, int64 `[rows, width]`, by worker.
    """
    tables = len(asked)
    begins = tf.reshape(tf.cumsum(splits, exclusive=True), [workers, 1])
    served = tf.cast(tf.gather(message, begins + tf.range(tables)), tf.int32)
    sizes = tf.concat([tf.fill([workers, 1], tables), served * _widths(asked)], 1)
    _, *fields = tf.split(transposed(message, sizes), tf.reduce_sum(sizes, 0), num=1 + tables)
    rows = [tf.reshape(flat, [-1, one.width]) for one, flat in zip(asked, fields, strict=True)]
    return tf.transpose(served), rows


def _widths(asked: Sequence[Asked]) -> tf.Tensor:
    return tf.constant([one.width for one in asked])
