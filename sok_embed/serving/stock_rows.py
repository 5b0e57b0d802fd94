"""Rows of tables in variables, which TensorFlow's own ops find by their keys.

Keys are sorted by a hash, and an array says where those with the same highest bits of it begin:
two keys a bucket on average. A lookup compares the key with as many keys as the longest bucket
has, which lie beside each other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed.serving.held_rows import HeldRows
from sok_embed.tf_ops import stock_hashes
from sok_embed.tf_ops.served import ServedAdaptiveRows, ServedRows, checked

_KEYS_A_BUCKET = 2
_CPU = "/device:CPU:0"
# A table without a hash becomes a matrix unless it would have more than this many rows for each
# that is there, and more than these beside.
_DENSE_SHARE, _DENSE_ROWS = 4, 1 << 20


class StockRows(tf.Module, ServedRows):
    """Rows by key.

    Args:
        held: The rows.
        missing: `"initializer"` or `"zeros"`: the vectors of keys without a row.
    """

    def __init__(self, held: HeldRows, missing: str) -> None:
        super().__init__()
        self._name_of_table, self._dim = held.name, held.dim
        self._start = held.start if missing == "initializer" else None
        self._start_vector = held.started(np.zeros([1], np.int64))[0]
        self._key_limit = held.key_limit
        keys, rows = _sorted(held)
        self._count = len(keys)
        self._bits = max(0, int(self._count // _KEYS_A_BUCKET).bit_length())
        hashed = _mix64(keys.view(np.uint64))
        # A shift by 64 is not defined.
        buckets = (hashed >> np.uint64(1)) >> np.uint64(63 - self._bits)
        lengths = np.bincount(buckets.astype(np.int64), minlength=1 << self._bits)
        self._longest = int(lengths.max()) if self._count else 0
        begins = np.cumsum(lengths) - lengths
        begins = begins.astype(np.int32 if self._count < 2**31 else np.int64)
        # The last bucket is read as far as the longest goes; the key there is found earlier.
        padded = np.concatenate([keys, np.repeat(keys[-1:], self._longest)])
        with tf.device(_CPU):
            self.keys = tf.Variable(padded, trainable=False, name="keys")
            self.begins = tf.Variable(begins, trainable=False, name="begins")
            self.rows = tf.Variable(rows, trainable=False, name="rows")

    def find(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ServedRows`."""
        with tf.device(_CPU):
            flat = tf.reshape(keys, [-1])
            if self._key_limit:
                flat = _within(flat, self._key_limit, self._name_of_table)
            places, exists = self._places(flat)
            rows = tf.zeros([])
            if self._count:
                rows = tf.cast(tf.gather(self.rows, places), tf.float32)
            rows = tf.where(exists[:, tf.newaxis], rows, tf.zeros([1, self._dim]))
        return _shaped(rows, keys, self._dim), _shaped(exists, keys)

    def _places(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the places of the rows of keys `[n]`, 0 for those without, and which have one."""
        if not self._count:
            none = tf.zeros_like(keys)
            return none, tf.cast(none, tf.bool)
        hashed = stock_hashes.mix64(tf.bitcast(keys, tf.uint64))
        begins = tf.gather(self.begins, stock_hashes.high_bits(hashed, self._bits))
        begins = tf.cast(begins, tf.int64)
        near = tf.range(self._longest, dtype=tf.int64)
        equal = tf.equal(tf.gather(self.keys, begins[:, tf.newaxis] + near), keys[:, tf.newaxis])
        exists = tf.reduce_any(equal, 1)
        places = begins + tf.argmax(equal, 1)
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
                f"Received: {self._start.kind}, with ops='stock' and missing='initializer'. Pass "
                "missing='zeros', by which such keys have zeros, or ops='native'."
            )
        return tf.where(exists[..., tf.newaxis], rows, self._start_vector)


class DenseRows(tf.Module, ServedRows):
    """Rows of a table without a hash, whose keys are positions.

    Args:
        held: The rows.
        missing: `"initializer"` or `"zeros"`: the vectors of keys without a row.
    """

    def __init__(self, held: HeldRows, missing: str) -> None:
        super().__init__()
        self._name_of_table, self._dim, self._key_limit = held.name, held.dim, held.key_limit
        rows, exists = held.dense()
        if missing == "zeros":
            rows[~exists] = 0
        with tf.device(_CPU):
            self.rows = tf.Variable(rows, trainable=False, name="rows")
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
            flat = _within(tf.reshape(keys, [-1]), self._key_limit, self._name_of_table)
            rows = tf.cast(tf.gather(self.rows, flat), tf.float32)
        return _shaped(rows, keys, self._dim)


class StockAdaptiveRows(tf.Module, ServedAdaptiveRows):
    """Own rows by key, and all static rows in one matrix.

    Args:
        own: The own rows.
        static: The static rows.
        buckets: The number of static rows.
    """

    def __init__(self, own: ServedRows, static: HeldRows, buckets: int) -> None:
        super().__init__()
        self.own = own
        self._buckets, self._dim = buckets, static.dim
        rows = np.empty([buckets, static.dim], np.float32)
        size = static.batch_size
        for begin in range(0, buckets, size):
            places = np.arange(begin, min(begin + size, buckets), dtype=np.int64)
            rows[places] = static.vectors(places)
        with tf.device(_CPU):
            self.static = tf.Variable(rows, trainable=False, name="static")

    def lookup(self, keys: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """See `ServedAdaptiveRows`."""
        rows, exists = self.own.find(keys)
        with tf.device(_CPU):
            if mask is not None:
                right = (mask >= -1) & (mask <= 1)
                mask = checked(mask, right, "Expected a mask of -1, 0 and 1. Received:", mask)
                exists &= tf.not_equal(mask, 0)
            places = stock_hashes.adaptive_buckets(keys, self._buckets)
            static = tf.cast(tf.gather(self.static, places), tf.float32)
            vectors = tf.where(exists[..., tf.newaxis], rows, static)
        return _shaped(tf.reshape(vectors, [-1, self._dim]), keys, self._dim)


def stock_rows(held: HeldRows, missing: str) -> ServedRows:
    """Returns the rows of a table in the form that suits its keys."""
    limit = held.key_limit
    if limit and limit <= held.count * _DENSE_SHARE + _DENSE_ROWS:
        return DenseRows(held, missing)
    return StockRows(held, missing)


def _sorted(held: HeldRows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Returns all keys and rows, sorted by the hash of the key."""
    batches = list(held.batches())
    keys = np.concatenate([np.zeros([0], np.int64), *(batch[0] for batch in batches)])
    rows = np.concatenate([np.zeros([0, held.dim], np.float32), *(batch[1] for batch in batches)])
    batches.clear()
    order = np.argsort(_mix64(keys.view(np.uint64)), kind="stable")
    return keys[order], rows[order]


def _mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns `Mix64` of the core."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _within(keys: tf.Tensor, limit: int, table: str) -> tf.Tensor:
    right = (keys >= 0) & (keys < limit)
    return checked(keys, right, f"table '{table}': expected keys in [0, {limit}). Received:", keys)


def _shaped(values: tf.Tensor, keys: tf.Tensor, dim: int | None = None) -> tf.Tensor:
    """Returns values `[n]` or `[n, dim]` in the shape of the keys."""
    last = [] if dim is None else [dim]
    shaped = tf.reshape(values, tf.concat([tf.shape(keys), tf.constant(last, tf.int32)], 0))
    shaped.set_shape([*keys.shape, *last] if keys.shape.rank is not None else None)
    return shaped
