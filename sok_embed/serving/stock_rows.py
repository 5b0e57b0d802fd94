"""Rows of tables in variables, which TensorFlow's own ops find by their keys.

Keys are sorted by a hash. A bucket has the keys whose hashes have the same highest bits, between
one and two on average, and an array says where each begins. A lookup compares the key with as many
adjacent keys as the longest bucket has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed.serving.held_rows import HeldRows
from sok_embed.serving.rows import MissingRows
from sok_embed.serving.safetensors import arrays_of
from sok_embed.serving.table_files import TableFiles
from sok_embed.tf_ops import stock_hashes
from sok_embed.tf_ops.served import ServedRows, checked

_KEYS_A_BUCKET = 2
_CPU = "/device:CPU:0"
# A table without a hash becomes a matrix, unless that would have more than _DENSE_SHARE rows for
# each existing row, and more than _DENSE_ROWS further rows.
_DENSE_SHARE, _DENSE_ROWS = 4, 1 << 20


class Values(tf.Module):
    """Rows in the type of a file, which are read as float32.

    Args:
        held: The table to which the rows belong.
        order: The places in the file of the rows, in their new order; `None`: the order of the
            file.
    """

    def __init__(self, arrays: Mapping[str, Any], held: HeldRows, order: Any = None) -> None:
        super().__init__()
        self._dim = held.dim
        rows, scale_bias = arrays["rows"], arrays.get("scale_bias", ())
        if order is not None:
            rows = rows[order]
            scale_bias = scale_bias[order] if len(scale_bias) else scale_bias
        with tf.device(_CPU):
            self.rows = tf.Variable(rows, trainable=False, name="rows")
            if len(scale_bias):
                self.scale_bias = tf.Variable(scale_bias, trainable=False, name="scale_bias")

    def gather(self, places: tf.Tensor) -> tf.Tensor:
        """Returns the rows at places `[n]`, float32 `[n, dim]`."""
        rows = tf.gather(self.rows, places)
        if rows.dtype == tf.uint8:  # two values a byte, the first in the low bits
            pairs = [tf.bitwise.bitwise_and(rows, 15), tf.bitwise.right_shift(rows, 4)]
            width = 2 * self.rows.shape[1]
            rows = tf.reshape(tf.stack(pairs, -1), [-1, width])[:, : self._dim]
            rows = tf.cast(rows, tf.float32) - 8.0
        rows = tf.cast(rows, tf.float32)
        if not hasattr(self, "scale_bias"):
            return rows
        scale, bias = tf.split(tf.cast(tf.gather(self.scale_bias, places), tf.float32), 2, 1)
        return scale * rows + bias


class StockRows(tf.Module, ServedRows):
    """Rows by key; the arguments are those of `stock_rows`."""

    def __init__(self, held: HeldRows, files: TableFiles, missing: str) -> None:
        super().__init__()
        self._name_of_table, self._dim = held.name, held.dim
        self._start: MissingRows | None = held.start if missing == "initializer" else None
        self._start_vector = held.started(np.zeros([1], np.int64))[0]
        self._key_limit = held.key_limit
        path = files.write(held)
        arrays = arrays_of(path)
        keys = arrays["keys"].view(np.int64)
        self._count = len(keys)
        self._bits = max(0, int(self._count // _KEYS_A_BUCKET).bit_length())
        hashed = _mix64(arrays["keys"])
        # A shift by 64 is not defined.
        buckets = (hashed >> np.uint64(1)) >> np.uint64(63 - self._bits)
        lengths = np.bincount(buckets.astype(np.int64), minlength=1 << self._bits)
        self._longest = int(lengths.max()) if self._count else 0
        begins = np.cumsum(lengths) - lengths
        begins = begins.astype(np.int32 if self._count < 2**31 else np.int64)
        # Reading the last bucket goes as far as the longest would; repeated keys there change
        # nothing.
        padded = np.concatenate([keys, np.repeat(keys[-1:], self._longest)])
        with tf.device(_CPU):
            self.keys = tf.Variable(padded, trainable=False, name="keys")
            self.begins = tf.Variable(begins, trainable=False, name="begins")
        self.values = Values(arrays, held)
        os.remove(path)

    def find(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ServedRows`."""
        with tf.device(_CPU):
            flat = tf.reshape(keys, [-1])
            if self._key_limit:
                flat = _within(flat, self._key_limit, self._name_of_table)
            places, exists = self._places(flat)
            rows = tf.zeros([])
            if self._count:
                rows = self.values.gather(places)
            rows = tf.where(exists[:, tf.newaxis], rows, tf.zeros([1, self._dim]))
        return _shaped(rows, keys, self._dim), _shaped(exists, keys)

    def _places(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the places of the rows of keys `[n]`, 0 for those without, and which have one."""
        if not self._count:
            none = tf.zeros_like(keys)
            return none, tf.cast(none, tf.bool)
        hashed = stock_hashes.mix64(tf.cast(keys, tf.uint64))
        begins = tf.gather(self.begins, stock_hashes.high_bits(hashed, self._bits))
        begins = tf.cast(begins, tf.int64)
        near = tf.range(self._longest, dtype=tf.int64)
        equal = tf.equal(tf.gather(self.keys, begins[:, tf.newaxis] + near), keys[:, tf.newaxis])
        exists = tf.reduce_any(equal, 1)
        places = begins + tf.argmax(tf.cast(equal, tf.uint8), 1)
        return tf.where(exists, places, tf.zeros_like(places)), exists

    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        """See `ServedRows`."""
        rows, exists = self.find(keys)
        if self._start is None:
            return rows
        if self._start.kind != "constant":
            raise ValueError(
                f"Table '{self._name_of_table}': expected an initializer that is constant (zeros, "
                "ones or a Constant), which TensorFlow's own ops know for keys without a row. "
                f"Received: {self._start.kind}, with ops='stock' or 'onnx' and "
                "missing='initializer'. Pass missing='zeros', by which such keys have zeros, or "
                "ops='native'."
            )
        return tf.where(exists[..., tf.newaxis], rows, self._start_vector)


class DenseRows(tf.Module, ServedRows):
    """Rows of keys that are positions below a limit; other arguments are those of `stock_rows`."""

    def __init__(self, held: HeldRows, files: TableFiles, limit: int, missing: str) -> None:
        super().__init__()
        self._name_of_table, self._dim, self._limit = held.name, held.dim, limit
        path, exists = files.write_all(held, limit, missing)
        arrays = arrays_of(path)
        self.values = Values(arrays, held, np.argsort(arrays["keys"]))
        os.remove(path)
        with tf.device(_CPU):
            self.exists = tf.Variable(exists, trainable=False, name="exists")

    def find(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ServedRows`."""
        rows = self.lookup(keys)
        with tf.device(_CPU):
            exists = tf.gather(self.exists, keys)
            return tf.where(exists[..., tf.newaxis], rows, tf.zeros([])), exists

    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        """See `ServedRows`."""
        with tf.device(_CPU):
            flat = _within(tf.reshape(keys, [-1]), self._limit, self._name_of_table)
            rows = self.values.gather(flat)
        return _shaped(rows, keys, self._dim)


def stock_rows(held: HeldRows, files: TableFiles, missing: str) -> ServedRows:
    """Returns the rows of a table in the form that suits its keys.

    Rows get from the table to variables by the files of the export. Keys without a row have vectors
    as `missing` says, `"initializer"` or `"zeros"`.
    """
    limit = held.key_limit
    if limit and limit <= held.count * _DENSE_SHARE + _DENSE_ROWS:
        return DenseRows(held, files, limit, missing)
    return StockRows(held, files, missing)


def _mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns `Mix64` of the core."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _within(keys: tf.Tensor, limit: int, table: str) -> tf.Tensor:
    right = (keys >= 0) & (keys <= limit - 1)
    return checked(keys, right, f"table '{table}': expected keys in [0, {limit}). Received:", keys)


def _shaped(values: tf.Tensor, keys: tf.Tensor, dim: int | None = None) -> tf.Tensor:
    """Returns values `[n]` or `[n, dim]` in the shape of the keys."""
    last = [] if dim is None else [dim]
    shaped = tf.reshape(values, tf.concat([tf.shape(keys), tf.constant(last, tf.int32)], 0))
    shaped.set_shape([*keys.shape, *last] if keys.shape.rank is not None else None)
    return shaped
