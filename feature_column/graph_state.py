"""The rows of embedding columns in a TF1 graph: variables of the graph, and a table beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

from sok_embed import communicators, tf_ops
from sok_embed.commit import Commit
from sok_embed.feature_column.own_rows import Evictor, open_storage, table_attributes
from sok_embed.feature_column.own_rows_categorical import OwnRowsCategorical, own_rows_column_in
from sok_embed.feature_column.saveable import RowsSaveable

_Keys = tf.compat.v1.GraphKeys
_BRANCHES = (
    control_flow.CondBranchFuncGraph,
    control_flow.WhileBodyFuncGraph,
    control_flow.WhileCondFuncGraph,
)

# The collection of a graph's embeddings. No string, so that no saver tries to write it down.
_EMBEDDINGS = ("sok_embed.feature_column",)


class GraphTable:
    """The table of own rows in a TF1 graph. Each session has rows of its own.

    Args:
        column: Whose rows.
        dim: The length of a row.
        static: The variable of the static rows.
        name: In TensorFlow's resource manager.
    """

    def __init__(
        self, column: OwnRowsCategorical, dim: int, static: tf.Variable, name: str
    ) -> None:
        self.name = name
        self.dim = dim
        # Handles of the slots of the static rows, once an optimizer has been applied.
        self.slot_sources: Sequence[tf.Tensor] = ()
        self.lookups: list[tf.Tensor] = []  # what they read
        # Kept, since a storage that nobody refers to is closed.
        self.storage = open_storage(column, name)
        attributes = table_attributes(column)
        if self.storage is not None:
            attributes["storage"] = os.fsencode(self.storage.path)
        if column.ev_option.admission is not None:
            config = column.ev_option.admission.get_config()
            attributes["admission"] = config.pop("kind")
            attributes |= {f"admission_{key}": value for key, value in config.items()}
        self._evict = Evictor(column, dim, lambda: static, name)
        with tf.device("/device:CPU:0"):
            self.resource_handle = tf_ops.table_handle(
                name,
                dim,
                initializer="constant",
                initializer_a=0.0,
                initializer_b=0.0,
                **attributes,
            )

    def commit(self, anchor: tf.Tensor, **arguments: Any) -> tf.Tensor:
        """Applies the deposited gradients, and evicts."""
        self.slot_sources = arguments.get("slot_sources", ())
        self._read_slots_first()
        committed = tf_ops.commit(self.resource_handle, anchor, **arguments)
        return self._evict(self.resource_handle, committed)

    def _read_slots_first(self) -> None:
        """Has whatever changes a slot wait for the lookups, which may copy it.

        All optimizers but Adam change slots by the gradient, after the lookups. Adam of
        tf.compat.v1 lets slots decay at once.
        """
        for handle in self.slot_sources:
            for change in handle.consumers():
                initial = change.name == f"{handle.op.name}/Assign"
                if change.type == "AssignVariableOp" and not initial:
                    change._add_control_inputs([rows.op for rows in self.lookups])

    def step_count(self) -> tf.Tensor:
        """The number of commits that found gradients, an int64 scalar."""
        return tf_ops.steps(self.resource_handle)


@dataclass
class GraphEmbedding:
    """The rows of a column in a graph.

    Attributes:
        column: That made them.
        static: The variable of the static rows, `[buckets, dim]`.
        anchor: The variable that stands for the own rows. `None`: there are none.
        table: Of the own rows, or `None`.
        rows: Writes own rows to checkpoints, or `None`.
    """

    column: Any
    static: tf.Variable
    anchor: tf.Variable | None = None
    table: GraphTable | None = None
    rows: RowsSaveable | None = None

    @property
    def trains_rows_only(self) -> bool:
        """Whether own rows are trained, and static rows are only what they start from."""
        adaptive = own_rows_column_in(self.column)
        return adaptive is not None and not adaptive.shares_static_rows

    @property
    def name(self) -> str:
        """The variable scope of the rows."""
        return str(self.static.op.name.rpartition("/")[0])

    def lookup(
        self, keys: tf.Tensor, buckets: tf.Tensor | None, mask: tf.Tensor, trainable: bool
    ) -> tf.Tensor:
        """The rows of keys `[n]`, float32 `[n, dim]`."""
        assert self.table is not None and self.anchor is not None
        adaptive = own_rows_column_in(self.column)
        assert adaptive is not None
        trainable = trainable and self.anchor.trainable
        rows = tf_ops.adaptive_mask_gather(
            self.table.resource_handle,
            self.static,
            keys,
            buckets,
            mask,
            dim=self.table.dim,
            make_rows=trainable,
            anchor=tf.convert_to_tensor(self.anchor) if trainable else None,
            copy_slots=adaptive.slots == "copy",
            absent_value=adaptive.absent_value,
        )
        self.table.lookups.append(rows)
        return rows


class GraphRows:
    """The rows of a column, as one input layer reads them: it may train them or not."""

    def __init__(self, column: Any, weight_collections: Any, trainable: Any) -> None:
        self._embedding = embedding(column, weight_collections, trainable)
        self._trainable = _trains(column, trainable)
        self.static = self._embedding.static

    def gather(self, keys: tf.Tensor, buckets: tf.Tensor | None, mask: tf.Tensor) -> tf.Tensor:
        """The rows of keys `[n]`, float32 `[n, dim]`."""
        return self._embedding.lookup(keys, buckets, mask, self._trainable)


def embedding(column: Any, weight_collections: Any, trainable: Any) -> GraphEmbedding:
    """The rows of a column in the variable scope of the graph that is being built.

    Raises:
        ValueError: Outside of a graph and inside of a branch or a loop, with several workers, and
            for rows that another column with other options has made.
    """
    check_graph(f"Column '{column.name}'", "input_layer", "sok_embed.feature_column.DenseFeatures")
    _check_regularizer(column)
    shared = column.shared_name
    made = tf.compat.v1.get_collection(shared) if shared is not None else []
    static = made[0] if made else _static_rows(column, weight_collections, trainable)
    if shared is not None and not made:
        tf.compat.v1.add_to_collection(shared, static)
    for other in _embeddings():
        if other.static is static:
            _check_same(column, other.column)
            return other
    found = GraphEmbedding(column, static)
    tf.compat.v1.add_to_collection(_EMBEDDINGS, found)
    if column.ckpt_to_load_from is not None:
        tf.compat.v1.train.init_from_checkpoint(
            column.ckpt_to_load_from, {column.tensor_name_in_ckpt: static}
        )
    adaptive = own_rows_column_in(column)
    if adaptive is not None:
        found.table = GraphTable(adaptive, column.dimension, static, static.op.name)
        trains = _trains(column, trainable) if found.trains_rows_only else static.trainable
        with _no_partitioner():
            found.anchor = tf.compat.v1.get_variable(
                "anchor",
                shape=(tf_ops.ANCHOR_SIZE,),
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=trains,
                collections=_collections(weight_collections),
                use_resource=True,
                constraint=Commit(found.table, None, static=static),
            )
        found.rows = RowsSaveable(found.table)
        tf.compat.v1.add_to_collection(_Keys.SAVEABLE_OBJECTS, found.rows)
    return found


def check_graph(what: str, call: str, instead: str) -> None:
    """Raises ValueError unless rows can be looked up in the graph that is being built.

    Args:
        what: That wants to look rows up, as it begins a message.
        call: What looks them up.
        instead: What to use outside of TF1 graphs and with several workers.
    """
    graph = tf.compat.v1.get_default_graph()
    if graph._get_control_flow_context() is not None or isinstance(graph, _BRANCHES):
        raise ValueError(
            f"{what}: expected {call} outside of tf.cond and tf.while_loop. Received: a branch or "
            "the body of a loop. Call it before, and use its output there."
        )
    if tf.compat.v1.executing_eagerly_outside_functions():
        raise ValueError(
            f"{what}: expected to be in a TF1 graph. Received: eager execution. Use {instead}."
        )
    if communicators.size() > 1:
        raise ValueError(
            f"{what}: expected one worker in a TF1 graph. Received: {communicators.size()}. Use "
            f"{instead}."
        )


def own_rows(
    name: str, session: tf.compat.v1.Session | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The own rows of an embedding column in a session.

    Example:
    >>> from sok_embed import feature_column as fc
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     column = fc.categorical_column_with_adaptive_embedding("item", 100, tf.int64)
    ...     output = fc.input_layer({"item": tf.constant([[7], [8]], tf.int64)},
    ...                             [fc.embedding_column(column, 2)],
    ...                             adaptive_mask_tensors={"item": tf.constant([1, 0])})
    ...     _ = session.run(tf.compat.v1.global_variables_initializer())
    ...     _ = session.run(output)
    ...     own_rows("item_embedding")[0]
    array([7])

    Args:
        name: Of the column, of what shared columns share, of an embedding variable, or of the
            variable of the static rows, with which columns of one name in several layers are told
            apart.
        session: `None`: the default session.

    Returns:
        Keys int64 `[n]` and rows float32 `[n, dim]`, in no order.

    Raises:
        ValueError: If there is no such column in the session's graph, or several, or no session.
    """
    session = session or tf.compat.v1.get_default_session()
    if session is None:
        raise ValueError("Expected a session, or a default one. Received: neither.")
    with session.graph.as_default():
        made = [embedding for embedding in _embeddings() if embedding.rows is not None]
    found = [
        embedding
        for embedding in made
        if name
        in (
            embedding.static.op.name,
            embedding.name,
            embedding.column.name,
            embedding.column.state_name,
        )
    ]
    if len(found) != 1:
        names = ", ".join(embedding.static.op.name for embedding in found or made)
        raise ValueError(
            f"Expected the name of one adaptive embedding: {names or 'there is none'}. Received: "
            f"'{name}', which fits {len(found)}."
        )
    assert found[0].rows is not None
    contents = found[0].rows.contents
    keys, rows = session.run((contents.keys, contents.embeddings))
    return keys, rows


def _embeddings() -> list[GraphEmbedding]:
    return list(tf.compat.v1.get_collection(_EMBEDDINGS))


def _static_rows(column: Any, weight_collections: Any, trainable: Any) -> tf.Variable:
    """As TensorFlow makes the weights of such a column, but in one piece."""
    # The op that reads both kinds of rows runs where the table is.
    with _no_partitioner(), tf.device("/device:CPU:0"):
        return tf.compat.v1.get_variable(
            "embedding_weights",
            shape=(column.static_rows, column.dimension),
            dtype=tf.float32,
            initializer=column.initializer,
            trainable=_trains(column, trainable) and column.trains_static_rows,
            collections=_collections(weight_collections),
            use_resource=True,
        )


def _trains(column: Any, trainable: Any) -> bool:
    return bool(column.trainable and (trainable is None or trainable))


def _collections(weight_collections: Any) -> list[str] | None:
    if not weight_collections:
        return None
    return list(dict.fromkeys([*weight_collections, _Keys.GLOBAL_VARIABLES]))


def _check_regularizer(column: Any) -> None:
    """Raises ValueError for a regularizer that would see what rows start from, and not the rows."""
    adaptive = own_rows_column_in(column)
    if adaptive is None or adaptive.shares_static_rows:
        return
    regularizer = tf.compat.v1.get_variable_scope().regularizer
    if regularizer not in (None, tf.compat.v1.no_regularizer):
        raise ValueError(
            f"Column '{column.name}': expected no regularizer of a variable scope around it: rows "
            f"of a table have none. Received: {regularizer!r}. Make the scope with "
            "regularizer=tf.compat.v1.no_regularizer, and use an optimizer with weight decay, or "
            "tf.nn.l2_loss of the embeddings that a step looks up."
        )


@contextmanager
def _no_partitioner() -> Iterator[None]:
    scope = tf.compat.v1.get_variable_scope()
    partitioner = scope.partitioner
    scope.set_partitioner(None)
    try:
        yield
    finally:
        scope.set_partitioner(partitioner)


def _check_same(column: Any, other: Any) -> None:
    """Raises if columns that have rows in common want different ones."""
    first, second = own_rows_column_in(column), own_rows_column_in(other)
    if first is None or second is None:
        same = first is second
    else:
        same = first._replace(key=second.key) == second
    if not same or column.dimension != other.dimension:
        raise ValueError(
            f"Column '{column.name}': expected the options of '{other.name}', whose rows it "
            f"shares: {second}. Received: {first}."
        )
