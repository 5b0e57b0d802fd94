"""The rows of embedding columns in a Keras layer: its weights, and tables beside them."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from sok_embed import communicators, tf_ops
from sok_embed.feature_column.categorical import own_rows_column_in
from sok_embed.feature_column.column_lookup import EmbeddingRows, check_same_rows
from sok_embed.feature_column.fused_columns import Found, found_rows
from sok_embed.feature_column.initializers import for_keras
from sok_embed.feature_column.own_table import OwnRows
from sok_embed.keras_bridge import callers
from sok_embed.lookups.lookup import LookupContext
from sok_embed.optimizers.slot_variables import slots_beside


class LayerEmbedding(EmbeddingRows):
    """The rows of a column in a layer."""

    table: OwnRows | None = None

    def __init__(self, layer: Any, column: Any) -> None:
        super().__init__(column, lambda: self._weight.value)
        self._layer = layer
        name = weight_name(column.state_name)
        categorical = own_rows_column_in(column)
        table = None
        if categorical is not None:
            communicator = communicators.current()
            table = OwnRows(
                categorical,
                column.dimension,
                lambda: self.static,
                owners=communicator.size,
                owner=communicator.rank,
                name=f"{layer.name}.{column.state_name}",
            )
        # The op that reads both kinds of rows runs where the table is.
        place = contextlib.nullcontext()
        with place if table is None else tf.device(table.lookup_device or "CPU:0"):
            self._weight = add_weight(
                layer,
                f"{name}_embedding_weights",
                shape=(column.static_rows, column.dimension),
                dtype="float32",
                initializer=_start(column),
                trainable=column.trains_static_rows,
            )
        if table is None:
            return
        table.host = weakref.ref(layer)
        make = functools.partial(add_weight, layer, f"{name}_anchor", trainable=column.trainable)
        self.add_table(table, f"Layer '{layer.name}'", make, self._weight)

    def _begin(self, training: bool) -> LookupContext:
        return self._own.begin(self._layer.trainable, training)

    def _read(self, context: LookupContext, *asked: Any) -> tf_ops.Lookup:
        bound = self._bind_slots() if context.trains and self.copies_slots else []
        with tf.control_dependencies(bound):
            return super()._read(context, *asked)

    def _bind_slots(self) -> list[tf.Tensor]:
        """Gives the table the slots that new rows copy in the first step of a loaded model.

        In later steps a commit has set them, also with an optimizer of a loop of the user's own.
        """
        assert self.table is not None
        optimizer = callers.fitting_optimizer()
        slots = None if optimizer is None else slots_beside(optimizer, self._weight)
        if not slots:
            return []
        handles = [slot.handle for slot in slots]
        device = self.table.lookup_device
        return [tf_ops.bind_slots(self.table.resource_handle, handles, device)]


class LayerState(fc_v2.StateManager):
    """The state of the columns of a layer, with the methods that TensorFlow's columns call.

    Attributes:
        embeddings: The rows of the layer's `RowsColumn`s, by their names.
        training: True if the call with this state makes rows.
        found: The rows that the call has looked up for columns, by their names.
    """

    training = False
    found: Mapping[str, Found] = {}

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._variables: dict[tuple[Any, str], Any] = {}
        self._resources: dict[tuple[Any, str], Any] = {}
        self.embeddings: dict[str, LayerEmbedding] = {}

    def create_embedding(self, column: Any) -> None:
        """Makes the rows of a `RowsColumn`, unless it shares the rows of another column."""
        made = self.embeddings.get(column.state_name)
        if made is None:
            self.embeddings[column.state_name] = LayerEmbedding(self._layer, column)
        else:
            check_same_rows(column, made.column)

    def embedding(self, column: Any) -> LayerEmbedding:
        """Returns the rows of a `RowsColumn`."""
        return self.embeddings[column.state_name]

    def of_call(self, training: bool) -> LayerState:
        """Returns this state for one call of the layer."""
        state = copy.copy(self)
        state.training = training
        return state

    def look_up(self, columns: Iterable[Any], cache: Any, sequences: bool) -> None:
        """Finds the rows of the columns that look them up themselves, in one exchange.

        Args:
            columns: `RowsColumn`s of the layer, before they are asked for their tensors.
            cache: The features of the call.
            sequences: True if they are columns of sequences.
        """
        asked = []
        for column in columns:
            column.expect_sequence(sequences)
            ids = column.categorical_column.get_sparse_tensors(cache, self)
            asked.append((column, self.embedding(column), ids))
        self.found = found_rows(asked, cache, self.training, self._layer.name)

    def create_variable(
        self,
        feature_column: Any,
        name: str,
        shape: Any,
        dtype: Any = None,
        trainable: bool = True,
        use_resource: bool = True,
        initializer: Any = None,
    ) -> Any:
        """Makes a weight of the layer."""
        weight = add_weight(
            self._layer,
            weight_name(f"{feature_column.name}_{name}"),
            shape=tuple(shape),
            dtype=tf.as_dtype(dtype or tf.float32).name,
            initializer=None if initializer is None else for_keras(initializer),
            trainable=trainable,
        )
        self._variables[feature_column, name] = weight
        return weight.value

    def get_variable(self, feature_column: Any, name: str) -> tf.Variable:
        """Returns the weight that `create_variable` made."""
        return self._variables[feature_column, name].value

    def add_resource(self, feature_column: Any, name: str, resource: Any) -> None:
        """Keeps a vocabulary of TensorFlow, so that exported models have it."""
        self._resources[feature_column, name] = resource
        if isinstance(resource, tf.__internal__.tracking.Trackable):
            self._layer._track_trackable(resource, f"{feature_column.name}_{name}", overwrite=True)

    def has_resource(self, feature_column: Any, name: str) -> bool:
        """Returns true if there is such a resource."""
        return (feature_column, name) in self._resources

    def get_resource(self, feature_column: Any, name: str) -> Any:
        """Returns the resource that `add_resource` was given."""
        return self._resources[feature_column, name]


def add_weight(layer: Any, name: str, **arguments: Any) -> Any:
    """Adds a weight to a layer, and an attribute by which `tf.train.Checkpoint` finds it."""
    weight = layer.add_weight(name=name, autocast=False, **arguments)
    attribute = f"_{name}"
    while hasattr(layer, attribute):  # another name differs only in what `weight_name` replaces
        attribute += "_"
    setattr(layer, attribute, weight)
    return weight


def weight_name(name: str) -> str:
    """Returns a name that Keras accepts for a weight."""
    return re.sub(r"[^\w.\-]", "_", name)


def _start(column: Any) -> Any:
    """Returns the initializer of static rows: a checkpoint, if there is one."""
    if column.ckpt_to_load_from is None:
        return for_keras(column.initializer)

    def load(shape: Any, dtype: Any = None) -> Any:
        values = tf.train.load_variable(column.ckpt_to_load_from, column.tensor_name_in_ckpt)
        if values.shape != tuple(shape):
            raise ValueError(
                f"Column '{column.name}': expected '{column.tensor_name_in_ckpt}' of shape "
                f"{tuple(shape)} in {column.ckpt_to_load_from}. Received: {values.shape}."
            )
        return tf.constant(values, dtype)

    return load
