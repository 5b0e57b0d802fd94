"""Checks and configs of layer arguments."""

from __future__ import annotations

from typing import Any

import keras


def check_key_type(what: str, dtype: Any) -> None:
    """Raises ValueError for the dtype of a symbolic input that cannot be turned into keys."""
    if dtype != "string" and not keras.backend.is_int_dtype(dtype):
        raise ValueError(
            f"{what}: expected integer keys or strings. Received: {dtype}. Give the input a dtype, "
            "as in keras.Input(shape, dtype='int64')."
        )


def serialize_initializer(identifier: Any) -> Any:
    """Returns an initializer for `get_config`: its name, or its config."""
    if isinstance(identifier, (str, dict)):
        return identifier
    return keras.initializers.serialize(keras.initializers.get(identifier))


def attributes_of(layer: Any, names: str) -> dict[str, Any]:
    """Returns arguments that a layer keeps as attributes; `names` has spaces between the names."""
    return {name: getattr(layer, name) for name in names.split()}
