"""Checks and configs of layer arguments."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def check_positive(name: str, value: Any, limit: int | None = None) -> None:
    """Raises ValueError unless `value` is a positive integer, below the limit if there is one."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value <= 0 or (limit is not None and value >= limit):
        below = "" if limit is None else f" below {limit}"
        raise ValueError(
            f"Expected {name} to be a positive integer{below}. Received: {name}={value!r} "
            f"(of type {type(value).__name__})."
        )


def check_bool(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"Expected {name} to be True or False. Received: {name}={value!r}.")


def check_integer(name: str, value: Any) -> int:
    """The integer as Python's. Raises ValueError for anything else, True and False too."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise ValueError(
            f"Expected {name} to be an integer. Received: {name}={value!r} "
            f"(of type {type(value).__name__})."
        )
    return int(value)


def check_training(layer: str, training: Any) -> bool:
    """Whether a call is for training. Raises ValueError for a tensor."""
    if training is None or isinstance(training, (bool, np.bool_, int)):
        return bool(training)
    raise ValueError(
        f"Layer '{layer}': expected training to be a Python bool or None. Received: {training!r}. "
        "Whether rows are made is decided when the call is traced: pass True or False, and trace "
        "a function for each."
    )


def serialize_initializer(identifier: Any) -> Any:
    """What `get_config` says of an initializer: a name or a config as it is, else its config."""
    if isinstance(identifier, (str, dict)):
        return identifier
    return keras.initializers.serialize(keras.initializers.get(identifier))
