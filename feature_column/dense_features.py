"""Keras 3 layers over feature columns."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import serialization

from sok_embed import tf_ops
from sok_embed.arguments import shown
from sok_embed.feature_column.categorical import own_rows_column_in
from sok_embed.feature_column.input_layers import check_sequences, join_sequences
from sok_embed.feature_column.layer_state import LayerState
from sok_embed.feature_column.masks import check_symbolic_masks, with_masks
from sok_embed.feature_column.own_table import OwnRows, made_by_config
from sok_embed.feature_column.rows_of_column import RowsColumn
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.layer_calls import (
    refuse_casts,
    refuse_dense_signature,
    refuse_when_served,
)
from sok_embed.keras_bridge.layer_with_rows import LayerWithRows
from sok_embed.layers.saved_rows import SavedRows
from sok_embed.lookups.lookup import check_training
from sok_embed.training.strategies import check_strategy


class _FeaturesLayer(LayerWithRows, ABC):
    """Base of `DenseFeatures` and `SequenceFeatures`."""

    _of_sequences: bool
    _takes_ids = False
    _reads_storage_copies = False  # columns name the folders of their rows

    def __init__(self, feature_columns: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.compute_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"Layer '{self.name}': expected a compute dtype of float32 or bfloat16. Received: "
                f"{self.compute_dtype}. Give the layer `dtype='float32'`."
            )
        if isinstance(feature_columns, Iterator):
            feature_columns = list(feature_columns)
        check_strategy(f"Layer '{self.name}'")
        columns = fc_v2._normalize_feature_columns(feature_columns)
        self._check_columns(columns)
        # One object holds these, so that Keras and TensorFlow do not track them.
        self._state = _State(columns, LayerState(self))
        for column in columns:
            self._check_replicas(column)
            column.create_state(self._state.manager)
        for name, table in self.tables.items():
            self._track_trackable(table, f"own_rows_{name}")
        self.built = True

    @abstractmethod
    def _check_columns(self, columns: Any) -> None:
        """Raises ValueError for columns that the layer cannot have."""

    def _check_replicas(self, column: Any) -> None:
        adaptive = own_rows_column_in(column)
        strategy = tf.distribute.get_strategy()
        plain = not tf.distribute.has_strategy() or isinstance(
            strategy, tf.distribute.OneDeviceStrategy
        )
        if adaptive is not None and isinstance(column, RowsColumn) and not plain:
            raise ValueError(
                f"Layer '{self.name}': expected no strategy, or a OneDeviceStrategy, with "
                f"the adaptive column '{adaptive.name}', whose static rows lie beside its table "
                "and not where a strategy has its variables. Received: "
                f"{type(strategy).__name__}. Start several processes with `sok-embed run`, or use "
                "sok_embed.AdaptiveEmbedding."
            )

    def _tables(self) -> list[OwnRows]:
        return list(self.tables.values()) if "_state" in vars(self) else []

    @property
    def feature_columns(self) -> list[Any]:
        """The columns, in the order of their names."""
        return list(self._state.columns)

    @property
    def tables(self) -> dict[str, OwnRows]:
        """Own rows on this worker, a `Table` for each adaptive embedding column, by its name.

        Shared columns have one, by the name that they share.
        """
        embeddings = self._state.manager.embeddings
        return {name: made.table for name, made in embeddings.items() if made.table is not None}

    def static_rows(self, name: str) -> tf.Variable:
        """Returns the static rows of a column, `[buckets, dim]`, by the column's name in `tables`.

        Raises:
            ValueError: For another name.
        """
        embeddings = self._state.manager.embeddings
        if name not in embeddings:
            raise ValueError(
                f"Layer '{self.name}': expected the name of an adaptive embedding, one of "
                f"{sorted(embeddings)}. Received: '{name}'."
            )
        return embeddings[name].static

    def _begin(
        self, features: Any, masks: Any, training: Any
    ) -> tuple[fc_v2.FeatureTransformationCache, LayerState]:
        check_strategy(f"Layer '{self.name}'")
        if not isinstance(features, Mapping):
            raise ValueError(
                f"Layer '{self.name}': expected a dict of features. Received: {shown(features)}."
            )
        sparse = {
            name: feature.to_sparse() if isinstance(feature, tf.RaggedTensor) else feature
            for name, feature in features.items()
        }
        together = with_masks(sparse, self._state.columns, masks)
        training = check_training(f"Layer '{self.name}'", training)
        cache = fc_v2.FeatureTransformationCache(together)
        state = self._state.manager.of_call(training)
        with_rows = [column for column in self._state.columns if isinstance(column, RowsColumn)]
        state.look_up(with_rows, cache, self._of_sequences)
        return cache, state

    def call(
        self, features: Any, adaptive_mask_tensors: Any = None, training: bool | None = None
    ) -> Any:
        """Looks the features up; with `training`, makes rows for ids of mask 1."""
        if callers.building_from_file():
            return self._placeholders()
        refuse_casts(self, self._ids_among)
        self._refuse_dense_signature(features)
        try:
            return self._look_up(*self._begin(features, adaptive_mask_tensors, training))
        except (TypeError, ValueError):
            if not callers.tracing_default_signature():
                raise
        refuse_when_served(
            f"Layer '{self.name}': expected features of the dtypes that its columns have. "
            "Received: floats, in a signature that Keras made from shapes. Export the model with "
            "a signature of your own: model.export(path, input_signature=[...])."
        )
        # The number of examples is that of any feature.
        return self._nothing(tf.shape(tf.nest.flatten(features)[0])[0])

    def _refuse_dense_signature(self, features: Any) -> None:
        """Raises for integer ids that an export would take as dense and padded.

        In strings "" is missing anyway.
        """
        for column in map(own_rows_column_in, self._state.columns):
            if column is not None and isinstance(features, Mapping) and column.key in features:
                refuse_dense_signature(
                    self,
                    features[column.key],
                    padded=column.padding_value is not None or column.dtype == tf.string,
                    pools=False,
                    feature=column.key,
                    chosen=operator.itemgetter(column.key),
                )

    def _ids_among(self, features: Any) -> list[Any]:
        """Returns the symbolic features that columns read as ids with rows of their own."""
        columns = map(own_rows_column_in, self._state.columns)
        keys = {column.key for column in columns if column is not None}
        return [features[key] for key in keys if key in features]

    @abstractmethod
    def _placeholders(self) -> Any:
        """Returns placeholders of the outputs while Keras builds a model from a file."""

    @abstractmethod
    def _look_up(self, cache: fc_v2.FeatureTransformationCache, state: LayerState) -> Any:
        """Returns the outputs of a call."""

    @abstractmethod
    def _nothing(self, batch: Any) -> Any:
        """Returns outputs for a batch whose features the columns do not read."""

    def _check_symbolic(self, masks: Any) -> None:
        wanting = [column for column in self._state.columns if isinstance(column, RowsColumn)]
        check_symbolic_masks(self._state.columns, wanting, masks)

    def _width(self) -> int:
        return sum(column.variable_shape.num_elements() for column in self._state.columns)

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: all shapes are known from the columns."""

    def count_params(self) -> int:
        """Counts the numbers of static rows, which are weights, and of own rows."""
        return keras.layers.Layer.count_params(self)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "feature_columns": serialization.serialize_feature_columns(self._state.columns),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes the layer that a `get_config` came from."""
        columns = serialization.deserialize_feature_columns(config["feature_columns"])
        with made_by_config():
            return cls(**{**config, "feature_columns": columns})

    def _saved_rows(self) -> list[SavedRows]:
        in_memory = {
            i: table for i, table in enumerate(self.tables.values()) if table.storage is None
        }
        expected = f"own rows of {len(in_memory)} columns, saved by a layer of the same columns"
        return [
            SavedRows(self.name, table, tf_ops.Export, f"own_rows_{i}_", expected)
            for i, table in in_memory.items()
        ]


class _State:
    """The columns of a layer and their state in it."""

    def __init__(self, columns: list[Any], manager: LayerState) -> None:
        self.columns = columns
        self.manager = manager


@keras.saving.register_keras_serializable(package="sok_embed")
class DenseFeatures(_FeaturesLayer):
    """Turns a dict of features into one dense tensor, by feature columns.

    This is `tf.keras.layers.DenseFeatures` of Keras 2 for Keras 3, and for adaptive columns too.
    Columns of TensorFlow work as they are. Rows follow the optimizer that trains the model.

    Under Horovod static rows are a weight that every worker has, and own rows are spread over the
    workers: the row of a key lies on worker `key % size()`. A call is then collective: each worker
    must make it. Static rows need the gradients of all workers, by
    `sok_embed.DistributedOptimizer`.

    Example:
    >>> import numpy as np
    >>> from sok_embed.feature_column import (
    ...     categorical_column_with_adaptive_embedding, embedding_column)
    >>> item = categorical_column_with_adaptive_embedding("item", 100, tf.int64)
    >>> price = tf.feature_column.numeric_column("price")
    >>> layer = DenseFeatures([embedding_column(item, 8), price])
    >>> features = {"item": np.array([[7, 8], [9, -1]]), "price": np.array([1.5, 2.5])}
    >>> masks = {"item": np.array([[1, 0], [0, 0]], np.int32)}
    >>> layer(features, masks, training=True).shape
    TensorShape([2, 9])
    >>> layer.tables["item_embedding"].export()[0]
    array([7])

    Args:
        feature_columns: Dense columns, of TensorFlow and of `embedding_column`.
        **kwargs: The arguments of `keras.layers.Layer`.

    Call arguments:
        features: A dict of dense, sparse or ragged tensors, by name.
        adaptive_mask_tensors: A dict of masks, int32, for each adaptive column under an embedding
            column, by its name: with an entry for each value of a sparse feature, or of the shape
            of a dense one. 1: the id's own row; 0: its static row.
        training: True if ids of mask 1 that have no row get one. Without, they read their static
            row.

    Output shape:
        `[batch, sum of dimensions]`, columns in the order of their names, in the compute dtype
        (float32 or bfloat16).

    Raises:
        ValueError: For columns that are not dense, a float16 policy, adaptive columns under a
            strategy other than OneDeviceStrategy; and for a mask that is missing, of another type
            than int32, of another shape, or of no adaptive column.
        tf.errors.InvalidArgumentError: For a mask of another length, and for values other than 0
            and 1, named with the column.
    """

    _of_sequences = False

    def _check_columns(self, columns: Any) -> None:
        for column in columns:
            if not isinstance(column, fc_v2.DenseColumn):
                raise ValueError(
                    f"Layer '{self.name}': expected dense columns, such as those of "
                    f"embedding_column and numeric_column. Received: {column}."
                )

    def _placeholders(self) -> tf.Tensor:
        return tf.compat.v1.placeholder(self.compute_dtype, self.compute_output_shape())

    def _nothing(self, batch: Any) -> tf.Tensor:
        return tf.zeros([batch, self._width()], self.compute_dtype)

    def _look_up(self, cache: fc_v2.FeatureTransformationCache, state: LayerState) -> tf.Tensor:
        outputs = []
        for column in self._state.columns:
            with tf.name_scope(fc_v2._sanitize_column_name_for_variable_scope(column.name)):
                tensor = column.get_dense_tensor(cache, state)
                size = column.variable_shape.num_elements()
                outputs.append(tf.reshape(tensor, [tf.shape(tensor)[0], size]))
        fc_v2._verify_static_batch_size_equality(outputs, self._state.columns)
        return tf.cast(tf.concat(outputs, 1), self.compute_dtype)

    def compute_output_shape(self, *_: Any, **__: Any) -> tuple[int | None, int]:
        """Returns the shape of the output for any batch."""
        return (None, self._width())

    def compute_output_spec(
        self, features: Any, adaptive_mask_tensors: Any = None, training: bool | None = None
    ) -> keras.KerasTensor:
        """Returns the shape and the dtype of the output; checks which masks there are."""
        self._check_symbolic(adaptive_mask_tensors)
        return keras.KerasTensor(self.compute_output_shape(), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="sok_embed")
class SequenceFeatures(_FeaturesLayer):
    """Turns a dict of sequences into one dense tensor, by feature columns.

    As `DenseFeatures`, over columns of `sequence_categorical_column_with_…` and
    `tf.feature_column.sequence_numeric_column`.

    Example:
    >>> import numpy as np
    >>> from sok_embed.feature_column import (
    ...     embedding_column, sequence_categorical_column_with_adaptive_embedding)
    >>> items = sequence_categorical_column_with_adaptive_embedding("items", 100, tf.int64)
    >>> layer = SequenceFeatures([embedding_column(items, 8)])
    >>> features = {"items": tf.ragged.constant([[7, 8, 9], [8]], dtype=tf.int64)}
    >>> rows, lengths = layer(features, {"items": np.array([1, 1, 0, 1], np.int32)})
    >>> rows.shape, lengths.numpy()
    (TensorShape([2, 3, 8]), array([3, 1]))

    Args:
        feature_columns: Dense columns over sequences.
        **kwargs: The arguments of `keras.layers.Layer`.

    Call arguments:
        features: The features, as for `DenseFeatures`.
        adaptive_mask_tensors: The masks, as for `DenseFeatures`.
        training: True for training, as for `DenseFeatures`.

    Output shape:
        `[batch, longest, sum of dimensions]` in the compute dtype, zeros behind the end of a
        sequence; and the lengths, int64 `[batch]`.

    Raises:
        ValueError: As `DenseFeatures` raises, and for columns that are not sequences.
        tf.errors.InvalidArgumentError: As `DenseFeatures` raises, and for columns of different
            lengths.
    """

    _of_sequences = True

    def _check_columns(self, columns: Any) -> None:
        check_sequences(columns, fc_v2.SequenceDenseColumn)

    def _placeholders(self) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.compat.v1.placeholder(self.compute_dtype, [None, None, self._width()])
        return rows, tf.compat.v1.placeholder("int64", [None])

    def _nothing(self, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.zeros([batch, 0, self._width()], self.compute_dtype)
        return rows, tf.zeros([batch], tf.int64)

    def _look_up(
        self, cache: fc_v2.FeatureTransformationCache, state: LayerState
    ) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = {}
        for column in self._state.columns:
            with tf.name_scope(fc_v2._sanitize_column_name_for_variable_scope(column.name)):
                outputs[column] = column.get_sequence_dense_tensor(cache, state)
        rows, lengths = join_sequences(outputs)
        return tf.cast(rows, self.compute_dtype), lengths

    def compute_output_spec(
        self, features: Any, adaptive_mask_tensors: Any = None, training: bool | None = None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Returns the shapes and dtypes of the outputs; checks which masks there are."""
        self._check_symbolic(adaptive_mask_tensors)
        return (
            keras.KerasTensor((None, None, self._width()), dtype=self.compute_dtype),
            keras.KerasTensor((None,), dtype="int64"),
        )
