"""The variables of optimizers that tables have for themselves, by names that files keep.

A table's own optimizer updates no variable, so it has no slots: those are in the rows, and the
table counts its steps. But its learning rate may have been changed, and a class of a user may hold
other variables.
"""

from __future__ import annotations

import re
from typing import Any

import keras
import tensorflow as tf

_NAME = "table_{}_optimizer"
_IN_A_PATH = re.compile(rf"(^|/){_NAME.format('[0-9]+')}/")


def name_of(number: int) -> str:
    """Returns the name under which a layer of many tables has the optimizer of one of them."""
    return _NAME.format(number)


def is_of_table(path: str) -> bool:
    """Returns whether a path of attributes leads into an optimizer that has such a name."""
    return _IN_A_PATH.search(path) is not None


def variables_of(optimizer: keras.optimizers.Optimizer | None) -> dict[str, Any]:
    """Returns the variables that an optimizer has as attributes, by the names of these.

    Slots of variables that it may train besides are not among them.
    """
    if optimizer is None:
        return {}
    return {
        name: value
        for name, value in sorted(vars(optimizer).items())
        if isinstance(value, keras.Variable | tf.Variable)
    }
