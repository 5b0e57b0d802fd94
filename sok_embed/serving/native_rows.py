"""Rows of tables in mapped files, in which the ops of this library find keys."""

from __future__ import annotations

import tensorflow as tf

from sok_embed.serving.held_rows import HeldRows
from sok_embed.serving.served_table import ServedTable
from sok_embed.serving.table_files import TableFiles
from sok_embed.tf_ops.served import ServedRows, checked


class NativeRows(tf.Module, ServedRows):
    """Rows by key; the arguments are those of `stock_rows`."""

    def __init__(self, held: HeldRows, files: TableFiles, missing: str) -> None:
        super().__init__()
        self._name_of_table, self._limit = held.name, held.key_limit
        self.table = ServedTable(files.write(held, missing), held.dim)

    def find(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ServedRows`."""
        exists = self.table.contains(keys)
        rows = tf.where(exists[..., tf.newaxis], self.lookup(keys), tf.zeros([]))
        return rows, exists

    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        """See `ServedRows`."""
        if self._limit:
            keys = checked(
                keys,
                (keys >= 0) & (keys < self._limit),
                f"table '{self._name_of_table}': expected keys in [0, {self._limit}). Received:",
                keys,
            )
        return self.table.lookup(keys)
