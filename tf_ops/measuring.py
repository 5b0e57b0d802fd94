"""Finds the deposits of a graph that need the norm of their gradients.

A norm costs a pass over the gradients. In nearly all steps it is not read: the gradient of the
anchor goes only to a commit, and into the optimizer's slots of the anchor. This module detects that
once a function is traced, and marks its deposits, which then compute no norm. If there is any other
reader of the gradient, or an op that cannot be followed, such as a branch or a loop, the deposits
stay unmarked and compute the norm.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import func_graph, ops

# These ops are linear in the gradient; the last two only if the gradient is just one of their
# operands.
_LINEAR = ("Identity", "IdentityN", "AddN", "AddV2", "Mul", "RealDiv")
_CHECKS = ("CheckNumerics", "CheckNumericsV2", "Print", "Assert")
_LABEL = "_sok_embed_deposits"


@dataclass
class _Deposits:
    """The deposits of a graph that is traced, and the allowed uses of their gradients.

    Attributes:
        made: The deposits.
        slots: The ids of handles of variables that may get gradients.
        unused: Ops whose results may stay unused.
        last: The last update.
    """

    made: list[tf.Operation] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)
    unused: set[tf.Operation] = field(default_factory=set)
    last: tf.Operation | None = None


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
        if ops._default_graph_stack.stack.count(graph) != 1:
            return
        deposits = _Deposits()
        setattr(graph, _LABEL, deposits)
        graph._add_scope_exit_callback(functools.partial(_mark_unread, deposits, graph))
    deposits.made.append(anchor_gradient.op)


def note_update(commit: tf.Tensor, change: Any, variables: list[Any]) -> None:
    """Notes the ops of an anchor's running update that may use its gradient without reading it.

    Args:
        commit: The tensor that `commit` has returned.
        change: The change that the anchor would get, if it were updated.
        variables: The slots of variables in Keras' optimizer.
    """
    deposits = None if tf.executing_eagerly() else getattr(commit.graph, _LABEL, None)
    if deposits is None:
        return
    for variable in variables:
        deposits.slots.add(id(variable.value.handle))
    deposits.last = commit.op
    if isinstance(change, tf.Tensor) and hasattr(change, "op"):
        deposits.unused.add(change.op)


def _mark_unread(deposits: _Deposits, graph: Any) -> None:
    """Turns off the measuring of norms in deposits whose norm is not read."""
    if deposits.last is None:
        return
    # A function returns copies of its results, which are made last. So an older copy that is not
    # used is not a result; Keras makes such copies.
    unused = set(deposits.unused)
    for operation in graph.get_operations():
        if operation.type in ("Identity", "IdentityN"):
            unused.add(operation)
        if operation == deposits.last:
            break
    slots = set()
    for outside, inside in graph.captures:
        if id(outside) in deposits.slots:
            slots.add(id(inside))
    for operation in deposits.made:
        if _is_unread(operation, slots, unused):
            operation._set_attr("measures", attr_value_pb2.AttrValue(b=False))


def _is_unread(deposit: tf.Operation, slots: set[int], unused: set[tf.Operation]) -> bool:
    """Returns whether only commits, which get a multiple of the gradient, and slots use it."""
    waiting, commits = [deposit.outputs[0]], []
    reached = {id(deposit.outputs[0])}
    for tensor in waiting:
        consumers = tensor.consumers()
        if not consumers and tensor.op not in unused:
            return False
        for consumer in consumers:
            if consumer.type == "SokEmbed>Commit":
                commits.append(consumer)
            elif consumer.type.startswith("Assign") and id(consumer.inputs[0]) in slots:
                continue
            elif _reads(consumer):
                return False
            else:
                for number, output in enumerate(consumer.outputs):
                    copies = consumer.type == "IdentityN"
                    depends = not copies or consumer.inputs[number] is tensor
                    if depends and id(output) not in reached:
                        reached.add(id(output))
                        waiting.append(output)
    return _are_multiples(commits, reached)


def _reads(operation: tf.Operation) -> bool:
    """Returns whether an op may have side effects or runs a function (a branch, a loop)."""
    if operation.op_def.is_stateful or not operation.outputs or operation.type in _CHECKS:
        return True
    for attribute in operation.node_def.attr.values():
        if attribute.HasField("func") or attribute.list.func:
            return True
    return False


def _are_multiples(commits: list[tf.Operation], reached: set[int]) -> bool:
    """Returns whether commits are given only sums and multiples of deposits' gradients."""
    waiting = [tensor for commit in commits for tensor in commit.inputs if id(tensor) in reached]
    seen: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        operation = tensor.op
        if id(tensor) in seen or operation.type == "SokEmbed>Deposit":
            continue
        seen.add(id(tensor))
        if operation.type not in _LINEAR:
            return False
        operands = list(operation.inputs)
        if operation.type == "IdentityN":
            operands = [operands[tensor.value_index]]
        before = len(waiting)
        waiting += [operand for operand in operands if id(operand) in reached]
        if operation.type in _LINEAR[-2:] and len(waiting) > before + 1:
            return False
    return True
