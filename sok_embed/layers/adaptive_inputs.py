"""Checks and reads the inputs of a call of an adaptive embedding, symbolic or not."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sok_embed.arguments import is_integer
from sok_embed.keras_bridge.layer_calls import true_ids
from sok_embed.keras_bridge.private_state import mask_of
from sok_embed.layers.adaptive_arguments import check_route
from sok_embed.lookups.adaptive_lookup import AUTOMATIC
from sok_embed.lookups.combining import check_ids, refuse_padding_mask
from sok_embed.lookups.input_forms import Form, check_beside


def read_route(
    layer: str, combiner: str | None, default: int | None, mask: Any, inputs: Any
) -> Any:
    """Returns how keys are routed: a number for all of them, or an integer for each, as in `mask`.

    Keras fills `mask` in with the padding mask that it has attached to the inputs, if there is one.
    A padding mask does not route keys. `default` routes all keys of a call without a mask; `None`
    stands for `AUTOMATIC`.

    Raises:
        ValueError: For a mask that is neither a route nor a padding mask; for padding where keys
            are combined.
    """
    if combiner is not None:
        refuse_padding_mask(layer, inputs)
    padding = mask_of(inputs)
    # A functional model passes the padding mask again by itself, as another tensor.
    is_padding = padding is not None and getattr(mask, "dtype", None) == padding.dtype
    if is_padding or all(part is None for part in keras.tree.flatten(mask)):
        return AUTOMATIC if default is None else default
    if is_integer(mask):
        try:
            return check_route(mask)
        except ValueError as error:
            raise ValueError(f"Layer '{layer}': {error}") from None
    if not hasattr(mask, "dtype"):
        mask = np.asarray(mask)
    mask = true_ids(mask)
    dtype = tf.as_dtype(mask.dtype)
    if not dtype.is_integer:
        raise ValueError(
            f"Layer '{layer}': expected a mask of int32: 1 for a row of its own, 0 for the static "
            f"row, -1 to choose by the counts. Received: {dtype.name}. Cast it; to leave padding "
            "out, pass a ragged tensor."
        )
    return mask


def narrow(route: Any) -> Any:
    """Returns integers of any width as int32.

    Integers beyond int32 stay outside the valid range.
    """
    dtype = tf.as_dtype(route.dtype)
    if dtype.size < 4 or dtype == tf.int32:
        return tf.cast(route, tf.int32)
    least = tf.constant(0 if dtype.is_unsigned else -2, dtype)

    def clipped(values: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.clip_by_value(values, least, tf.constant(2, dtype)), tf.int32)

    if isinstance(route, tf.RaggedTensor):
        return route.with_flat_values(clipped(route.flat_values))
    if isinstance(route, tf.SparseTensor):
        return route.with_values(clipped(route.values))
    return clipped(tf.convert_to_tensor(route))


def check_inputs(layer: str, combiner: str | None, inputs: Any, route: Any) -> None:
    """Raises ValueError for inputs and routes that do not fit each other."""
    check_ids(layer, combiner, Form.of(inputs))
    # One number is the route of all keys.
    if isinstance(route, int) or Form.of(route)[:2] == ("dense", ()):
        return
    check_beside(f"Layer '{layer}'", "a mask", route, inputs)
