"""What a Keras optimizer makes of the gradient of an anchor.

Keras hands the code of a variable its value only, never its gradient. But whichever optimizer it
is, once it has unscaled, accumulated, clipped and summed a gradient over replicas, it calls a
method of the variable to change it. An anchor's methods look who calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

_METHODS = ("assign", "assign_add", "assign_sub")
_MARK = "_sok_embed_is_watched"


class AnchorConstraint(keras.constraints.Constraint):
    """The base of what makes a variable an anchor: its constraint."""


def is_anchor(variable: Any) -> bool:
    """Whether a variable stands for a table."""
    return isinstance(getattr(variable, "constraint", None), AnchorConstraint)


class Update(NamedTuple):
    """What an optimizer changes a variable by.

    Attributes:
        optimizer: The Keras optimizer whose formula it is.
        gradient: What the formula is given.
        variable: That it is to change.
        change: What Keras would change it by, or set it to.
    """

    optimizer: Any
    gradient: tf.Tensor
    variable: tf.Variable
    change: tf.Tensor


def watch(variable: tf.Variable, on_update: Callable[[Update], None]) -> None:
    """Has the updates of a variable by Keras optimizers told, in the place of being made.

    Other assignments are made as ever. Watching a variable again changes nothing.

    Args:
        variable: A native variable, or one with a copy for each replica.
        on_update: Called once an update, where Keras would make it: inside of the branch that ends
            a window of accumulated gradients, and after sums over replicas.
    """
    parts = _parts(variable)
    if hasattr(parts[0], _MARK):
        return
    for part in parts:
        for name in _METHODS:
            setattr(part, name, _told(part, getattr(part, name), on_update, part is parts[0]))
        setattr(part, _MARK, True)


def _parts(variable: Any) -> tuple[Any, ...]:
    if isinstance(variable, tf.distribute.DistributedValues):
        return tuple(variable.values)
    return (variable,)


def _told(
    part: Any, method: Callable[..., Any], on_update: Callable[[Update], None], tells: bool
) -> Callable[..., Any]:
    def changed(*args: Any, **kwargs: Any) -> Any:
        update = _running_update(part, args)
        if update is None:
            return method(*args, **kwargs)
        if tells:
            on_update(update)
        return part

    return changed


def _running_update(variable: tf.Variable, arguments: tuple[Any, ...]) -> Update | None:
    """That of which a change of the variable is a part, if it is one."""
    frames = _frames()
    for frame in frames:
        if frame.f_code.co_name == "apply_grad_to_update_var":
            gradient = frame.f_locals["grad"]
            break
    else:
        return None
    for frame in frames:
        if frame.f_code.co_name == "_distributed_tf_update_step":
            return Update(frame.f_locals["self"], gradient, variable, arguments[0])
    return None


def _frames() -> Iterator[Any]:
    frame: Any = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
