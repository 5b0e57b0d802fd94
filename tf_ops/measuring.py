"""Finds the deposits of a graph that need the norm of their gradients.

A norm costs a pass over the gradients. In nearly all steps it is not read: the gradient of the
anchor goes only to a commit, and into the optimizer's slots of the anchor. This module detects that
once a function is traced, and marks its deposits, which then compute no norm. If there is any other
reader of the gradient, or an op that cannot be followed, such as a branch or a loop, the deposits
stay unmarked and compute the norm.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import func_graph, ops

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
# These ops are linear in the gradient; the last two only if the gradient is just one of their
# operands.
_LINEAR = ("Identity", "IdentityN", "AddN", "AddV2", "Mul", "RealDiv")
_CHECKS = ("CheckNumerics", "CheckNumericsV2", "Print", "Assert")
_LABEL = "_sok_embed_deposits"


class _Deposits:
    """Collects the deposits of a graph during tracing, and the allowed uses of their gradients."""

    def __init__(self) -> None:
        self.made: list[tf.Operation] = []
        self._slots: set[int] = set()  # ids of handles
        self._unused: set[tf.Operation] = set()
        self._last: tf.Operation | None = None  # the last update

    def may_reach(self, last: tf.Operation, change: Any, variables: list[Any]) -> None:
        self._slots.update(id(variable.value.handle) for variable in variables)
        self._last = last
        if isinstance(change, tf.Tensor) and hasattr(change, "op"):
            self._unused.add(change.op)

    def mark_unread(self, graph: tf.Graph) -> None:
        """Turns off the measuring of norms in deposits whose norm is not read."""
        if self._last is None:
            return
        # A function returns copies of its results, which are made last. So an older copy that is
        # not used is not a result; Keras makes such copies.
        operations = graph.get_operations()
        older = operations[: operations.index(self._last) + 1]
        unused = self._unused | {each for each in older if each.type in ("Identity", "IdentityN")}
        slots = {id(inside) for outside, inside in graph.captures if id(outside) in self._slots}
        for operation in self.made:
            if _is_unread(operation, slots, unused):
                operation._set_attr("measures", attr_value_pb2.AttrValue(b=False))


def _is_unread(deposit: tf.Operation, slots: set[int], unused: set[tf.Operation]) -> bool:
    """Returns whether only commits, which get a multiple of the gradient, and slots use it."""
    reached = {id(deposit.outputs[0])}
    waiting = deque(deposit.outputs)
    commits = []
    while waiting:
        tensor = waiting.popleft()
        consumers = tensor.consumers()
        if not consumers and tensor.op not in unused:
            return False
        for consumer in consumers:
            if consumer.type == "SokEmbed>Commit":
                commits.append(consumer)
            elif consumer.type in _ASSIGNMENTS:
                if id(consumer.inputs[0]) not in slots:
                    return False
            elif _reads(consumer):
                return False
            else:
                new = [output for output in _made_of(consumer, tensor) if id(output) not in reached]
                reached.update(map(id, new))
                waiting.extend(new)
    return all(_is_multiple(commit, reached) for commit in commits)


def _made_of(consumer: tf.Operation, tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns the outputs of an op that depend on an input."""
    outputs = list(consumer.outputs)
    if consumer.type != "IdentityN":
        return outputs
    pairs = zip(consumer.inputs, outputs, strict=True)
    return [output for given, output in pairs if given is tensor]


def _reads(operation: tf.Operation) -> bool:
    """Returns whether an op may have side effects or runs a function (a branch, a loop)."""
    if operation.op_def.is_stateful or not operation.outputs or operation.type in _CHECKS:
        return True
    return any(
        attribute.HasField("func") or attribute.list.func
        for attribute in operation.node_def.attr.values()
    )


def _is_multiple(commit: tf.Operation, reached: set[int]) -> bool:
    """Returns whether a commit is given only sums and multiples of deposits' gradients."""
    waiting = [tensor for tensor in commit.inputs if id(tensor) in reached]
    seen: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen or tensor.op.type == "SokEmbed>Deposit":
            continue
        seen.add(id(tensor))
        operands = [operand for operand in _operands(tensor) if id(operand) in reached]
        if tensor.op.type not in _LINEAR:
            return False
        if tensor.op.type in _LINEAR[-2:] and len(operands) > 1:
            return False
        waiting.extend(operands)
    return True


def _operands(tensor: tf.Tensor) -> list[tf.Tensor]:
    inputs = list(tensor.op.inputs)
    return [inputs[tensor.value_index]] if tensor.op.type == "IdentityN" else inputs


def note_deposit(anchor_gradient: tf.Tensor) -> None:
    """Notes the deposit of this gradient, to be checked once its graph is traced."""
    graph = tf.compat.v1.get_default_graph()
    if not isinstance(graph, func_graph.FuncGraph) or tf.distribute.has_strategy():
        return
    if not graph._add_control_dependencies:
        return  # such a graph returns its results without copies
    deposits = getattr(graph, _LABEL, None)
    if deposits is None:
        # A scope that is entered again ends before the graph does.
        if sum(entered is graph for entered in ops._default_graph_stack.stack) != 1:
            return
        deposits = _Deposits()
        setattr(graph, _LABEL, deposits)
        graph._add_scope_exit_callback(lambda: deposits.mark_unread(graph))
    deposits.made.append(anchor_gradient.op)


def note_update(commit: tf.Tensor, change: Any, variables: list[Any]) -> None:
    """Notes the ops of an anchor's running update that may use its gradient without reading it.

    Args:
        commit: The tensor that `commit` has returned.
        change: The change that the anchor would get, if it were updated.
        variables: The slots of variables in Keras' optimizer.
    """
    deposits = None if tf.executing_eagerly() else getattr(commit.graph, _LABEL, None)
    if deposits is not None:
        deposits.may_reach(commit.op, change, variables)
