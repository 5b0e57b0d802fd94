"""What a call of an adaptive embedding is given, symbolic or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import get_keras_mask

from sok_embed.input_forms import Form, shape_text
from sok_embed.layers.adaptive_arguments import check_route
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
    padding = get_keras_mask(inputs)
    if padding is not None and layer.combiner is not None:
        raise ValueError(
            f"Layer '{layer.name}': expected inputs without a Keras mask, with a combiner. "
            "Received: some with one. Leave padding out: pass a ragged or a sparse tensor."
        )
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
    ids = Form.of(inputs)
    rank = None if ids.shape is None else len(ids.shape)
    if ids.kind == "sparse" and layer.combiner is None:
        raise ValueError(
            f"Layer '{layer.name}': expected a dense or a ragged tensor without a combiner. "
            "Received: a sparse one. Give the layer a combiner, or make it ragged with "
            "tf.RaggedTensor.from_sparse."
        )
    if ids.kind == "sparse" and rank != 2:
        raise ValueError(
            f"Layer '{layer.name}': expected a sparse tensor [B, N]. Received: shape "
            f"{shape_text(ids.shape)}."
        )
    if rank == 0 and layer.combiner is not None:
        raise ValueError(
            f"Layer '{layer.name}': expected keys of shape [..., n], with a combiner. Received: "
            "shape []."
        )
    form = None if isinstance(route, int) else Form.of(route)
    # One number says the same for all keys.
    if form is None or (form.kind == "dense" and form.shape == ()):
        return
    flat = form.kind == "dense" and form.shape is not None and len(form.shape) == 1
    alike = form.kind == ids.kind and tf.TensorShape(form.shape).is_compatible_with(ids.shape)
    if not alike and not (flat and ids.kind != "dense"):
        also = "" if ids.kind == "dense" else ", or [n]"
        raise ValueError(
            f"Layer '{layer.name}': expected a mask as the input, {ids.kind} of shape "
            f"{shape_text(ids.shape)}{also}. Received: {form.kind} of shape "
            f"{shape_text(form.shape)}."
        )
