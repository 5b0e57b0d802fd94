"""Averages sparse gradients over workers, in two messages for any number of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from sok_embed.communicators import Communicator

# Gradients of these types are sent and summed in float32.
_SHORT = (tf.float16, tf.bfloat16)


def average_slices(
    slices: Mapping[int, tf.IndexedSlices], communicator: Communicator
) -> dict[int, tf.IndexedSlices]:
    """Averages sparse gradients over all workers. Collective.

    Every worker sends all others the number of rows of each gradient and their indices, in one
    message, and the rows of each type in another. Each worker gives the same gradients, but for
    their rows.

    Returns:
        The averages, with distinct indices: rules that square a gradient must square the sum.
    """
    if not slices:
        return {}
    workers, gradients = communicator.size, list(slices.values())
    indices = [tf.cast(each.indices, tf.int64) for each in gradients]
    own = tf.stack([tf.size(each, tf.int64) for each in indices])
    message, splits = communicator.all_gather(
        tf.concat([own, *indices], 0), "sok_embed.slices.indices"
    )
    begins = tf.reshape(tf.cumsum(splits, exclusive=True), [workers, 1])
    counts = tf.cast(tf.gather(message, begins + tf.range(len(gradients))), tf.int32)
    _, *all_indices = _by_gradient(
        message, tf.concat([tf.fill([workers, 1], len(gradients)), counts], 1)
    )
    averages: dict[int, tf.IndexedSlices] = {}
    numbers = list(slices)
    for dtype, places in _by_type(gradients).items():
        values = [tf.cast(gradients[at].values, dtype) for at in places]
        widths = tf.stack([tf.reduce_prod(tf.shape(each)[1:]) for each in values])
        flat = tf.concat([tf.reshape(each, [-1]) for each in values], 0)
        received, _ = communicator.all_gather(flat, f"sok_embed.slices.values.{dtype.name}")
        sizes = tf.gather(counts, places, axis=1) * widths
        parts = _by_gradient(received, sizes)
        for at, part, of_one in zip(places, parts, values, strict=True):
            rows = tf.reshape(part, tf.concat([tf.shape(all_indices[at]), tf.shape(of_one)[1:]], 0))
            rows.set_shape([None, *of_one.shape[1:]])
            averages[numbers[at]] = _mean(gradients[at], all_indices[at], rows, workers)
    return averages


def _by_type(gradients: list[tf.IndexedSlices]) -> dict[Any, list[int]]:
    """Returns the places of gradients by the type in which they are sent."""
    places: dict[Any, list[int]] = {}
    for at, gradient in enumerate(gradients):
        dtype = tf.float32 if gradient.values.dtype in _SHORT else gradient.values.dtype
        places.setdefault(dtype, []).append(at)
    return places


def _by_gradient(message: tf.Tensor, sizes: tf.Tensor) -> list[tf.Tensor]:
    """Divides a message of all workers by gradient.

    Args:
        message: `[n]`, the part of worker 0 first; in each part gradient 0 first.
        sizes: int32 `[workers, gradients]`, whose shape is static.
    """
    workers, gradients = sizes.shape
    pieces = tf.split(message, tf.reshape(sizes, [-1]), num=workers * gradients)
    return [tf.concat(pieces[at::gradients], 0) for at in range(gradients)]


def _mean(
    own: tf.IndexedSlices, indices: tf.Tensor, rows: tf.Tensor, workers: int
) -> tf.IndexedSlices:
    distinct, positions = tf.unique(indices)
    sums = tf.math.unsorted_segment_sum(rows, positions, tf.size(distinct))
    values = tf.cast(sums / tf.cast(workers, sums.dtype), own.values.dtype)
    return tf.IndexedSlices(values, tf.cast(distinct, own.indices.dtype), own.dense_shape)
