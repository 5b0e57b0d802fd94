"""Reports updates by Keras optimizers to the constraint of an anchor.

Keras calls the constraint of a variable with the variable's value, and never with its gradient. But
every Keras optimizer changes a variable by calling one of the variable's methods, after it has
unscaled, accumulated and clipped the gradient and summed it over replicas. This module replaces
these methods of an anchor: they look at the call stack to find the optimizer and the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from sok_embed.keras_bridge import callers

_METHODS = ("assign", "assign_add", "assign_sub")
_MARK = "_sok_embed_is_watched"


class AnchorConstraint(keras.constraints.Constraint):
    """Base of the constraint of an anchor. A variable with such a constraint is an anchor."""

    def on_update(self, update: Update) -> None:
        """Is called instead of each update that a Keras optimizer would make to the anchor.

        With gradient accumulation, it is called only in the step that applies the accumulated
        gradients. Gradients are summed over replicas by then.
        """
        raise NotImplementedError

    def on_assignment(self, value: Any) -> Any:
        """Is called with the argument of every other assignment, but not for weight decay.

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


def watch(variable: tf.Variable, constraint: AnchorConstraint) -> None:
    """Reports updates of an anchor by Keras optimizers to its constraint instead of making them.

    Other assignments are made if `constraint.on_assignment` allows them. Watching an anchor again
    changes nothing.

    Args:
        variable: A `tf.Variable`, or a distributed one with a copy for each replica. The constraint
            is set on it too, since optimizers of `tf.compat.v1.train` call it. If there are several
            copies, the first commits for all.
        constraint: The anchor's constraint.
    """
    parts = _parts(variable)
    if hasattr(parts[0], _MARK):
        return
    for part in parts:
        for name in _METHODS:
            setattr(
                part, name, _intercepted(part, getattr(part, name), constraint, part is parts[0])
            )
        setattr(part, _MARK, True)
        part._constraint = constraint if part is parts[0] else tf.zeros_like


def _parts(variable: Any) -> tuple[Any, ...]:
    if isinstance(variable, tf.distribute.DistributedValues):
        return tuple(variable.values)
    return (variable,)


def _intercepted(
    part: Any, method: Callable[..., Any], constraint: AnchorConstraint, reports: bool
) -> Callable[..., Any]:
    """Returns an assignment that leaves the anchor as it is, and reports Keras' updates."""

    def changed(value: Any, *args: Any, **kwargs: Any) -> Any:
        update = callers.keras_update()
        if update is None:
            # Weight decay subtracts a share of the anchor, which is 0.
            allowed = value if callers.decaying_weights() else constraint.on_assignment(value)
            return method(allowed, *args, **kwargs)
        if reports:
            constraint.on_update(Update(*update, part, value))
        return part

    return changed
