"""Embedding columns that look up the rows of ids without TensorFlow's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import serialization, utils

from sok_embed.feature_column import graph_state
from sok_embed.feature_column.categorical import own_rows_column_in
from sok_embed.feature_column.combine import (
    Positions,
    combine,
    static_positions,
    with_weight,
)
from sok_embed.feature_column.fused_columns import Found, InputLayer, found_rows
from sok_embed.feature_column.initializers import (
    deserialize_initializer,
    serialize_initializer,
)
from sok_embed.feature_column.masks import aligned_mask
from sok_embed.feature_column.weights import aligned_weights

_SEQUENCES = (fc_v2.SequenceCategoricalColumn, fc_v1._SequenceCategoricalColumn)


class _EmbeddingFields(NamedTuple):
    categorical_column: Any
    dimension: int
    combiner: str
    initializer: Any
    ckpt_to_load_from: str | None
    tensor_name_in_ckpt: str | None
    max_norm: float | None
    trainable: bool
    use_safe_embedding_lookup: bool
    shared_name: str | None  # None: the rows are this column's alone


class RowsColumn(
    fc_v2.DenseColumn,
    fc_v2.SequenceDenseColumn,
    fc_v1._DenseColumn,
    fc_v1._SequenceDenseColumn,
    _EmbeddingFields,
):
    """An embedding column that looks up its rows itself: an adaptive or a shared one."""

    @property
    def _is_v2_column(self) -> bool:
        return True

    @property
    def name(self) -> str:
        """The name that TensorFlow would give such a column."""
        ending = "embedding" if self.shared_name is None else "shared_embedding"
        return f"{self.categorical_column.name}_{ending}"

    @property
    def state_name(self) -> str:
        """The name of the rows."""
        return self.name if self.shared_name is None else self.shared_name

    @property
    def _var_scope_name(self) -> str:
        return self.state_name

    @property
    def static_rows(self) -> int:
        """The number of static rows."""
        adaptive = own_rows_column_in(self)
        return int(
            self.categorical_column._num_buckets if adaptive is None else adaptive.static_rows
        )

    @property
    def trains_static_rows(self) -> bool:
        """True if static rows are trained, which is so if ids share them."""
        adaptive = own_rows_column_in(self)
        return bool(self.trainable and (adaptive is None or adaptive.shares_static_rows))

    @property
    def variable_shape(self) -> tf.TensorShape:
        """The shape of the output, without the batch."""
        return tf.TensorShape([self.dimension])

    @property
    def _variable_shape(self) -> tf.TensorShape:
        return self.variable_shape

    @property
    def parents(self) -> list[Any]:
        """The categorical column, as TensorFlow's interface requires."""
        return [self.categorical_column]

    @property
    def parse_example_spec(self) -> Any:
        """The features' entries for `tf.io.parse_example`."""
        return self.categorical_column.parse_example_spec

    @property
    def _parse_example_spec(self) -> Any:
        return self.categorical_column._parse_example_spec

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns the feature as the categorical column transforms it."""
        return transformation_cache.get(self.categorical_column, state_manager)

    def _transform_feature(self, inputs: Any) -> Any:
        return inputs.get(self.categorical_column)

    def create_state(self, state_manager: Any) -> None:
        """Makes the rows in the layer."""
        if not hasattr(state_manager, "create_embedding"):
            raise ValueError(
                f"Column '{self.name}': expected DenseFeatures or SequenceFeatures of "
                f"sok_embed.feature_column. Received: a layer with {type(state_manager).__name__}."
            )
        state_manager.create_embedding(self)

    def get_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> tf.Tensor:
        """Returns embeddings `[batch, dimension]`."""
        self.expect_sequence(False)
        return self._combined(state_manager.found[self.name])

    def _get_dense_tensor(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> tf.Tensor:
        self.expect_sequence(False)
        return self._combined(self._in_graph(inputs, weight_collections, trainable))

    def get_sequence_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns embeddings `[batch, longest, dimension]` and lengths `[batch]`."""
        self.expect_sequence(True)
        return self._sequences(state_manager.found[self.name])

    def _get_sequence_dense_tensor(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> Any:
        self.expect_sequence(True)
        return self._sequences(self._in_graph(inputs, weight_collections, trainable))

    def expect_sequence(self, sequence: bool) -> None:
        """Raises ValueError unless the ids are sequences if `sequence`, or not if it is false."""
        if isinstance(self.categorical_column, _SEQUENCES) == sequence:
            return
        layer = "sequence_input_layer or SequenceFeatures"
        if sequence:
            raise ValueError(
                f"Column '{self.name}': expected a sequence_categorical_column_with_… for {layer}. "
                f"Received: {type(self.categorical_column).__name__}."
            )
        raise ValueError(
            f"Column '{self.name}': expected a column that is not a sequence. Received: "
            f"{type(self.categorical_column).__name__}. Use {layer}."
        )

    def positions(self, ids: Any, inputs: Any) -> Positions:
        """Returns the positions to look up."""
        safe = self.use_safe_embedding_lookup or ids.id_tensor.shape.rank != 2
        adaptive = own_rows_column_in(self)
        if adaptive is None:
            return static_positions(ids.id_tensor, ids.weight_tensor, safe)
        raw = adaptive.raw_ids(inputs)
        mask = aligned_mask(adaptive, inputs._features, raw)
        keys = adaptive.keys_of(raw.values)
        buckets = adaptive.lookup_buckets(raw.values, ids.id_tensor.values)
        weights = aligned_weights(self.categorical_column, adaptive, inputs, raw)
        if weights is not None:
            weights = ids.id_tensor.with_values(weights)
        positions = Positions(ids.id_tensor, weights, keys, buckets, mask, safe)
        return with_weight(self, positions)

    def _in_graph(self, inputs: Any, weight_collections: Any, trainable: Any) -> Found:
        """Looks up the rows of this column, with those of the columns that share them."""
        call = inputs._features.get(InputLayer, InputLayer([self], {}))
        if self.name not in call.found:
            # In the variable scope of this column, which makes rows that are shared.
            rows = graph_state.embedding(self, weight_collections, trainable)
            asked = [(self, rows, self.categorical_column._get_sparse_tensors(inputs))]
            for other in filter(self._shares_rows_with, call.columns):
                rows = graph_state.embedding(other, weight_collections, trainable)
                asked.append((other, rows, other.categorical_column._get_sparse_tensors(inputs)))
            training = graph_state.trains(self, trainable)
            call.found.update(found_rows(asked, inputs, training, self.state_name))
        return call.found[self.name]

    def _shares_rows_with(self, column: Any) -> bool:
        """Returns whether another column of an input layer is looked up with this one."""
        if self.shared_name is None or not isinstance(column, RowsColumn) or column is self:
            return False
        return column.shared_name == self.shared_name and column.trainable == self.trainable

    def _combined(self, found: Found) -> tf.Tensor:
        return combine(self, found.positions, found.rows)

    def _sequences(self, found: Found) -> Any:
        lengths = utils.sequence_length_from_sparse_tensor(found.ids)
        return self.TensorSequenceLengthPair(self._combined(found), lengths)

    def get_config(self) -> dict[str, Any]:
        """Returns the fields, as JSON can hold them."""
        return {
            **self._asdict(),
            "categorical_column": serialization.serialize_feature_column(self.categorical_column),
            "initializer": serialize_initializer(self.initializer),
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None, columns_by_name: Any = None
    ) -> RowsColumn:
        """Makes the column that a `get_config` came from."""
        column = serialization.deserialize_feature_column(
            config["categorical_column"], custom_objects, columns_by_name
        )
        initializer = deserialize_initializer(config["initializer"])
        return cls(**{**config, "categorical_column": column, "initializer": initializer})


@serialization.register_feature_column
class AdaptiveEmbeddingColumn(RowsColumn):
    """See `embedding_column`."""


@serialization.register_feature_column
class AdaptiveSharedEmbeddingColumn(RowsColumn):
    """See `shared_embedding_columns`."""
