"""Pools rows with TensorFlow's own ops, with the same bits as the core's pooling.

Sums are computed in the order of the keys, in float32: `unsorted_segment_sum` adds in that order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from sok_embed.tf_ops.served import checked


class Segments(NamedTuple):
    """The bag of each entry.

    Attributes:
        bag_of: int64 `[n]`.
        lengths: int64 `[bags]`, the entries of each bag.
    """

    bag_of: tf.Tensor
    lengths: tf.Tensor

    @property
    def bags(self) -> tf.Tensor:
        """The number of bags."""
        return tf.size(self.lengths, tf.int64)

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the sums of the values `[n, …]` of each bag, `[bags, …]`."""
        return tf.math.unsorted_segment_sum(values, self.bag_of, self.bags)

    def max(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the largest values `[n, d]` of each bag, and zeros for empty bags."""
        greatest = tf.math.unsorted_segment_max(values, self.bag_of, self.bags)
        return tf.where(self.lengths[:, tf.newaxis] >= 1, greatest, tf.zeros([], values.dtype))

    def where(self, stays: tf.Tensor) -> Segments:
        """Returns the bags with some of their entries: those for which bool `[n]` says so."""
        counted = tf.cast(stays, tf.int64)
        return Segments(tf.boolean_mask(self.bag_of, stays), self.sum(counted))


def of_splits(splits: tf.Tensor) -> Segments:
    """Returns the bags of row splits, int64 `[bags + 1]`."""
    lengths = splits[1:] - splits[:-1]
    return Segments(tf.repeat(tf.range(tf.size(lengths, tf.int64)), lengths), lengths)


def of_rows(bags: tf.Tensor, length: tf.Tensor) -> Segments:
    """Returns bags of one length.

    Args:
        bags: The number of bags, an int64 scalar.
        length: The number of entries of each, an int64 scalar.
    """
    return Segments(tf.repeat(tf.range(bags), length), tf.fill([bags], length))


def pool(
    rows: tf.Tensor, segments: Segments, weights: tf.Tensor | None, combiner: str
) -> tf.Tensor:
    """Returns a vector for each bag, as `collection_pool` does: float32 `[bags, dim]`.

    Args:
        rows: float32 `[n, dim]`, the rows of the entries.
        segments: The bags.
        weights: float32 `[n]`, or `None`.
        combiner: `"sum"`, `"mean"`, `"sqrtn"` or `"max"`.
    """
    lengths = segments.lengths
    if combiner == "max":
        return segments.max(rows)
    if weights is not None:
        weights = checked(
            tf.reshape(weights, [-1]),
            tf.equal(tf.size(weights, tf.int64), tf.size(segments.bag_of, tf.int64)),
            "Expected one weight a key. Received:",
            tf.shape(weights),
        )
        rows *= weights[:, tf.newaxis]
    sums = segments.sum(rows)
    if combiner in ("mean", "sqrtn"):
        if weights is None:
            divisor = tf.cast(lengths, tf.float32)
        else:
            divisor = segments.sum(weights if combiner == "mean" else weights * weights)
        if combiner == "sqrtn":
            divisor = tf.sqrt(divisor)
        scale = tf.where(tf.equal(divisor, 0.0), 0.0, reciprocal(divisor))
        sums *= scale[:, tf.newaxis]
    if weights is not None:
        return kept_apart(sums)
    # The vector of a bag with one key is that key's row, in which a zero may have a sign.
    begins = tf.cumsum(lengths, exclusive=True)
    padded = tf.pad(rows, [[0, 1], [0, 0]])  # the last bags may be empty, and begin at the end
    alone = tf.equal(lengths, 1)[:, tf.newaxis]
    return tf.where(alone, tf.gather(padded, begins), sums)


def reciprocal(values: tf.Tensor) -> tf.Tensor:
    """Returns 1 / values, rounded to the nearest float32.

    TensorFlow turns 1 divided by a float32 into `Reciprocal`, whose last bit may be wrong: its
    result for 2 is less than 0.5. Computed in float64 and then rounded it is right.
    """
    return tf.cast(1.0 / tf.cast(values, tf.float64), tf.float32)


# Bags of one length, if it is at most this, are summed by one op for each place. TensorFlow may
# replace these ops by one `AddN`, which adds up to nine tensors in their order, including the
# zeros.
_FEW = 8


def pool_rows(rows: tf.Tensor, length: int, combiner: str) -> tf.Tensor:
    """Returns the same as `pool` for bags of one length without weights, with fewer ops.

    Args:
        rows: float32 `[bags * length, dim]`.
        length: The number of entries of each bag, at least 1.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.
    """
    if length == 1:  # a bag of one key is that key's row
        return rows
    if length <= _FEW:
        # Sums begin with zeros, so that a sum of -0.0 is 0.0. The zeros are not a constant, since
        # TensorFlow removes an addition of a constant zero from a graph.
        padded = tf.pad(tf.reshape(rows, [-1, length, rows.shape[1]]), [[0, 0], [1, 0], [0, 0]])
        sums, *rest = tf.unstack(padded, axis=1)
        for each in rest:
            sums += each
    else:
        bags = tf.shape(rows, tf.int64)[0] // length
        sums = tf.math.unsorted_segment_sum(rows, tf.repeat(tf.range(bags), length), bags)
    if combiner != "sum":
        divisor = np.float32(length) if combiner == "mean" else np.sqrt(np.float32(length))
        sums *= np.float32(1) / divisor
    return kept_apart(sums)


def kept_apart(values: tf.Tensor) -> tf.Tensor:
    """Returns the same values, which TensorFlow computes before what follows them.

    It would reorder a product of three factors, or a sum, that goes on in the layers of a model,
    such as those of `BatchNormalization`, and so change the last bits. It leaves `EnsureShape`, an
    op without a cost, where it is.
    """
    return tf.raw_ops.EnsureShape(input=values, shape=values.shape)


def row_splits(rows: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
    """Returns where the entries of each row begin and end, as the op `row_splits` does.

    Args:
        rows: int64 `[n]`.
        num_rows: An int64 scalar.
    """
    rows = checked(
        rows,
        (rows >= 0) & (rows <= num_rows - 1),
        "Expected rows of a sparse tensor below their number. Received:",
        rows,
    )
    rows = checked(
        rows, rows[1:] >= rows[:-1], "Expected a sparse tensor in the order of its rows."
    )
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, num_rows)
    return tf.concat([[0], tf.cumsum(lengths)], 0)
