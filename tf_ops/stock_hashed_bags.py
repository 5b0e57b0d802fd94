"""Hashed bags with TensorFlow's own ops, with the same bits as the op.

`tf_ops/core/bags/position_map.h` has the formulas.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sok_embed.tf_ops.served import checked
from sok_embed.tf_ops.stock_bags import Segments, of_rows, of_splits
from sok_embed.tf_ops.stock_hashes import mix64, scaled, u64

_GOLDEN = 0x9E3779B97F4A7C15
_SIGN_SALT = 0xD1B54A32D192ED03
_ID_FACTOR, _BLOCK_FACTOR, _TERM, _PRIME = 9824516537, 57857966300227, 104729, 117130198221199
_UINT64 = 2**64


def hashed_bag(
    weight: Any,
    ids: tf.Tensor,
    offsets: tf.Tensor | None,
    scales: tf.Tensor | None,
    *,
    num_embeddings: int,
    embedding_dim: int,
    mode: str,
    spec: Any,
    padding_idx: int | None,
    include_last_offset: bool,
    dtype: tf.DType,
) -> tf.Tensor:
    """Returns the same as `tf_ops.hashed_bag`, from the same arguments."""
    given = tf.cast(ids, tf.int64)
    flat = tf.reshape(given, [-1])
    in_range = (flat >= 0) & (flat <= num_embeddings - 1)
    flat = checked(flat, in_range, f"Expected ids in [0, {num_embeddings}). Received:", flat)
    if offsets is None:
        shape = tf.shape(given, tf.int64)
        segments = of_rows(shape[0], shape[1])
    else:
        segments = of_splits(_splits(offsets, tf.size(flat, tf.int64), include_last_offset))
    factors = None if scales is None else tf.reshape(scales, [-1])
    if padding_idx is not None:
        stays = tf.not_equal(flat, padding_idx)
        segments = segments.where(stays)
        flat = tf.boolean_mask(flat, stays)
        factors = None if factors is None else tf.boolean_mask(factors, stays)
    rows = _rows(weight, flat, embedding_dim, spec)
    return tf.cast(_reduced(rows, segments, factors, mode), dtype)


def _reduced(rows: tf.Tensor, segments: Segments, factors: Any, mode: str) -> tf.Tensor:
    if mode == "max":
        return segments.max(rows)
    if factors is not None:
        rows *= tf.cast(factors, rows.dtype)[:, tf.newaxis]
    sums = segments.sum(rows)
    if mode == "sum":
        return sums
    return sums / tf.cast(tf.maximum(segments.lengths, 1), rows.dtype)[:, tf.newaxis]


def _splits(offsets: tf.Tensor, entries: tf.Tensor, has_last: bool) -> tf.Tensor:
    """Returns the row splits of offsets, int64 `[bags + 1]`."""
    splits = tf.cast(offsets, tf.int64)
    if not has_last:
        splits = tf.concat([splits, [entries]], 0)
    right = tf.concat(
        [tf.equal(splits[:1], 0), splits[1:] >= splits[:-1], tf.equal(splits[-1:], entries)], 0
    )
    return checked(
        splits,
        right,
        "Expected offsets that begin with 0, never fall and lie within the ids. Received:",
        offsets,
    )


def _rows(weight: Any, ids: tf.Tensor, dim: int, spec: Any) -> tf.Tensor:
    """Returns the rows of ids, `[n, dim]`, in the type of sums."""
    size = int(weight.shape[0])
    block = min(spec.block_size, dim)
    blocks = -(-dim // block)
    words = tf.cast(ids, tf.uint64)
    key = mix64(tf.bitwise.bitwise_xor(words, mix64(u64((spec.seed + _GOLDEN) % _UINT64))))
    numbers = tf.range(blocks, dtype=tf.int64)
    if spec.hash == "mixed":
        steps = u64([(k + 1) * _GOLDEN % _UINT64 for k in range(blocks)])
        bases = scaled(mix64(key[:, tf.newaxis] + steps), size)
    elif spec.hash == "original":
        steps = [(k * _BLOCK_FACTOR + _TERM) % _UINT64 for k in range(blocks)]
        hashed = words[:, tf.newaxis] * u64(_ID_FACTOR) + u64(steps)
        bases = tf.cast(tf.math.floormod(hashed, u64(_PRIME)), tf.int64) % size
    else:
        bases = (ids[:, tf.newaxis] * dim + numbers * block) % size
    places = (bases[:, :, tf.newaxis] + tf.range(block, dtype=tf.int64)) % size
    places = tf.reshape(places, [-1, blocks * block])[:, :dim]
    rows = tf.gather(weight, places)
    if rows.dtype in (tf.bfloat16, tf.float16):
        rows = tf.cast(rows, tf.float32)
    if spec.sign:
        rows *= _signs(key, dim, rows.dtype)
    return tf.reshape(rows, [-1, dim])


def _signs(key: tf.Tensor, dim: int, dtype: tf.DType) -> tf.Tensor:
    """Returns the sign, 1 or -1, of each element of the rows of keys, `[n, dim]`."""
    words = -(-dim // 64)
    steps = u64([(word + 1) * _GOLDEN % _UINT64 for word in range(words)])
    salted = tf.bitwise.bitwise_xor(key, u64(_SIGN_SALT))
    hashed = mix64(salted[:, tf.newaxis] + steps)  # (n, words)
    bits = tf.bitwise.right_shift(hashed[:, :, tf.newaxis], u64(range(64)))
    minus = tf.reshape(tf.bitwise.bitwise_and(bits, u64(1)), [-1, words * 64])[:, :dim]
    return tf.cast(1 - 2 * tf.cast(minus, tf.int32), dtype)
