"""The one form of all inputs that are pooled: keys, splits and weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.input_forms import Form, check_beside, flat_values, values_beside
from sok_embed.tf_ops.served import checked


class Bags(NamedTuple):
    """Keys that are pooled over the last axis of an input.

    Attributes:
        keys: Integers `[bags, L]`; with splits `[n]`.
        splits: int64 `[bags + 1]`, the row splits of the bags. `None`: a bag is a row of `keys`.
        weights: float32, one a key, in the order of the keys. `None`: there are none.
    """

    keys: tf.Tensor
    splits: tf.Tensor | None
    weights: tf.Tensor | None

    def where(self, stays: tf.Tensor) -> Bags:
        """Returns the same bags with some of their keys.

        Args:
            stays: bool, one a key, in the order of the keys: true for the keys that stay.
        """
        stays, splits = tf.reshape(stays, [-1]), self.splits
        if splits is None:
            shape = tf.shape(self.keys, tf.int64)
            splits = tf.range(shape[0] + 1) * shape[1]
        before = tf.concat([[0], tf.cumsum(tf.cast(stays, tf.int64))], 0)
        keys, weights = (
            None if each is None else tf.boolean_mask(tf.reshape(each, [-1]), stays)
            for each in (self.keys, self.weights)
        )
        return Bags(keys, tf.gather(before, splits), weights)

    def pooled(self, vectors: tf.Tensor, combiner: str) -> tf.Tensor:
        """Pools vectors of keys to vectors of bags, by the formulas of `tf_ops.collection_pool`.

        Args:
            vectors: float32, of the shape of the keys and `[dim]`.
            combiner: `"sum"`, `"mean"`, `"sqrtn"` or `"max"`.

        Returns:
            float32 `[bags, dim]`; zeros for bags without keys, or with a divisor of 0.
        """
        if combiner == "max":
            largest = self._reduced(vectors, tf.reduce_max, tf.math.unsorted_segment_max)
            # The maximum of an empty bag would be the least float.
            return tf.where(self._summed(tf.ones_like(vectors[..., :1])) > 0, largest, 0)
        if self.weights is None:
            weights = tf.ones_like(vectors[..., :1])
        else:
            weights = tf.reshape(self.weights, tf.shape(vectors[..., :1]))
            vectors *= weights
        sums = self._summed(vectors)
        if combiner == "sum":
            return sums
        if combiner == "mean":
            return tf.math.divide_no_nan(sums, self._summed(weights))
        squares = self._summed(weights * weights)
        # The root of 0 has no derivative.
        roots = tf.sqrt(tf.where(squares > 0, squares, 1))
        return tf.where(squares > 0, sums / roots, 0)

    def _summed(self, values: tf.Tensor) -> tf.Tensor:
        return self._reduced(values, tf.reduce_sum, tf.math.unsorted_segment_sum)

    def _reduced(self, values: tf.Tensor, of_rows: Any, of_segments: Any) -> tf.Tensor:
        """Reduces values of keys, `keys.shape + [d]`, to values of bags, `[bags, d]`."""
        if self.splits is None:
            return of_rows(values, -2)
        entries = self.splits[1:] - self.splits[:-1]
        bags = tf.size(entries)
        return of_segments(values, tf.repeat(tf.range(bags), entries), bags)


def check_weights(what: str, combiner: str | None, ids: Any, weights: Any) -> None:
    """Checks the weights of a call, symbolic or not.

    Raises:
        ValueError: For weights that the combiner does not use, that are not floats, or that have
            another form than the ids.
    """
    if combiner is None or combiner == "max":
        way = "without a combiner" if combiner is None else "with combiner='max'"
        raise ValueError(
            f"{what}: expected no weights {way}. Received: weights. Multiply the vectors by them, "
            "or use combiner='sum', 'mean' or 'sqrtn'."
        )
    form = Form.of(weights)
    if not tf.as_dtype(form.dtype).is_floating:
        raise ValueError(
            f"{what}: expected weights to be floats. Received: {form.dtype}. Cast them."
        )
    check_beside(what, "weights", weights, ids)


def bags_of(ids: Any, weights: Any) -> Bags:
    """Converts the input of a layer to `Bags`.

    Args:
        ids: int64: dense `[..., L]`, ragged, or sparse `[B, L]`.
        weights: Floats in the form of the ids; beside ragged and sparse ids they may be flat.
            `None`: there are none.
    """
    keys, splits = flat_values(ids), rows_of(ids)
    if weights is not None:
        if isinstance(ids, tf.Tensor):
            weights = _of_shape(weights, ids)
        else:
            weights = values_beside("weights", weights, ids)
        weights = tf.cast(weights, tf.float32)
    if splits is not None:
        return Bags(keys, tf.cast(splits, tf.int64), weights)
    if keys.shape.rank != 2:
        shape = tf.shape(keys)
        keys = tf.reshape(keys, tf.stack([tf.reduce_prod(shape[:-1]), shape[-1]]))
    return Bags(keys, None, weights)


def shaped(vectors: tf.Tensor, ids: Any) -> Any:
    """Returns vectors `[bags, dim]` in the form of the ids without their last axis."""
    dim = vectors.shape[-1]
    if isinstance(ids, tf.RaggedTensor):
        if ids.flat_values.shape.rank != 1:
            return ids.with_flat_values(shaped(vectors, ids.flat_values))
        if ids.ragged_rank > 1:
            outer = ids.nested_row_splits[:-1]
            return tf.RaggedTensor.from_nested_row_splits(vectors, outer, validate=False)
    elif isinstance(ids, tf.Tensor) and ids.shape.rank != 2:
        vectors = tf.reshape(vectors, tf.concat([tf.shape(ids)[:-1], [dim]], 0))
    vectors.set_shape([*ids.shape[:-1], dim] if ids.shape.rank is not None else None)
    return vectors


def rows_of(ids: Any) -> tf.Tensor | None:
    """Returns the row splits of the innermost rows of ragged and sparse ids; `None` for dense ones.

    Raises:
        tf.errors.InvalidArgumentError: For a sparse tensor whose rows are in no order.
    """
    if isinstance(ids, tf.RaggedTensor) and ids.flat_values.shape.rank == 1:
        return ids.nested_row_splits[-1]
    if isinstance(ids, tf.SparseTensor):
        return tf_ops.row_splits(ids.indices[:, 0], ids.dense_shape[0])
    return None


def _of_shape(weights: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Returns the weights.

    Raises, in a graph when it runs, unless their shape is that of the ids.
    """
    if weights.shape.is_fully_defined() and ids.shape.is_fully_defined():
        return weights
    equal = tf.equal(tf.shape(weights), tf.shape(ids))
    message = "Expected weights of the shape of the input. Received:"
    return checked(weights, equal, message, tf.shape(weights))
