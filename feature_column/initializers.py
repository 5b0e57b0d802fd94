"""Compares and serializes initializers of static rows, of TensorFlow and of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import init_ops, init_ops_v2

from sok_embed.arguments import shown


def same_initializer(first: Any, second: Any) -> bool:
    """Returns true if two initializers draw from the same distribution with the same seed."""
    if first is second:
        return True
    if type(first) is not type(second) or not hasattr(first, "get_config"):
        return False
    one, other = (
        {name: _plain(value) for name, value in each.get_config().items()}
        for each in (first, second)
    )
    return bool(one == other)


def for_keras(initializer: Any) -> Any:
    """Returns the initializer in the form that Keras calls: with the name of the dtype."""
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer

    def start(shape: Any, dtype: Any = None) -> tf.Tensor:
        return initializer(tuple(shape), dtype=tf.as_dtype(dtype or tf.float32))

    return start


def serialize_initializer(initializer: Any) -> Any:
    """Returns a config of an initializer of Keras or of either version of TensorFlow."""
    if initializer is None:
        return None
    if isinstance(initializer, keras.initializers.Initializer):
        return {"kind": "keras", "config": keras.initializers.serialize(initializer)}
    for kind, module in _MODULES.items():
        if getattr(module, type(initializer).__name__, None) is type(initializer):
            config = {name: _plain(value) for name, value in initializer.get_config().items()}
            if config.get("dtype") is not None:
                config["dtype"] = tf.as_dtype(config["dtype"]).name
            return {"kind": kind, "name": type(initializer).__name__, "config": config}
    raise ValueError(
        "Expected an initializer of Keras or TensorFlow, to be saved with its column. Received: "
        f"{shown(initializer)}."
    )


def deserialize_initializer(config: Mapping[str, Any] | None) -> Any:
    """Makes the initializer that a config came from."""
    if config is None:
        return None
    if config["kind"] == "keras":
        return keras.initializers.deserialize(config["config"])
    return getattr(_MODULES[config["kind"]], config["name"])(**config["config"])


def _plain(value: Any) -> Any:
    """Returns a value with arrays as lists, which JSON can hold and which can be compared."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


_MODULES = {"tf.compat.v1": init_ops, "tf": init_ops_v2}
