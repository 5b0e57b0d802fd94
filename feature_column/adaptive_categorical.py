"""The categorical column in which a mask says which ids read rows of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import serialization, utils

from sok_embed import tf_ops
from sok_embed.arguments import check_integer
from sok_embed.feature_column.categorical import (
    OwnRowsCategorical,
    as_option,
    check_padding,
    check_partitions,
)
from sok_embed.feature_column.options import EmbeddingVariableOption

_SLOTS = ("copy", "zero")


class _Fields(NamedTuple):
    key: str
    hash_bucket_size: int
    dtype: tf.DType
    partition_num: int | None
    ev_option: EmbeddingVariableOption
    slots: str
    demote_blend: float
    padding_value: Any = None


@serialization.register_feature_column
class AdaptiveCategoricalColumn(OwnRowsCategorical, _Fields):
    """See `categorical_column_with_adaptive_embedding`.

    Under columns that do not know own rows, such as `tf.feature_column.indicator_column`, it works
    as a `tf.feature_column.categorical_column_with_hash_bucket`.
    """

    shares_static_rows = True
    absent_value = None

    @property
    def num_buckets(self) -> int:
        """The number of static rows."""
        return self.hash_bucket_size

    @property
    def static_rows(self) -> int:
        """The number of static rows."""
        return self.hash_bucket_size

    def buckets_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the static row of each id, int64."""
        if ids.dtype == tf.uint64:  # as int64 its upper half has other digits
            return tf.strings.to_hash_bucket_fast(tf.strings.as_string(ids), self.hash_bucket_size)
        if ids.dtype != tf.string:
            ids = tf.cast(ids, tf.int64)
        return tf_ops.static_buckets(ids, self.hash_bucket_size)

    def lookup_buckets(self, ids: tf.Tensor, transformed: tf.Tensor) -> tf.Tensor | None:
        """Returns the buckets of ids that `buckets_of` cannot hash from keys; else `None`."""
        return transformed if ids.dtype in (tf.string, tf.uint64) else None

    def _transform_feature(self, inputs: Any, state_manager: Any = None) -> tf.SparseTensor:
        ids = self.raw_ids(inputs)
        return tf.SparseTensor(ids.indices, self.buckets_of(ids.values), ids.dense_shape)


def categorical_column_with_adaptive_embedding(
    key: str,
    hash_bucket_size: int,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    *,
    slots: str = "copy",
    demote_blend: float = 0.0,
    padding_value: Any = None,
) -> AdaptiveCategoricalColumn:
    """Makes a categorical column whose ids share static rows, or have own rows, as a mask says.

    Under an `embedding_column`, each id of a batch comes with a mask. With mask 0 an id reads its
    *static row*, one of `hash_bucket_size` rows that ids share by their hash. With mask 1 it reads
    its *own row*. An id without one gets an own row in that step, which starts as its static row,
    bit for bit; the gradient of the step then goes to the own row only.

    Example:
    >>> column = categorical_column_with_adaptive_embedding("item", 100, tf.int64)
    >>> column.name, column.num_buckets
    ('item', 100)

    Args:
        key: The name of the feature. It is a `tf.SparseTensor` of strings or integers, or a dense
            tensor, in which "" and -1 are missing.
        hash_bucket_size: The number of static rows.
        dtype: `tf.string` or an integer type.
        partition_num: The least number of parts into which own rows in memory are split by key, for
            threads to work on. `None`: as many as suit the machine.
        ev_option: The option of the own rows. `None`: all keys of mask 1 have one, in memory,
            without limit.
        slots: The optimizer slots that an own row starts with: `"copy"`, copies of its static row's
            slots; `"zero"`, new ones.
        demote_blend: The share of `row - static row` by which a static row moves when the
            `evict_option` of `ev_option` removes an own row. In [0, 1].
        padding_value: An id that means that there is no id, in addition to "" and -1 of a dense
            tensor: it is not looked up, and no filter counts it. `None`: there is none.

    Returns:
        A column for `embedding_column` and `shared_embedding_columns`.

    Raises:
        ValueError: For an argument that is none of the above, and `demote_blend` without an
            eviction, or for strings: when a row is removed only the hash of its string is known.
    """
    utils.assert_key_is_string(key)
    hash_bucket_size = check_integer(f"hash_bucket_size of column '{key}'", hash_bucket_size, 1)
    dtype = tf.as_dtype(dtype)
    utils.assert_string_or_int(dtype, prefix=f"column_name: {key}")
    ev_option = as_option(key, ev_option)
    ev_option.refuse_default_values(key)
    partition_num = check_partitions(key, partition_num, ev_option)
    if slots not in _SLOTS:
        raise ValueError(
            f"Column '{key}': expected slots to be 'copy' or 'zero'. Received: {slots!r}."
        )
    _check_blend(key, dtype, ev_option, demote_blend)
    return AdaptiveCategoricalColumn(
        key,
        hash_bucket_size,
        dtype,
        partition_num,
        ev_option,
        slots,
        float(demote_blend),
        check_padding(key, dtype, padding_value),
    )


def _check_blend(key: str, dtype: tf.DType, option: EmbeddingVariableOption, blend: float) -> None:
    if not 0 <= blend <= 1:
        raise ValueError(f"Column '{key}': expected demote_blend in [0, 1]. Received: {blend!r}.")
    if not blend:
        return
    if option.evict_option is None:
        raise ValueError(
            f"Column '{key}': expected an evict_option with demote_blend={blend!r}, which has no "
            "meaning if no row is ever removed. Received: evict_option=None."
        )
    if dtype in (tf.string, tf.uint64):
        raise ValueError(
            f"Column '{key}': expected demote_blend=0 with {dtype.name}: the static row of a "
            f"removed row cannot be found by its key. Received: {blend!r}."
        )


def sequence_categorical_column_with_adaptive_embedding(
    key: str,
    hash_bucket_size: int,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    *,
    slots: str = "copy",
    demote_blend: float = 0.0,
    padding_value: Any = None,
) -> fc_v2.SequenceCategoricalColumn:
    """Makes a sequence column like `categorical_column_with_adaptive_embedding`.

    Example:
    >>> column = sequence_categorical_column_with_adaptive_embedding("items", 100, tf.int64)
    >>> column.name
    'items'

    Args:
        key: The key, as for `categorical_column_with_adaptive_embedding`.
        hash_bucket_size: The number of static rows.
        dtype: The dtype of ids.
        partition_num: The number of partitions.
        ev_option: The option of the own rows.
        slots: The start of optimizer slots.
        demote_blend: The share that a static row moves by.
        padding_value: The value that stands for no id.

    Returns:
        A column for an `embedding_column` of `sequence_input_layer` or `SequenceFeatures`.

    Raises:
        ValueError: As `categorical_column_with_adaptive_embedding` raises.
    """
    return fc_v2.SequenceCategoricalColumn(
        categorical_column_with_adaptive_embedding(
            key,
            hash_bucket_size,
            dtype,
            partition_num,
            ev_option,
            slots=slots,
            demote_blend=demote_blend,
            padding_value=padding_value,
        )
    )
