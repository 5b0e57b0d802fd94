"""The rows of embedding columns in a TF1 graph: variables of the graph, and a table beside them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

from sok_embed import communicators, tf_ops
from sok_embed.arguments import shown
from sok_embed.feature_column.categorical import OwnRowsCategorical, own_rows_column_in
from sok_embed.feature_column.column_lookup import EmbeddingRows, check_same_rows
from sok_embed.feature_column.own_table import NOTHING, Evictor, open_storage, table_options
from sok_embed.feature_column.saveable import RowsSaveable
from sok_embed.kv.table_spec import TableSpec
from sok_embed.lookups.lookup import LookupContext
from sok_embed.tables.gpus import refuse_in_graph

_Keys = tf.compat.v1.GraphKeys
_BRANCHES = (
    control_flow.CondBranchFuncGraph,
    control_flow.WhileBodyFuncGraph,
    control_flow.WhileCondFuncGraph,
)

# The key of a graph's collection of embeddings. It is a tuple, since tf.train.Saver exports
# collections whose keys are strings.
_EMBEDDINGS = ("sok_embed.feature_column",)


class GraphTable:
    """The table of own rows in a TF1 graph. Each session has rows of its own."""

    # TF1 graphs are for one worker.
    owners = 1
    owner = 0
    counts_keys = False  # lookups name every key of a batch

    def __init__(
        self, column: OwnRowsCategorical, dim: int, static: tf.Variable, name: str
    ) -> None:
        self.name = name
        self.dim = dim
        refuse_in_graph(f"Table '{name}'", column.ev_option.device)
        # Handles of the slots of the static rows, once an optimizer has been applied.
        self.slot_sources: Sequence[tf.Tensor] = ()
        self.lookups: list[tf.Tensor] = []  # the outputs of lookups
        # The reference keeps the storage open.
        self.storage = open_storage(column, name)
        spec = TableSpec(
            dim=dim,
            initializer=NOTHING.bounds,
            storage=self.storage,
            name=name,
            **table_options(column),
        )
        # Another process may import the graph with a storage of its own.
        attributes = {**spec.attributes(), "storage_id": ""}
        self._evict = Evictor(column, dim, lambda: static, name)
        self.resource_handle = tf_ops.table_handle(name, dim, **attributes)

    def commit(
        self, anchor: tf.Tensor, steps: tf_ops.RuleSteps, redemption: tf_ops.Redemption
    ) -> tf.Tensor:
        """Applies the deposited gradients, and evicts."""
        (step,) = steps
        assert step is not None
        self.slot_sources = step.slot_sources
        self._read_slots_first()
        committed = tf_ops.commit(self.resource_handle, anchor, steps, redemption)
        return self._evict(self.resource_handle, committed)

    def _read_slots_first(self) -> None:
        """Makes ops that change a slot wait for the lookups, which may copy it.

        All optimizers but Adam change slots after they have the gradient, and so after the lookups.
        Adam of tf.compat.v1 makes slots decay at once.
        """
        for handle in self.slot_sources:
            for change in handle.consumers():
                initial = change.name == f"{handle.op.name}/Assign"
                if change.type == "AssignVariableOp" and not initial:
                    change._add_control_inputs([rows.op for rows in self.lookups])

    def step_count(self) -> tf.Tensor:
        """Returns the number of commits that found gradients, an int64 scalar."""
        return tf_ops.steps(self.resource_handle)


class GraphEmbedding(EmbeddingRows):
    """The rows of a column in a graph.

    Args:
        static: The variable of the static rows, `[buckets, dim]`.

    Attributes:
        rows: Writes own rows to checkpoints, or `None`.
    """

    table: GraphTable | None = None
    rows: RowsSaveable | None = None

    def __init__(self, column: Any, static: tf.Variable) -> None:
        super().__init__(column, lambda: static)

    @property
    def name(self) -> str:
        """The variable scope of the rows."""
        return str(self.static.op.name.rpartition("/")[0])

    def _read(self, context: LookupContext, *asked: Any) -> tf_ops.Lookup:
        assert self.table is not None
        found = super()._read(context, *asked)
        self.table.lookups.append(found.embeddings)
        return found


def embedding(column: Any, weight_collections: Any, trainable: Any) -> GraphEmbedding:
    """Returns the rows of a column in the variable scope of the graph that is being built.

    Raises:
        ValueError: Outside of a graph and inside of a branch or a loop, with several workers, and
            for rows that another column with other options has made.
    """
    what = f"Column '{column.name}'"
    check_graph(what, "input_layer", "sok_embed.feature_column.DenseFeatures")
    categorical = own_rows_column_in(column)
    if categorical is not None and not categorical.shares_static_rows:
        check_regularizer(what, "Make the scope with regularizer=tf.compat.v1.no_regularizer")
    shared = column.shared_name
    made = tf.compat.v1.get_collection(shared) if shared is not None else []
    static = made[0] if made else _static_rows(column, weight_collections, trainable)
    if shared is not None and not made:
        tf.compat.v1.add_to_collection(shared, static)
    for other in _embeddings():
        if other.static is static:
            check_same_rows(column, other.column)
            return other
    found = GraphEmbedding(column, static)
    tf.compat.v1.add_to_collection(_EMBEDDINGS, found)
    if column.ckpt_to_load_from is not None:
        tf.compat.v1.train.init_from_checkpoint(
            column.ckpt_to_load_from, {column.tensor_name_in_ckpt: static}
        )
    if categorical is not None:
        table = GraphTable(categorical, column.dimension, static, static.op.name)
        trained = static.trainable if categorical.shares_static_rows else trains(column, trainable)
        make = functools.partial(
            tf.compat.v1.get_variable,
            "anchor",
            trainable=trained,
            collections=_collections(weight_collections),
            use_resource=True,
        )
        # Optimizers run the step of the rows on the device of the anchor.
        with _no_partitioner(), tf.device("/device:CPU:0"):
            found.add_table(table, what, make, static)
        found.rows = RowsSaveable(table)
        tf.compat.v1.add_to_collection(_Keys.SAVEABLE_OBJECTS, found.rows)
    return found


def check_graph(what: str, call: str, instead: str) -> None:
    """Raises ValueError unless rows can be looked up in the graph that is being built."""
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
    """Returns the own rows of an embedding column in a session.

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
        name: The name of the column, of the rows that shared columns share, of an embedding
            variable, or of the variable of the static rows, which differs between columns of one
            name in several layers.
        session: `None`: the default session.

    Returns:
        Keys int64 `[n]` and rows float32 `[n, dim]`, in no order.

    Raises:
        ValueError: If there is no such column in the session's graph, or several, or no session.
    """
    session = session or tf.compat.v1.get_default_session()
    if session is None:
        raise ValueError(
            "Expected a session, or a default session. Received: no session, and no default "
            "session."
        )
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
    """Makes the weights of a column as TensorFlow does, but without partitions."""
    # The op that reads both kinds of rows runs where the table is.
    with _no_partitioner(), tf.device("/device:CPU:0"):
        return tf.compat.v1.get_variable(
            "embedding_weights",
            shape=(column.static_rows, column.dimension),
            dtype=tf.float32,
            initializer=column.initializer,
            trainable=trains(column, trainable) and column.trains_static_rows,
            collections=_collections(weight_collections),
            use_resource=True,
        )


def trains(column: Any, trainable: Any) -> bool:
    """Returns true if a call trains a column; `trainable` is an input layer's, or `None`."""
    return bool(column.trainable and (trainable is None or trainable))


def _collections(weight_collections: Any) -> list[str] | None:
    if not weight_collections:
        return None
    return list(dict.fromkeys([*weight_collections, _Keys.GLOBAL_VARIABLES]))


def check_regularizer(what: str, remedy: str, given: Any = None) -> None:
    """Raises ValueError for a regularizer, which would see the start of rows and not the rows.

    Without a given regularizer, the one of the variable scope counts.
    """
    regularizer, place, origin = given, "", ""
    if given is None:
        regularizer = tf.compat.v1.get_variable_scope().regularizer
        place, origin = " of a variable scope around it", " from a scope"
    if regularizer in (None, tf.compat.v1.no_regularizer):
        return
    raise ValueError(
        f"{what}: expected no regularizer{place}, which cannot see the rows of a table. Received: "
        f"{shown(regularizer)}{origin}. {remedy if given is None else 'Leave it out'}, and use an "
        "optimizer with weight decay, or tf.nn.l2_loss of the embeddings that a step looks up."
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
