"""Inputs of features as ops take them: flat keys, bags, weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.arguments import FLOATS_ROUND
from sok_embed.configs.configs import FeatureConfig
from sok_embed.fingerprints import keys_of_strings
from sok_embed.lookups.bags import Bags, bags_of
from sok_embed.lookups.input_forms import flat_values, values_beside
from sok_embed.lookups.padding import is_key
from sok_embed.tables.tensors import as_keys

_KEY_TYPES = (tf.int32, tf.int64, tf.uint64)


class FeatureInput(NamedTuple):
    """One feature of a batch.

    Attributes:
        keys: Dense integers of any shape.
        bags: `tf_ops.BAG_A_KEY`, `BAG_A_ROW` or `BAG_BY_SPLITS`.
        splits: int64, with `BAG_BY_SPLITS`.
        weights: float32, one a key, or `None`.
        ragged: The structure in which the vectors of single keys lie, if it is ragged.
        shape: The shape of the output before its last axis.
    """

    keys: tf.Tensor
    bags: int
    splits: tf.Tensor | None
    weights: tf.Tensor | None
    ragged: tf.RaggedTensor | None
    shape: tf.TensorShape

    def of_keys(self) -> FeatureInput:
        """Returns the same input with a bag for each key."""
        return self._replace(bags=tf_ops.BAG_A_KEY, splits=None, weights=None)

    def pooled(self, vectors: tf.Tensor, combiner: str) -> tf.Tensor:
        """Pools vectors of keys, `[n, dim]`, to vectors of bags, float32 `[bags, dim]`."""
        if self.bags == tf_ops.BAG_A_KEY and self.weights is None:
            return vectors
        keys = self.keys
        if self.splits is None:
            keys = keys if self.bags == tf_ops.BAG_A_ROW else tf.reshape(keys, [-1, 1])
            vectors = tf.reshape(vectors, tf.concat([tf.shape(keys), [vectors.shape[-1]]], 0))
        return Bags(keys, self.splits, self.weights).pooled(vectors, combiner)


def feature_input(
    what: str, feature: FeatureConfig, given: Any, weights: Any, mask: tf.Tensor | None = None
) -> FeatureInput:
    """Converts an input of a layer to a `FeatureInput`.

    Args:
        what: The beginning of messages.
        feature: The config of the feature.
        given: Dense `[B]` or `[B, L]`, ragged `[B, None]` or sparse `[B, L]`, of int32, int64 or
            uint64.
        weights: `None`, or floats in the form of the input: dense of its shape, ragged with its row
            splits, sparse with its indices; beside ragged and sparse inputs also flat.
        mask: Bool, of the shape of a dense input: true for keys that are there. Other keys are left
            out of bags. `None`: all keys are there.

    Raises:
        ValueError: For anything else.
    """
    what = f"{what}: feature '{feature.name}'"
    given = _as_keys(what, as_tensor(what, given))
    rank = given.shape.rank
    if rank not in (1, 2):
        raise ValueError(
            f"{what}: expected an input of shape [B] or [B, L]. Received: shape {given.shape}."
        )
    if isinstance(given, tf.RaggedTensor) and given.ragged_rank != 1:
        raise ValueError(
            f"{what}: expected a ragged input [B, None]. Received: {given.ragged_rank} ragged "
            "dimensions."
        )
    flat_weights = _flat_weights(what, feature, given, weights)
    pools = feature.own_combiner is not None
    if isinstance(given, tf.SparseTensor) and not pools:
        raise ValueError(
            f"{what}: expected a dense or a ragged input, of which each key has a vector "
            "(combiner=None). Received: a SparseTensor. Use tf.RaggedTensor.from_sparse."
        )
    stays = _stays(given, feature.padding, mask) if pools else None
    if not pools or (rank == 1 and stays is None):
        ragged = given if isinstance(given, tf.RaggedTensor) else None
        return FeatureInput(
            flat_values(given), tf_ops.BAG_A_KEY, None, flat_weights, ragged, given.shape
        )
    keys, splits, _ = bags_of(given[:, tf.newaxis] if rank == 1 else given, None)
    bags = Bags(keys, splits, flat_weights)
    if stays is not None:
        bags = bags.where(stays)
    kind = tf_ops.BAG_A_ROW if bags.splits is None else tf_ops.BAG_BY_SPLITS
    return FeatureInput(bags.keys, kind, bags.splits, bags.weights, None, given.shape[:1])


def _stays(given: Any, padding: Sequence[int], mask: tf.Tensor | None) -> tf.Tensor | None:
    """Returns bool, true for each key that is combined; `None`: all are."""
    keys = is_key(flat_values(given), padding) if padding else None
    if keys is None or mask is None:
        return mask if keys is None else keys
    return tf.logical_and(keys, mask)


def absent_input() -> FeatureInput:
    """Returns an input without keys and bags, for a feature that a call does not have."""
    keys = tf.zeros([0], tf.int64)
    return FeatureInput(keys, tf_ops.BAG_A_KEY, None, None, None, keys.shape)


def shape_of(feature: FeatureConfig, shape: Any) -> tuple[Any, ...]:
    """Returns the shape of a feature's output, for an input of a shape."""
    kept = tuple(shape) if feature.own_combiner is None else tuple(shape)[:1]
    return (*kept, feature.table.embedding_dim)


def as_tensor(what: str, given: Any) -> Any:
    """Returns the input as a tensor. Tensors, and symbolic ones of Keras, are returned as they are.

    Raises:
        ValueError: For values that are not integers, as in `as_keys`.
    """
    if tf.is_tensor(given) or isinstance(given, keras.KerasTensor):
        return given
    try:
        return as_keys(given, hashes_strings=True)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _as_keys(what: str, given: Any) -> Any:
    """Returns a tensor of keys: integers, or fingerprints of strings."""
    given = keys_of_strings(given)
    if given.dtype in _KEY_TYPES:
        return given
    if given.dtype.is_integer:
        return tf.cast(given, tf.int64)
    raise ValueError(
        f"{what}: expected integer keys or strings. Received: {given.dtype.name}. {FLOATS_ROUND}."
    )


def _flat_weights(what: str, feature: FeatureConfig, given: Any, weights: Any) -> Any:
    """Returns the weights of keys in their order, float32, or `None`."""
    if weights is None:
        return None
    if feature.own_combiner == "max":
        raise ValueError(
            f"{what}: expected no weights of a feature that is combined by max. Received: weights."
        )
    if not isinstance(weights, (tf.RaggedTensor, tf.SparseTensor)):
        weights = tf.convert_to_tensor(weights)
    if not weights.dtype.is_floating:
        raise ValueError(
            f"{what}: expected weights to be floats. Received: {weights.dtype.name}. Cast them."
        )
    if isinstance(given, (tf.RaggedTensor, tf.SparseTensor)):
        is_flat = isinstance(weights, tf.Tensor) and weights.shape.rank == 1
        if not is_flat and type(weights) is not type(given):
            raise ValueError(
                f"{what}: expected weights as the input, a {type(given).__name__}, or a value a "
                f"key. Received: a {type(weights).__name__} of shape {weights.shape}."
            )
        flat = values_beside(f"weights of feature '{feature.name}'", weights, given)
    elif isinstance(weights, tf.Tensor) and weights.shape.is_compatible_with(given.shape):
        flat = weights
    else:
        raise ValueError(
            f"{what}: expected weights of the shape of the input, {given.shape}. Received: a "
            f"{type(weights).__name__} of shape {weights.shape}."
        )
    return tf.cast(flat, tf.float32)
