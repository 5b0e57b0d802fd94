"""Tells an anchor what a Keras optimizer makes of its gradient.

Keras hands the code of a variable its value only, never its gradient. But whichever optimizer it
is, once it has unscaled, accumulated, clipped and summed a gradient over replicas, it calls a
method of the variable to change it. An anchor's methods look who calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from sok_embed import callers

_METHODS = ("assign", "assign_add", "assign_sub")
_MARK = "_sok_embed_is_watched"


class AnchorConstraint(keras.constraints.Constraint):
    """The base of what makes a variable an anchor: its constraint."""

    def on_update(self, update: Update) -> None:
        """Is called once for each update of the anchor by a Keras optimizer, in the update's place.

        That is inside of the branch that ends a window of accumulated gradients, and after sums
        over replicas.
        """
        raise NotImplementedError

    def on_assignment(self, value: Any) -> Any:
        """Is called with what else the anchor is changed by, or set to. Returns that."""
        raise NotImplementedError


def is_anchor(variable: Any) -> bool:
    """Returns whether a variable stands for a table."""
    return isinstance(getattr(variable, "constraint", None), AnchorConstraint)


class Update(NamedTuple):
    """What an optimizer changes a variable by.

    Attributes:
        optimizer: The Keras optimizer whose formula it is.
        gradient: What the formula is given.
        learning_rate: As the formula is given it.
        variable: That it is to change.
        change: What Keras would change it by, or set it to.
    """

    optimizer: Any
    gradient: tf.Tensor
    learning_rate: Any
    variable: tf.Variable
    change: tf.Tensor


def watch(variable: tf.Variable, constraint: AnchorConstraint) -> None:
    """Has updates of an anchor by Keras optimizers reported to its constraint, not made.

    Other assignments are made as ever, if they are allowed. Watching it again changes nothing.

    Args:
        variable: A native variable, or one with a copy for each replica. Optimizers of
            `tf.compat.v1.train`, which are given native ones, call the constraint of them.
        constraint: That of the anchor.
    """
    parts = _parts(variable)
    if hasattr(parts[0], _MARK):
        return
    for part in parts:
        for name in _METHODS:
            setattr(part, name, _told(part, getattr(part, name), constraint, part is parts[0]))
        setattr(part, _MARK, True)
    if not isinstance(variable, tf.distribute.DistributedValues):
        variable._constraint = constraint


def _parts(variable: Any) -> tuple[Any, ...]:
    if isinstance(variable, tf.distribute.DistributedValues):
        return tuple(variable.values)
    return (variable,)


def _told(
    part: Any, method: Callable[..., Any], constraint: AnchorConstraint, tells: bool
) -> Callable[..., Any]:
    def changed(value: Any, *args: Any, **kwargs: Any) -> Any:
        update = callers.keras_update()
        if update is None:
            # What Keras takes off is a share of the variable, which is 0.
            allowed = value if callers.decaying_weights() else constraint.on_assignment(value)
            return method(allowed, *args, **kwargs)
        if tells:
            constraint.on_update(Update(*update, part, value))
        return part

    return changed
