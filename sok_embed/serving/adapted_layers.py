"""Reads what layers have learned by `adapt`, which an export has as constants."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import keras
import numpy as np

from sok_embed.keras_bridge.private_state import all_layers

# Attributes of Keras' layers that have a method `adapt`.
_VALUES = ("mean", "variance", "bin_boundaries", "idf_weights")


class Adapted(NamedTuple):
    """A layer with a method `adapt`."""

    name: str  # the name of the layer
    digest: str  # a digest of its vocabulary, or of the numbers that it has instead


def adapted_layers(model: keras.Model) -> list[Adapted]:
    """Returns the layers of a model that have a method `adapt`, in the order of the model."""
    return [
        Adapted(each.name, _digest(each)) for each in all_layers(model) if hasattr(each, "adapt")
    ]


def _digest(layer: Any) -> str:
    found = hashlib.sha256()
    if hasattr(layer, "get_vocabulary"):
        for word in layer.get_vocabulary():
            text = str(word).encode()
            found.update(len(text).to_bytes(8, "little") + text)
    for name in _VALUES:
        value = getattr(layer, name, None)
        if value is not None:
            found.update(name.encode() + np.asarray(value).tobytes())
    return found.hexdigest()
