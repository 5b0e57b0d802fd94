"""The categorical column in which each id has a row of its own: DeepRec's embedding variable."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import serialization, utils

from sok_embed.feature_column.categorical import (
    OwnRowsCategorical,
    as_option,
    check_padding,
    check_partitions,
)
from sok_embed.feature_column.options import EmbeddingVariableOption

# DeepRec's default of InitializerOption.default_value_dim.
_START_VECTORS = 4096


class _Fields(NamedTuple):
    key: str
    dtype: tf.DType
    partition_num: int | None
    ev_option: EmbeddingVariableOption
    padding_value: Any = None


@serialization.register_feature_column
class EmbeddingCategoricalColumn(OwnRowsCategorical, _Fields):
    """See `categorical_column_with_embedding`.

    Its static rows are the vectors that rows start from, which nothing trains.
    """

    shares_static_rows = False
    slots = "zero"
    demote_blend = 0.0

    @property
    def num_buckets(self) -> int:
        """The largest integer: any key is possible, so no column makes one-hot vectors of ids."""
        return sys.maxsize

    @property
    def static_rows(self) -> int:
        """The number of vectors that rows start from."""
        option = self.ev_option.init_option
        return (option and option.default_value_dim) or _START_VECTORS

    @property
    def absent_value(self) -> float | None:
        """The value of each element for an id that a filter holds back."""
        if self.ev_option.admission is None:
            return None  # without training an id without a row reads its start vector
        option = self.ev_option.init_option
        return float((option and option.default_value_no_permission) or 0.0)

    def buckets_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the index of the vector that the row of each id starts from, int64."""
        return tf.math.floormod(self.keys_of(ids), self.static_rows)

    def lookup_buckets(self, ids: tf.Tensor, transformed: tf.Tensor) -> tf.Tensor:
        """Returns the index of the start vector for ids that are keys already."""
        return self.buckets_of(transformed)

    def _transform_feature(self, inputs: Any, state_manager: Any = None) -> tf.SparseTensor:
        ids = self.raw_ids(inputs)
        return tf.SparseTensor(ids.indices, self.keys_of(ids.values), ids.dense_shape)


def categorical_column_with_embedding(
    key: str,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    *,
    padding_value: Any = None,
) -> EmbeddingCategoricalColumn:
    """Makes a categorical column whose ids each have a row: DeepRec's embedding variable.

    Under an `embedding_column`, an id that has no row gets one in the step that asks for it. It
    starts from one of the vectors that the initializer draws at once: see `InitializerOption`. No
    masks are asked for.

    Example:
    >>> column = categorical_column_with_embedding("item", tf.int64)
    >>> column.name
    'item'

    Args:
        key: The name of the feature. It is a `tf.SparseTensor` of strings or integers, or a dense
            tensor, in which "" and -1 are missing.
        dtype: `tf.string` or an integer type. The row of a string goes by 63 bits of a hash.
        partition_num: The least number of parts into which rows in memory are split by key, for
            threads to work on. `None`: as many as suit the machine.
        ev_option: The option for the ids that keep a row, the place of rows and their start. An id
            that a filter holds back reads `default_value_no_permission` and trains nothing.
        padding_value: An id that means that there is no id, in addition to "" and -1 of a dense
            tensor: it is not looked up, and no filter counts it. `None`: there is none.

    Returns:
        A column for `embedding_column` and `shared_embedding_columns`.

    Raises:
        ValueError: For an argument that is none of the above.
    """
    utils.assert_key_is_string(key)
    dtype = tf.as_dtype(dtype)
    utils.assert_string_or_int(dtype, prefix=f"column_name: {key}")
    ev_option = as_option(key, ev_option)
    partition_num = check_partitions(key, partition_num, ev_option)
    padding_value = check_padding(key, dtype, padding_value)
    return EmbeddingCategoricalColumn(key, dtype, partition_num, ev_option, padding_value)


def sequence_categorical_column_with_embedding(
    key: str,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    *,
    padding_value: Any = None,
) -> fc_v2.SequenceCategoricalColumn:
    """Makes a sequence column like `categorical_column_with_embedding`.

    Example:
    >>> sequence_categorical_column_with_embedding("items", tf.int64).name
    'items'

    Args:
        key: The key, as for `categorical_column_with_embedding`.
        dtype: The dtype of ids.
        partition_num: The number of partitions.
        ev_option: The option of the rows.
        padding_value: The value that stands for no id.

    Returns:
        A column for an `embedding_column` of `sequence_input_layer` or `SequenceFeatures`.

    Raises:
        ValueError: As `categorical_column_with_embedding` raises.
    """
    return fc_v2.SequenceCategoricalColumn(
        categorical_column_with_embedding(
            key, dtype, partition_num, ev_option, padding_value=padding_value
        )
    )
