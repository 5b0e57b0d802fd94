"""Checks and configs of layer arguments."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def check_positive(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is a positive integer."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value <= 0:
        raise ValueError(
            f"Expected {name} to be a positive integer. Received: {name}={value!r} "
            f"(of type {type(value).__name__})."
        )


def serialize_initializer(identifier: Any) -> Any:
    """What `get_config` says of an initializer: a name or a config as it is, else its config."""
    if isinstance(identifier, (str, dict)):
        return identifier
    return keras.initializers.serialize(keras.initializers.get(identifier))
