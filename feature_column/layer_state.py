"""The rows of embedding columns in a Keras layer: its weights, and tables beside them."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from sok_embed import callers, communicators, tf_ops
from sok_embed.commit import Commit, trained_anchor
from sok_embed.feature_column.initializers import for_keras
from sok_embed.feature_column.own_rows import OwnRows
from sok_embed.feature_column.own_rows_categorical import own_rows_column_in
from sok_embed.slot_variables import slot_variables


class LayerEmbedding:
    """The rows of a column in a layer.

    Args:
        layer: Gets the weights.
        column: A `RowsColumn`.
    """

    def __init__(self, layer: Any, column: Any) -> None:
        self._layer = layer
        self.column = column
        name = weight_name(column.state_name)
        adaptive = own_rows_column_in(column)
        # The op that reads both kinds of rows runs where the table is.
        with contextlib.nullcontext() if adaptive is None else tf.device("CPU:0"):
            self._weight = add_weight(
                layer,
                f"{name}_embedding_weights",
                shape=(column.static_rows, column.dimension),
                dtype="float32",
                initializer=_start(column),
                trainable=column.trains_static_rows,
            )
        self.table: OwnRows | None = None
        if adaptive is None:
            return
        communicator = communicators.current()
        self._copy_slots = adaptive.slots == "copy"
        self._absent_value = adaptive.absent_value
        self.table = OwnRows(
            adaptive,
            column.dimension,
            lambda: self.static,
            owners=communicator.size,
            owner=communicator.rank,
            name=f"{layer.name}.{column.state_name}",
        )
        self._anchor = add_weight(
            layer,
            f"{name}_anchor",
            shape=(tf_ops.ANCHOR_SIZE,),
            dtype="float32",
            initializer="zeros",
            constraint=Commit(self.table, None, static=self._weight),
            trainable=column.trainable,
        )

    @property
    def static(self) -> tf.Variable:
        """The variable of the static rows, `[buckets, dim]`."""
        return self._weight.value

    def lookup(
        self, keys: tf.Tensor, buckets: tf.Tensor | None, mask: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """The rows of keys `[n]`, float32 `[n, dim]`; with `training`, makes those that lack."""
        assert self.table is not None
        communicator = self._communicator()
        if communicator.size == 1:
            return self._gather(keys, buckets, mask, training)
        if buckets is None:
            buckets = tf_ops.static_buckets(keys, self._weight.shape[0])
        # The rows of mask 0 are here: every worker has all static rows.
        own = tf.equal(mask, 1)
        shared_places, own_places = tf.where(~own)[:, 0], tf.where(own)[:, 0]
        shared = tf.gather(self.static, tf.gather(buckets, shared_places))
        rows = self._exchange(tf.gather(keys, own_places), tf.gather(buckets, own_places), training)
        places = [tf.cast(shared_places, tf.int32), tf.cast(own_places, tf.int32)]
        found = tf.dynamic_stitch(places, [shared, rows])
        found.set_shape([None, self.column.dimension])
        return found

    def _exchange(self, keys: tf.Tensor, buckets: tf.Tensor, training: bool) -> tf.Tensor:
        """Own rows, which lie on worker `key % size`. Collective."""
        communicator = self._communicator()
        assert self.table is not None
        name = f"sok_embed.{self.table.name}"
        part = tf_ops.unique_and_partition(keys, communicator.size)
        # Equal keys have equal buckets.
        distinct = tf.size(part.unique_keys)
        their_buckets = tf.math.unsorted_segment_max(buckets, part.inverse, distinct)
        pairs = tf.stack([part.unique_keys, their_buckets], 1)
        owned, splits = communicator.all_to_all(pairs, part.splits, f"{name}.keys")
        mask = tf.ones(tf.shape(owned)[:1], tf.int32)
        owned_rows = self._gather(owned[:, 0], owned[:, 1], mask, training)
        rows, _ = communicator.all_to_all(owned_rows, splits, f"{name}.rows")
        return tf_ops.expand(rows, part.inverse)

    def _gather(
        self, keys: tf.Tensor, buckets: tf.Tensor | None, mask: tf.Tensor, training: bool
    ) -> tf.Tensor:
        assert self.table is not None
        # A frozen layer takes no gradient and makes no rows.
        frozen = not (self._layer.trainable and self._anchor.trainable)
        make_rows = training and not frozen
        bound = self._bind_slots() if make_rows and self._copy_slots else []
        with tf.control_dependencies(bound):
            return tf_ops.adaptive_mask_gather(
                self.table.resource_handle,
                self.static,
                keys,
                buckets,
                mask,
                dim=self.column.dimension,
                make_rows=make_rows,
                anchor=None if frozen else trained_anchor(self._anchor),
                copy_slots=self._copy_slots,
                absent_value=self._absent_value,
            )

    def _bind_slots(self) -> list[tf.Tensor]:
        """Tells the table of the slots that the first step of a loaded model copies.

        Later steps know them from the commit, which also knows the optimizers of other loops.
        """
        assert self.table is not None
        optimizer = callers.fitting_optimizer()
        slots = None if optimizer is None else slot_variables(optimizer, self._weight)
        if not slots:
            return []
        handles = [slot.handle for slot in slots]
        return [tf_ops.bind_slots(self.table.resource_handle, handles)]

    def _communicator(self) -> communicators.Communicator:
        """That of the process, which must be the one that the table was made for."""
        assert self.table is not None
        communicator = communicators.current()
        now = (communicator.rank, communicator.size)
        then = (self.table.owner, self.table.owners)
        if now != then:
            raise ValueError(
                f"Layer '{self._layer.name}': expected to be worker {then[0]} of {then[1]}, for "
                f"which its tables were made. Received: worker {now[0]} of {now[1]}. Call "
                "sok_embed.init() before layers are made."
            )
        return communicator


class _Rows:
    """The rows of a column, as one call of the layer reads them."""

    def __init__(self, embedding: LayerEmbedding, training: bool) -> None:
        self.static = embedding.static
        self._embedding = embedding
        self._training = training

    def gather(self, keys: tf.Tensor, buckets: tf.Tensor | None, mask: tf.Tensor) -> tf.Tensor:
        return self._embedding.lookup(keys, buckets, mask, self._training)


class LayerState(fc_v2.StateManager):
    """What the columns of a layer keep in it, as TensorFlow's columns ask for it.

    Args:
        layer: Gets the weights of the columns.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._variables: dict[tuple[Any, str], Any] = {}
        self._resources: dict[tuple[Any, str], Any] = {}
        self.embeddings: dict[str, LayerEmbedding] = {}

    def create_embedding(self, column: Any) -> None:
        """Makes the rows of a `RowsColumn`, unless it shares those of another."""
        made = self.embeddings.get(column.state_name)
        if made is None:
            self.embeddings[column.state_name] = LayerEmbedding(self._layer, column)
        elif not _alike(made.column, column):
            raise ValueError(
                f"Column '{column.name}': expected the options of '{made.column.name}', whose rows "
                "it shares. Received: others. Make both by one call of shared_embedding_columns."
            )

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
        """A weight of the layer."""
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
        """The weight that `create_variable` made."""
        return self._variables[feature_column, name].value

    def add_resource(self, feature_column: Any, name: str, resource: Any) -> None:
        """Keeps a vocabulary of TensorFlow's, and has models that are exported carry it."""
        self._resources[feature_column, name] = resource
        if isinstance(resource, tf.__internal__.tracking.Trackable):
            self._layer._track_trackable(resource, f"{feature_column.name}_{name}", overwrite=True)

    def has_resource(self, feature_column: Any, name: str) -> bool:
        """Whether there is one."""
        return (feature_column, name) in self._resources

    def get_resource(self, feature_column: Any, name: str) -> Any:
        """What `add_resource` was given."""
        return self._resources[feature_column, name]


class CallState(fc_v2.StateManager):
    """A layer's state as one call uses it: it knows whether the call trains."""

    def __init__(self, state: LayerState, training: bool) -> None:
        self._training = training
        self._state = state
        self.get_variable = state.get_variable
        self.add_resource = state.add_resource
        self.has_resource = state.has_resource
        self.get_resource = state.get_resource

    def embedding(self, column: Any) -> _Rows:
        """The rows of a `RowsColumn`."""
        return _Rows(self._state.embeddings[column.state_name], self._training)


def add_weight(layer: Any, name: str, **arguments: Any) -> Any:
    """A weight of a layer, which is also an attribute: `tf.train.Checkpoint` goes by these."""
    weight = layer.add_weight(name=name, autocast=False, **arguments)
    attribute = f"_{name}"
    while hasattr(layer, attribute):  # of a name that differs in what `weight_name` replaces
        attribute += "_"
    setattr(layer, attribute, weight)
    return weight


def weight_name(name: str) -> str:
    """A name that Keras lets a weight have."""
    return re.sub(r"[^\w.\-]", "_", name)


def _start(column: Any) -> Any:
    """The initializer of static rows: a checkpoint, if there is one."""
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


def _alike(first: Any, second: Any) -> bool:
    """Whether columns that go by one name mean the same rows."""
    one, other = own_rows_column_in(first), own_rows_column_in(second)
    if one is None or other is None:
        same_ids = one is other
    else:
        same_ids = one._replace(key=other.key) == other
    return same_ids and first.dimension == second.dimension
