"""The categorical column of which some keys have rows of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import serialization, utils

from sok_embed import tf_ops
from sok_embed.feature_column.filters import check_integer
from sok_embed.feature_column.options import EmbeddingVariableOption

_INT64_MAX = 2**63 - 1
_SLOTS = ("copy", "zero")


class _Fields(NamedTuple):
    key: str
    hash_bucket_size: int
    dtype: tf.DType
    partition_num: int | None
    ev_option: EmbeddingVariableOption
    slots: str
    demote_blend: float


@serialization.register_feature_column
class AdaptiveCategoricalColumn(fc_v2.CategoricalColumn, fc_v1._CategoricalColumn, _Fields):
    """See `categorical_column_with_adaptive_embedding`.

    To a column that knows nothing of own rows, such as `tf.feature_column.indicator_column`, this
    is a `tf.feature_column.categorical_column_with_hash_bucket`.
    """

    @property
    def _is_v2_column(self) -> bool:
        return True

    @property
    def name(self) -> str:
        """The name of the feature."""
        return self.key

    @property
    def num_buckets(self) -> int:
        """How many static rows there are."""
        return self.hash_bucket_size

    @property
    def _num_buckets(self) -> int:
        return self.hash_bucket_size

    @property
    def parents(self) -> list[str]:
        """The name of the feature, as TensorFlow asks for it."""
        return [self.key]

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """How `tf.io.parse_example` reads the feature."""
        return {self.key: tf.io.VarLenFeature(self.dtype)}

    @property
    def _parse_example_spec(self) -> dict[str, Any]:
        return self.parse_example_spec

    def raw_ids(self, cache: Any, state_manager: Any = None) -> tf.SparseTensor:
        """The ids as they come. Of a dense feature -1, or "", is missing."""
        version_2 = isinstance(cache, fc_v2.FeatureTransformationCache)
        tensor = cache.get(self.key, state_manager) if version_2 else cache.get(self.key)
        ids = fc_v2._to_sparse_input_and_drop_ignore_values(tensor)
        utils.assert_string_or_int(ids.dtype, prefix=f"column_name: {self.key} input_tensor")
        if self.dtype.is_integer != ids.dtype.is_integer:
            raise ValueError(
                f"Column '{self.key}': expected ids of {self.dtype.name}, the dtype of the column. "
                f"Received: {ids.dtype.name}."
            )
        return ids

    def buckets_of(self, ids: tf.Tensor) -> tf.Tensor:
        """The static row of each id, int64."""
        if ids.dtype == tf.uint64:  # whose upper half has other digits as int64
            return tf.strings.to_hash_bucket_fast(tf.strings.as_string(ids), self.hash_bucket_size)
        if ids.dtype != tf.string:
            ids = tf.cast(ids, tf.int64)
        return tf_ops.static_buckets(ids, self.hash_bucket_size)

    def hashes_keys(self, ids: tf.Tensor) -> bool:
        """Whether the key of an id says which static row it has."""
        return ids.dtype not in (tf.string, tf.uint64)

    def keys_of(self, ids: tf.Tensor) -> tf.Tensor:
        """The key that an id's own row goes by, int64: the id itself, or 63 bits of a hash."""
        if ids.dtype == tf.string:
            return tf.strings.to_hash_bucket_fast(ids, _INT64_MAX)
        return tf.bitcast(ids, tf.int64) if ids.dtype == tf.uint64 else tf.cast(ids, tf.int64)

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> tf.SparseTensor:
        """The buckets."""
        return self._transform_feature(transformation_cache, state_manager)

    def _transform_feature(self, inputs: Any, state_manager: Any = None) -> tf.SparseTensor:
        ids = self.raw_ids(inputs, state_manager)
        return tf.SparseTensor(ids.indices, self.buckets_of(ids.values), ids.dense_shape)

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The buckets, without weights."""
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def _get_sparse_tensors(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> Any:
        return self.IdWeightPair(inputs.get(self), None)

    def get_config(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return {
            **self._asdict(),
            "dtype": self.dtype.name,
            "ev_option": self.ev_option.get_config(),
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None, columns_by_name: Any = None
    ) -> AdaptiveCategoricalColumn:
        """Makes the column that a `get_config` came from."""
        return cls(
            **{
                **config,
                "dtype": tf.as_dtype(config["dtype"]),
                "ev_option": EmbeddingVariableOption.from_config(config["ev_option"]),
            }
        )


def categorical_column_with_adaptive_embedding(
    key: str,
    hash_bucket_size: int,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    *,
    slots: str = "copy",
    demote_blend: float = 0.0,
) -> AdaptiveCategoricalColumn:
    """A categorical column whose ids share static rows, or have rows of their own, as a mask says.

    Under an `embedding_column`, each id of a batch comes with a mask. Of mask 0 it reads its
    *static row*, one of `hash_bucket_size` that ids share by their hash. Of mask 1 it reads its
    *own row*. An id that has none gets one in that step, which starts as its static row, bit for
    bit; the gradient of the step then goes to the own row only.

    Example:
    >>> column = categorical_column_with_adaptive_embedding("item", 100, tf.int64)
    >>> column.name, column.num_buckets
    ('item', 100)

    Args:
        key: The name of the feature. It is a `tf.SparseTensor` of strings or integers, or a dense
            tensor, in which "" and -1 are missing.
        hash_bucket_size: How many static rows there are.
        dtype: `tf.string` or an integer type.
        partition_num: Into how many parts, at least, own rows in memory are split by key, for
            threads to work on. `None`: as many as suit the machine.
        ev_option: Of the own rows. `None`: all keys of mask 1 have one, in memory, for ever.
        slots: What optimizer slots an own row starts with: `"copy"`, those of its static row;
            `"zero"`, new ones.
        demote_blend: When a row goes by `ev_option`'s `evict_option`, its static row moves by so
            much of `row - static row`. In [0, 1].

    Returns:
        A column for `embedding_column` and `shared_embedding_columns`.

    Raises:
        ValueError: For an argument that is none of the above, and `demote_blend` without an
            eviction, or for strings: of a row that goes only the hash of its string is known.
    """
    utils.assert_key_is_string(key)
    check_integer(f"hash_bucket_size of column '{key}'", hash_bucket_size, 1)
    dtype = tf.as_dtype(dtype)
    utils.assert_string_or_int(dtype, prefix=f"column_name: {key}")
    if partition_num is not None:
        check_integer(f"partition_num of column '{key}'", partition_num, 1)
    if ev_option is None:
        ev_option = EmbeddingVariableOption()
    if not isinstance(ev_option, EmbeddingVariableOption):
        raise ValueError(
            f"Column '{key}': expected ev_option to be an EmbeddingVariableOption. Received: "
            f"{ev_option!r}."
        )
    storage = ev_option.storage_option
    if partition_num is not None and storage is not None and storage.on_disk:
        raise ValueError(
            f"Column '{key}': expected no partition_num with rows on disk, where it has no "
            f"meaning. Received: {partition_num}."
        )
    if slots not in _SLOTS:
        raise ValueError(
            f"Column '{key}': expected slots to be 'copy' or 'zero'. Received: {slots!r}."
        )
    _check_blend(key, dtype, ev_option, demote_blend)
    return AdaptiveCategoricalColumn(
        key, hash_bucket_size, dtype, partition_num, ev_option, slots, float(demote_blend)
    )


def _check_blend(key: str, dtype: tf.DType, option: EmbeddingVariableOption, blend: float) -> None:
    if not 0 <= blend <= 1:
        raise ValueError(f"Column '{key}': expected demote_blend in [0, 1]. Received: {blend!r}.")
    if not blend:
        return
    if option.evict_option is None:
        raise ValueError(
            f"Column '{key}': expected an evict_option with demote_blend={blend!r}, which has no "
            "meaning as long as no row goes. Received: none."
        )
    if dtype in (tf.string, tf.uint64):
        raise ValueError(
            f"Column '{key}': expected demote_blend=0 with {dtype.name}: the static row of a row "
            f"that goes is not known by its key. Received: {blend!r}."
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
) -> fc_v2.SequenceCategoricalColumn:
    """As `categorical_column_with_adaptive_embedding`, of sequences of ids.

    Example:
    >>> column = sequence_categorical_column_with_adaptive_embedding("items", 100, tf.int64)
    >>> column.name
    'items'

    Args:
        key: As there, and so are the others.
        hash_bucket_size: As there.
        dtype: As there.
        partition_num: As there.
        ev_option: As there.
        slots: As there.
        demote_blend: As there.

    Returns:
        A column for an `embedding_column` of `sequence_input_layer` or `SequenceFeatures`.

    Raises:
        ValueError: As there.
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
        )
    )


def adaptive_column_in(column: Any) -> AdaptiveCategoricalColumn | None:
    """The adaptive column under weights, sequences and embeddings, if there is one."""
    while not isinstance(column, AdaptiveCategoricalColumn):
        if not hasattr(column, "categorical_column"):
            return None
        column = column.categorical_column
    return column
