"""`tf.get_embedding_variable` of DeepRec: a table that lookups of TF1 graphs take as a variable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.util import dispatch

from sok_embed import tf_ops
from sok_embed.arguments import check_integer, shown
from sok_embed.feature_column import graph_state
from sok_embed.feature_column.combine import Positions, combine, with_weight
from sok_embed.feature_column.embedding_columns import one_initializer
from sok_embed.feature_column.evictions import GlobalStepEvict
from sok_embed.feature_column.options import EmbeddingVariableOption
from sok_embed.feature_column.rows_of_column import AdaptiveEmbeddingColumn
from sok_embed.feature_column.variable_categorical import (
    EmbeddingCategoricalColumn,
    categorical_column_with_embedding,
)

_INSTEAD = "sok_embed.DynamicEmbedding"


class Rows(NamedTuple):
    """The rows of an embedding variable, in no order.

    Attributes:
        keys: int64 `[n]`.
        values: float32 `[n, dim]`.
    """

    keys: tf.Tensor
    values: tf.Tensor


@dispatch.register_dispatchable_type
class EmbeddingVariable:
    """Rows by key in a TF1 graph. `get_embedding_variable` makes it.

    `tf.nn.embedding_lookup`, `tf.nn.embedding_lookup_sparse`, `tf.nn.safe_embedding_lookup_sparse`
    and those of `tf.compat.v1.nn`, and `tf.gather`, take it instead of a variable. A trainable
    one makes rows whenever a lookup runs.

    The optimizer that trains it finds `anchor` among the trainable variables: in a `var_list`, it
    stands for the rows.

    Args:
        embedding: The rows in the graph.
        column: The embedding column that makes them.
        trainable: True if rows are made and trained.
    """

    def __init__(
        self,
        embedding: graph_state.GraphEmbedding,
        column: AdaptiveEmbeddingColumn,
        trainable: bool,
    ) -> None:
        self._embedding = embedding
        self._column = column
        self.trainable = trainable

    @property
    def name(self) -> str:
        """The variable scope that the name was given in, and the name."""
        return self._embedding.name

    @property
    def anchor(self) -> tf.Variable:
        """The variable that stands for the rows, whose elements stay 0."""
        assert self._embedding.anchor is not None
        return self._embedding.anchor

    @property
    def default_values(self) -> tf.Variable:
        """The start vectors `[n, dim]`, `n = default_value_dim`: key `k` has `k % n`."""
        return self._embedding.static

    @property
    def dtype(self) -> tf.DType:
        """The dtype of rows."""
        return tf.float32

    @property
    def key_dtype(self) -> tf.DType:
        """The dtype of ids."""
        return self._categorical.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of a row, as in DeepRec: the number of rows is not known before."""
        return tf.TensorShape([self._column.dimension])

    def get_shape(self) -> tf.TensorShape:
        """Returns `shape`."""
        return self.shape

    def total_count(self) -> tf.Tensor:
        """Returns the number of rows and their length: int64 `[2]`."""
        dim = tf.constant(self._column.dimension, tf.int64)
        return tf.stack([tf_ops.size(self._handle), dim])

    def export(self) -> Rows:
        """Returns all rows, as they are between two steps."""
        contents = tf_ops.export(self._handle, self._column.dimension, with_slots=False)
        return Rows(contents.keys, contents.embeddings)

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Returns the rows of ids of any shape: float32 `indices.shape + [dim]`.

        Raises:
            ValueError: For ids of another kind than `key_dtype`; in a branch or a loop.
        """
        with tf.name_scope(name or "embedding_lookup"):
            ids = _as_ids(indices, self.key_dtype)
            self._check(ids.dtype)
            categorical = self._categorical
            keys = categorical.keys_of(ids)
            buckets = categorical.lookup_buckets(ids, keys)
            return self._gather(keys, buckets, tf.ones_like(keys, tf.int32))

    def combine(
        self,
        ids: tf.SparseTensor,
        weights: tf.SparseTensor | None,
        combiner: str,
        max_norm: float | None,
        safe: bool,
    ) -> tf.Tensor:
        """Combines the rows of ids `[batch, …]` by example, as the sparse lookups of `tf.nn` do.

        Args:
            ids: The ids, of `key_dtype`.
            weights: The weights of the same places, or `None`: 1.
            combiner: `"mean"`, `"sqrtn"` or `"sum"`.
            max_norm: The longest row.
            safe: True if examples without ids are zeros, and weights of 0 and below are left out.

        Raises:
            ValueError: For ids of another kind than `key_dtype`; in a branch or a loop.
        """
        self._check(ids.dtype)
        categorical = self._categorical
        keys = categorical.keys_of(ids.values)
        column = self._column._replace(combiner=combiner, max_norm=max_norm)
        buckets, ones = categorical.lookup_buckets(ids.values, keys), tf.ones_like(keys, tf.int32)
        positions = with_weight(column, Positions(ids, weights, keys, buckets, ones, safe))
        rows = self._gather(positions.keys, positions.buckets, positions.mask)
        return combine(column, positions, rows)

    def __iter__(self) -> Iterator[EmbeddingVariable]:
        """Yields the variable itself, as a partitioned variable yields its parts."""
        return iter([self])

    def __repr__(self) -> str:
        return f"<EmbeddingVariable '{self.name}', rows of {self._column.dimension}>"

    def _gather(self, keys: tf.Tensor, buckets: tf.Tensor | None, mask: tf.Tensor) -> tf.Tensor:
        return self._embedding.lookup(keys, buckets, mask, self.trainable)

    def _check(self, dtype: tf.DType) -> None:
        """Raises ValueError for ids of another kind, and where no rows can be looked up."""
        what = f"Embedding variable '{self.name}'"
        graph_state.check_graph(what, "lookups", _INSTEAD)
        if dtype != tf.string and not dtype.is_integer:
            raise ValueError(
                f"{what}: expected ids of {self.key_dtype.name}. Received: {dtype.name}. Cast them."
            )
        self._categorical.check_ids(dtype)

    @property
    def _categorical(self) -> EmbeddingCategoricalColumn:
        categorical = self._column.categorical_column
        assert isinstance(categorical, EmbeddingCategoricalColumn)
        return categorical

    @property
    def _handle(self) -> tf.Tensor:
        assert self._embedding.table is not None
        return self._embedding.table.resource_handle


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: Any = tf.int64,
    value_dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    partitioner: Callable[..., Any] | None = None,
    validate_shape: bool = True,
    custom_getter: Any = None,
    constraint: Any = None,
    steps_to_live: int | None = None,
    init_data_source: Any = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> EmbeddingVariable:
    """Makes rows of any 64-bit keys for the lookups of `tf.nn` in a TF1 graph, as DeepRec does.

    A key that has no row gets one when a lookup asks for it. Rows start from one of
    `default_value_dim` vectors that the initializer draws at once: see `InitializerOption`. They
    follow the optimizer of `tf.compat.v1.train` that trains the graph, and
    `tf.compat.v1.train.Saver` carries them.

    Example:
    >>> import numpy as np
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     items = get_embedding_variable("items", 2, initializer=tf.ones_initializer())
    ...     rows = tf.nn.embedding_lookup(items, tf.constant([7, -8], tf.int64))
    ...     train = tf.compat.v1.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(rows))
    ...     _ = session.run(tf.compat.v1.global_variables_initializer())
    ...     _ = session.run(train)
    ...     np.sort(session.run(items.export().keys)), session.run(rows)[0]
    (array([-8,  7]), array([0.5, 0.5], dtype=float32))

    Args:
        name: The name in the variable scope. With reuse, the same name is the same rows.
        embedding_dim: The length of a row.
        key_dtype: The dtype of ids: an integer type or `tf.string`.
        value_dtype: `None` or `tf.float32`.
        initializer: The initializer of the vectors that rows start from, or one vector. `None`:
            that of the `InitializerOption`, of the variable scope, or a truncated normal of
            standard deviation 1.
        regularizer: Only `None` and `tf.compat.v1.no_regularizer`.
        trainable: `False`: rows stay as they are, and keys get none.
        collections: Graph collections of the variables behind the rows.
        caching_device: Only `None`.
        partitioner: The function that returns the least number of parts into which rows in memory
            are split by key, for threads to work on. `None`: that of the variable scope, or as many
            as suit the machine.
        validate_shape: Without effect, as no shape is known before.
        custom_getter: Only `None`.
        constraint: Only `None`.
        steps_to_live: The steps of `GlobalStepEvict(steps_to_live)`, which the options may have
            instead.
        init_data_source: Only `None`.
        ev_option: The option for the keys that keep a row, the place of rows and their start.

    Returns:
        The embedding variable, which the lookups take instead of a variable.

    Raises:
        ValueError: For an argument that is none of the above; outside of a TF1 graph, in a branch
            or a loop, or with several workers; for a name that there is already, without reuse.
    """
    what = f"Embedding variable '{name}'"
    graph_state.check_graph(what, "get_embedding_variable", _INSTEAD)
    refused = {
        "caching_device": caching_device,
        "custom_getter": custom_getter,
        "constraint": constraint,
        "init_data_source": init_data_source,
    }
    for argument, value in refused.items():
        if value is not None:
            raise ValueError(
                f"{what}: expected no {argument}, which has no meaning for rows of a table. "
                f"Received: {shown(value)}. Leave it out."
            )
    if value_dtype is not None and tf.as_dtype(value_dtype) != tf.float32:
        raise ValueError(
            f"{what}: expected value_dtype to be tf.float32. Received: "
            f"{tf.as_dtype(value_dtype).name}. Cast the results of lookups."
        )
    what_dim = f"embedding_dim of embedding variable '{name}'"
    embedding_dim = check_integer(what_dim, embedding_dim, 1)
    option = _with_steps_to_live(what, ev_option or EmbeddingVariableOption(), steps_to_live)
    scope = tf.compat.v1.get_variable_scope()
    graph_state.check_regularizer(what, "Pass tf.compat.v1.no_regularizer", regularizer)
    categorical = categorical_column_with_embedding(name, key_dtype, None, option)
    partitions = _partitions(
        what, partitioner or scope.partitioner, categorical.static_rows, embedding_dim
    )
    in_memory = option.storage_option is None or not option.storage_option.on_disk
    column = AdaptiveEmbeddingColumn(
        categorical._replace(partition_num=partitions if in_memory else None),
        embedding_dim,
        "mean",
        _start(what, one_initializer(categorical, initializer), scope.initializer, embedding_dim),
        None,
        None,
        None,
        trainable,
        True,
        None,
    )
    with tf.compat.v1.variable_scope(name, regularizer=regularizer):
        embedding = graph_state.embedding(column, collections, trainable)
    return EmbeddingVariable(embedding, column, trainable)


def _with_steps_to_live(
    what: str, option: EmbeddingVariableOption, steps_to_live: int | None
) -> EmbeddingVariableOption:
    if steps_to_live is None:
        return option
    if option.evict_option is not None:
        raise ValueError(
            f"{what}: expected steps_to_live or an evict_option. Received: both, {steps_to_live!r} "
            f"and {option.evict_option!r}."
        )
    return dataclasses.replace(option, evict_option=GlobalStepEvict(steps_to_live))


def _partitions(what: str, partitioner: Any, rows: int, dim: int) -> int | None:
    """Returns the number of parts that a partitioner of variables wants."""
    if partitioner is None:
        return None
    if not callable(partitioner):
        raise ValueError(
            f"{what}: expected partitioner to be a function, such as "
            f"tf.compat.v1.fixed_size_partitioner(4). Received: {shown(partitioner)}."
        )
    # A partitioner needs a shape, but the number of rows is not known before.
    return int(np.prod(partitioner(shape=tf.TensorShape([rows, dim]), dtype=tf.float32)))


def _start(what: str, initializer: Any, of_scope: Any, dim: int) -> Any:
    """Returns the initializer of the vectors that rows start from."""
    if initializer is None:
        initializer = of_scope or tf.compat.v1.truncated_normal_initializer()
    if isinstance(initializer, type):
        initializer = initializer()
    if callable(initializer):
        return initializer
    vector = np.asarray(initializer, np.float32)
    if vector.shape not in ((), (dim,)):
        raise ValueError(
            f"{what}: expected an initializer, a number, or a vector of {dim}. Received: an array "
            f"of shape {vector.shape}."
        )

    def constant(shape: Any, dtype: Any = None, partition_info: Any = None) -> tf.Tensor:
        return tf.broadcast_to(tf.constant(vector, dtype or tf.float32), shape)

    return constant


def _as_ids(ids: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns ids as a tensor. Python integers take the dtype of the variable."""
    if tf.is_tensor(ids) or hasattr(ids, "dtype"):
        return tf.convert_to_tensor(ids)
    return tf.convert_to_tensor(ids, dtype)
