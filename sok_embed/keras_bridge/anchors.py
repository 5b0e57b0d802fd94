"""Handles what Keras and TensorFlow do with anchors: updates, saves, gradient functions.

Keras calls the constraint of a variable with the variable's value, and never with its gradient. But
every Keras optimizer changes a variable by calling one of the variable's methods, after it has
unscaled, accumulated and clipped the gradient and summed it over replicas. This module replaces
these methods of an anchor: they look at the call stack to find the optimizer and the gradient.

With `gradient_accumulation_steps` an optimizer of Keras adds the gradients of some calls up in
variables, which are saved with it. The sum of an anchor names gradients that wait in this process,
and would name nothing, or others, in another one. So zeros are saved in its place: a loaded model
goes on within its window, and rows get the gradients of the calls that follow.

In a graph TensorFlow keeps the gradient function of each call of a `tf.custom_gradient` until the
process ends, and the function refers to the graph. Keras sums gradients over replicas by such a
call. They are forgotten when the table's commit goes.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from sok_embed.keras_bridge import callers

_METHODS = ("assign", "assign_add", "assign_sub")
_WATCHED = "_sok_embed_is_watched"
_LEFT_OUT = "_sok_embed_is_left_out"
_NOTED = "_sok_embed_noted_gradients"


class AnchorConstraint(keras.constraints.Constraint):
    """Base of the constraint of an anchor. A variable with such a constraint is an anchor."""

    def on_update(self, update: Update) -> None:
        """Is called instead of each update that a Keras optimizer would make to the anchor.

        With gradient accumulation, it is called only in the step that applies the accumulated
        gradients. Gradients are summed over replicas by then.
        """
        raise NotImplementedError

    def on_assignment(self, value: Any) -> Any:
        """Is called with the argument of every other assignment.

        Returns the value to assign, or raises if the assignment is not allowed.
        """
        raise NotImplementedError


def is_anchor(variable: Any) -> bool:
    """Returns whether a variable stands for a table."""
    return isinstance(getattr(variable, "constraint", None), AnchorConstraint)


class Update(NamedTuple):
    """A change of a variable by an optimizer.

    Attributes:
        optimizer: The Keras optimizer that computes the update; within a wrapper, the inner one.
        gradient: The gradient as the optimizer's update step receives it.
        learning_rate: The learning rate that the update step receives.
        variable: The variable that the update would change.
        change: The change of the variable, or its new value.
    """

    optimizer: Any
    gradient: tf.Tensor
    learning_rate: Any
    variable: tf.Variable
    change: tf.Tensor


def watched(anchor: Any) -> tf.Tensor:
    """Returns the value of an anchor, whose updates reach its constraint from then on.

    Updates by Keras optimizers are reported to `constraint.on_update` instead of being made. Other
    assignments are made if `constraint.on_assignment` allows them. Optimizers of
    `tf.compat.v1.train` call the constraint of the variables of a TF1 graph by themselves.

    Args:
        anchor: A variable of Keras, which may have a copy for each replica: the first commits for
            all. The constraint is set on the `tf.Variable` too, since optimizers of
            `tf.compat.v1.train` call it. Or a variable of a TF1 graph.
    """
    # In a stateless scope of Keras a variable has no value yet.
    variable = anchor._value if isinstance(anchor, keras.Variable) else None
    if variable is not None:
        is_distributed = isinstance(variable, tf.distribute.DistributedValues)
        parts = tuple(variable.values) if is_distributed else (variable,)
        if not hasattr(parts[0], _WATCHED):
            for part in parts:
                _watch(part, anchor.constraint, reports=part is parts[0])
    return tf.convert_to_tensor(anchor)


def _watch(part: Any, constraint: AnchorConstraint, reports: bool) -> None:
    """Replaces the assignments of an anchor, or of its copy for a replica."""
    for name in _METHODS:
        setattr(part, name, _intercepted(part, getattr(part, name), constraint, reports))
    setattr(part, _WATCHED, True)
    part._constraint = constraint if reports else tf.zeros_like


def _intercepted(
    part: Any, method: Callable[..., Any], constraint: AnchorConstraint, reports: bool
) -> Callable[..., Any]:
    """Returns an assignment that leaves the anchor as it is, and reports Keras' updates."""

    def changed(value: Any, *args: Any, **kwargs: Any) -> Any:
        update = callers.keras_update()
        if update is None:
            return method(constraint.on_assignment(value), *args, **kwargs)
        if reports:
            constraint.on_update(Update(*update, part, value))
        return part

    return changed


def leave_out_of_files(optimizer: keras.optimizers.Optimizer, anchor: Any) -> None:
    """Has zeros saved in place of what an optimizer accumulates of an anchor.

    Warns:
        UserWarning: At each save amid a window.
    """
    accumulator = optimizer._accumulated_gradients[optimizer._get_variable_index(anchor)]
    native = accumulator.value
    if hasattr(native, _LEFT_OUT):
        return
    setattr(native, _LEFT_OUT, True)
    shape, dtype = tuple(native.shape), native.dtype
    # Neither the variable nor the optimizer is kept alive by what it holds itself.
    variable, owner = weakref.ref(native), weakref.ref(optimizer)

    def for_keras() -> Any:
        _warn_amid_window(owner())
        return np.zeros(shape, dtype.as_numpy_dtype)

    def for_checkpoints() -> dict[str, tf.Tensor]:
        if tf.executing_eagerly():
            _warn_amid_window(owner())
        held: Any = variable()
        return {name: tf.zeros(shape, dtype) for name in type(held)._serialize_to_tensors(held)}

    accumulator.numpy = for_keras
    if not isinstance(native, tf.distribute.DistributedValues):
        native._serialize_to_tensors = for_checkpoints


def _warn_amid_window(optimizer: Any) -> None:
    """Warns if the optimizer, which may be gone, has accumulated gradients."""
    calls = 0 if optimizer is None else optimizer.gradient_accumulation_steps
    waiting = int(tf.convert_to_tensor(optimizer._iterations)) % calls if calls else 0
    if waiting:
        warnings.warn(
            f"Expected to save after the call that applies what '{optimizer.name}' accumulates of "
            f"{calls} calls. Received: a save after {waiting} of them. Their gradients of rows "
            "stay behind, and those of dense weights are saved: a loaded model goes on with the "
            "call that follows, and its rows miss these gradients in that step. Save at the end of "
            "a window to lose nothing, as sok_embed.callbacks.BackupAndRestore does.",
            stacklevel=4,
        )


def forget_with(owner: Any, tensor: tf.Tensor) -> None:
    """Forgets the gradient functions of a tensor's graph when an object is collected.

    Only ops of that graph can ask for them, and none of its functions can be run without the
    object.

    Args:
        owner: An object without which the graph cannot be run, such as the commit of a table.
        tensor: A tensor of the graph, made after the calls whose functions are to be forgotten. An
            eager tensor has none.
    """
    graph = None if tf.executing_eagerly() else tensor.graph
    while graph is not None:
        noted = getattr(graph, _NOTED, None)
        if noted is None:
            noted = []  # names under which TensorFlow keeps gradient functions
            for operation in graph.get_operations():
                if operation.type == "IdentityN":
                    name = operation.node_def.attr["_gradient_op_type"].s.decode()
                    if name.startswith("CustomGradient-"):
                        noted.append(name)
            setattr(graph, _NOTED, noted)
        if noted:
            weakref.finalize(owner, _forget, noted).atexit = False
        graph = getattr(graph, "outer_graph", None)


def _forget(names: list[str]) -> None:
    # The registry has no public way to remove an entry. In a release of TensorFlow that keeps
    # entries elsewhere nothing is forgotten.
    registry = getattr(ops.gradient_registry, "_registry", {})
    for name in names:
        registry.pop(name, None)
