"""Weights of ids, from the feature that a `weighted_categorical_column` names."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from sok_embed.feature_column.categorical import OwnRowsCategorical, read_feature
from sok_embed.lookups.input_forms import values_beside


def aligned_weights(
    column: Any, categorical: OwnRowsCategorical, inputs: Any, ids: tf.SparseTensor
) -> tf.Tensor | None:
    """Returns the weight of each id, float32 `[n]`; `None` for a column without weights.

    TensorFlow would leave out weights of 0 of a dense feature, and put those that are left beside
    the ids in their order.

    Raises:
        ValueError: For weights of a dense feature of another rank than the ids.
        tf.errors.InvalidArgumentError: For ids without a weight at their place, and for weights of
            a sparse feature at places without an id.
    """
    while not isinstance(column, fc_v2.WeightedCategoricalColumn):
        if column is categorical:
            return None
        column = column.categorical_column
    name = f"weights '{column.weight_feature_key}' of column '{categorical.name}'"
    weights = read_feature(inputs, column.weight_feature_key)
    if isinstance(weights, tf.SparseTensor):
        given = categorical.given_ids(inputs)
        values = values_beside(name, weights, given)
        if categorical.padding_value is not None:
            values = tf.boolean_mask(values, categorical.not_padding(given.values))
    else:
        if weights.shape.rank != ids.shape.rank:
            raise ValueError(
                f"Expected {name} of the shape of the ids, {ids.shape}. Received: {weights.shape}."
            )
        values = tf.gather_nd(weights, ids.indices)
    return tf.cast(values, tf.float32)
