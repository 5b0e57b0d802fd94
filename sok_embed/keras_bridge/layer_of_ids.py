"""Gives a `Sequential` without a `keras.Input` int64 inputs if its first layer takes ids."""

from __future__ import annotations

from typing import Any

import keras

from sok_embed.keras_bridge import callers


class LayerOfIds(keras.layers.Layer):
    """Base of layers that look integers up. Not for use by itself."""

    # True if the first input of the layer is a tensor of integers.
    _takes_ids = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.autocast = False
        # Keras would turn lists of integers into float32 or int32.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = False

    @property
    def compute_dtype(self) -> Any:
        """Returns the dtype of vectors; to a `Sequential` that makes its own input, int64.

        Keras would make an input of floats, which round ids above 2**24.
        """
        if self._takes_ids and callers.making_input_of_sequential():
            return "int64"
        return super().compute_dtype
