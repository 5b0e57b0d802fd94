"""What a call of an adaptive embedding is given, symbolic or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import get_keras_mask

from sok_embed.input_forms import Form, check_beside
from sok_embed.layers.adaptive_arguments import check_route
from sok_embed.layers.combining import check_ids, refuse_padding_mask
from sok_embed.layers.rebuilding import true_ids

if TYPE_CHECKING:
    from sok_embed.layers.adaptive_embedding import AdaptiveEmbedding

AUTOMATIC = -1


def read_route(layer: AdaptiveEmbedding, mask: Any, inputs: Any) -> Any:
    """How keys are routed: a number for all of them, or integers as `mask` has them.

    Keras fills `mask` in with the padding mask that it has attached to the inputs, if there is one.
    That says nothing of routes.

    Raises:
        ValueError: For a mask that is neither; for padding where keys are combined.
    """
    if layer.combiner is not None:
        refuse_padding_mask(layer.name, inputs)
    padding = get_keras_mask(inputs)
    # A functional model passes the padding mask again by itself, as another tensor.
    is_padding = padding is not None and getattr(mask, "dtype", None) == padding.dtype
    if is_padding or all(part is None for part in keras.tree.flatten(mask)):
        return AUTOMATIC if layer.mask is None else layer.mask
    if isinstance(mask, (int, np.integer)) and not isinstance(mask, bool):
        try:
            return check_route(mask)
        except ValueError as error:
            raise ValueError(f"Layer '{layer.name}': {error}") from None
    if not hasattr(mask, "dtype"):
        mask = np.asarray(mask)
    mask = true_ids(mask)
    dtype = tf.as_dtype(mask.dtype)
    if not dtype.is_integer:
        raise ValueError(
            f"Layer '{layer.name}': expected a mask of int32: 1 for a row of its own, 0 for the "
            f"static row, -1 for what counts say. Received: {dtype.name}. Cast it; to leave "
            "padding out, pass a ragged tensor."
        )
    return mask


def narrow(route: Any) -> Any:
    """Integers of any width as int32, without those beyond it becoming others."""
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


def check_inputs(layer: AdaptiveEmbedding, inputs: Any, route: Any) -> None:
    """Raises ValueError for inputs and routes that no call can mean."""
    check_ids(layer.name, layer.combiner, Form.of(inputs))
    # One number says the same for all keys.
    if isinstance(route, int) or Form.of(route)[:2] == ("dense", ()):
        return
    check_beside(f"Layer '{layer.name}'", "a mask", route, inputs)
