"""The base of categorical columns whose ids have rows of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import utils

from sok_embed.arguments import check_integer, shown
from sok_embed.feature_column.options import EmbeddingVariableOption
from sok_embed.keras_bridge.graph_casts import checked_ids

_INT64_MAX = 2**63 - 1


class OwnRowsCategorical(fc_v2.CategoricalColumn, fc_v1._CategoricalColumn):
    """A categorical column of ids that have rows of their own, all of them or some.

    The column also has a variable of *static rows*, and each own row starts as one of these.

    Attributes:
        key: The name of the feature.
        dtype: The dtype of ids.
        partition_num: The least number of parts into which own rows in memory are split; or `None`.
        ev_option: The option of the own rows.
        slots: `"copy"`: an own row starts with the optimizer slots of its static row; `"zero"`:
            with new ones.
        demote_blend: The share by which a static row moves towards an own row that is removed.
        padding_value: The id that means that there is no id, or `None`.
    """

    key: str
    dtype: tf.DType
    partition_num: int | None
    ev_option: EmbeddingVariableOption
    slots: str
    demote_blend: float
    padding_value: Any

    # True if a mask says which ids have rows of their own, and the other ids train static rows.
    shares_static_rows: bool

    @property
    @abstractmethod
    def static_rows(self) -> int:
        """The number of static rows."""

    @property
    @abstractmethod
    def absent_value(self) -> float | None:
        """The value of each element for an id that a filter holds back; `None`: its static row."""

    @abstractmethod
    def buckets_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the static row of each id, int64."""

    @abstractmethod
    def lookup_buckets(self, ids: tf.Tensor, transformed: tf.Tensor) -> tf.Tensor | None:
        """Returns the static row of each id, if the lookup cannot compute it from the key."""

    @property
    def _is_v2_column(self) -> bool:
        return True

    @property
    def name(self) -> str:
        """The name of the feature."""
        return self.key

    @property
    def _num_buckets(self) -> int:
        return self.num_buckets

    @property
    def parents(self) -> list[str]:
        """The name of the feature, as TensorFlow asks for it."""
        return [self.key]

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """The feature's entry for `tf.io.parse_example`."""
        return {self.key: tf.io.VarLenFeature(self.dtype)}

    @property
    def _parse_example_spec(self) -> dict[str, Any]:
        return self.parse_example_spec

    def raw_ids(self, inputs: Any) -> tf.SparseTensor:
        """Returns the ids that are not padding. In a dense feature -1, or "", is missing too."""
        ids = self.given_ids(inputs)
        return (
            ids
            if self.padding_value is None
            else tf.sparse.retain(ids, self.not_padding(ids.values))
        )

    def given_ids(self, inputs: Any) -> tf.SparseTensor:
        """Returns the ids of a feature that are not missing, padding among them."""
        ids = fc_v2._to_sparse_input_and_drop_ignore_values(read_feature(inputs, self.key))
        utils.assert_string_or_int(ids.dtype, prefix=f"column_name: {self.key} input_tensor")
        self.check_ids(ids.dtype)
        return ids

    def not_padding(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns which ids are not padding: bool of their shape."""
        return tf.not_equal(ids, tf.constant(self.padding_value, ids.dtype))

    def check_ids(self, dtype: tf.DType) -> None:
        """Raises ValueError for strings in a column of integers, and the other way round."""
        if self.dtype.is_integer != dtype.is_integer:
            raise ValueError(
                f"Column '{self.key}': expected ids of {self.dtype.name}, the dtype of the column. "
                f"Received: {dtype.name}."
            )

    def keys_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the key of an id's own row, int64: the id itself, or 63 bits of a hash."""
        if ids.dtype == tf.string:
            return tf.strings.to_hash_bucket_fast(ids, _INT64_MAX)
        keys = tf.bitcast(ids, tf.int64) if ids.dtype == tf.uint64 else tf.cast(ids, tf.int64)
        return checked_ids(f"Column '{self.key}'", keys)

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> tf.SparseTensor:
        """Returns the ids in the form for columns that do not support own rows."""
        return self._transform_feature(transformation_cache, state_manager)

    @abstractmethod
    def _transform_feature(self, inputs: Any, state_manager: Any = None) -> tf.SparseTensor:
        """Returns the same for columns of TF1."""

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns the ids of `transform_feature`, without weights."""
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def _get_sparse_tensors(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> Any:
        return self.IdWeightPair(inputs.get(self), None)

    def get_config(self) -> dict[str, Any]:
        """Returns the fields, as JSON can hold them."""
        fields: dict[str, Any] = self._asdict()
        return {**fields, "dtype": self.dtype.name, "ev_option": self.ev_option.get_config()}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None, columns_by_name: Any = None
    ) -> OwnRowsCategorical:
        """Makes the column that a `get_config` came from."""
        return cls(
            **{
                **config,
                "dtype": tf.as_dtype(config["dtype"]),
                "ev_option": EmbeddingVariableOption.from_config(config["ev_option"]),
            }
        )


def read_feature(inputs: Any, key: str) -> Any:
    """Returns a feature of a call, dense or sparse, of rank 2 at least."""
    if isinstance(inputs, fc_v2.FeatureTransformationCache):
        return inputs.get(key, None)
    return inputs.get(key)


def own_rows_column_in(column: Any) -> Any:
    """Returns the `OwnRowsCategorical` under weights, sequences and embeddings, or `None`."""
    while not isinstance(column, OwnRowsCategorical):
        if not hasattr(column, "categorical_column"):
            return None
        column = column.categorical_column
    return column


def check_partitions(
    key: str, partition_num: int | None, ev_option: EmbeddingVariableOption
) -> int | None:
    """Returns the number of parts; raises ValueError for a number below 1, and for rows on disk."""
    if partition_num is None:
        return None
    partition_num = check_integer(f"partition_num of column '{key}'", partition_num, 1)
    storage = ev_option.storage_option
    if storage is not None and storage.on_disk:
        raise ValueError(
            f"Column '{key}': expected no partition_num with rows on disk, where it has no "
            f"meaning. Received: {partition_num}."
        )
    return partition_num


def check_padding(key: str, dtype: tf.DType, padding_value: Any) -> Any:
    """Returns the id that is padding, or `None`; raises ValueError for one of another type."""
    if padding_value is None or (dtype == tf.string and isinstance(padding_value, str)):
        return padding_value
    if dtype == tf.string:
        raise ValueError(
            f"Column '{key}': expected padding_value to be a string, as ids are. Received: "
            f"{padding_value!r}."
        )
    name = f"padding_value of column '{key}'"
    return check_integer(name, padding_value, dtype.min, dtype.max + 1)


def as_option(key: str, ev_option: Any) -> EmbeddingVariableOption:
    """Returns the option, or an empty one for `None`; raises ValueError for anything else."""
    if ev_option is None:
        return EmbeddingVariableOption()
    if not isinstance(ev_option, EmbeddingVariableOption):
        raise ValueError(
            f"Column '{key}': expected ev_option to be an EmbeddingVariableOption. Received: "
            f"{shown(ev_option)}."
        )
    return ev_option
