"""Corrects the results of Keras for a batch without examples, which would be silently wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

_MARK = "_sok_embed_takes_empty_batches"


def take_empty_batches() -> None:
    """Makes Keras handle batches without examples, in this process from now on.

    `keras.layers.BatchNormalization` handles such a batch as in inference. Without this Keras would
    compute the mean of no numbers: moving statistics and the gradients of `gamma` would become NaN,
    or with a mask the statistics would decay towards 0.

    A loss that is reduced to one number is 0. Without this Keras returns an empty vector if it
    knows the size while it traces or runs eagerly. Adding other losses to it gives an empty vector
    too, so that these would be lost.

    Other batches are handled as before. Calling it again changes nothing.
    """
    normalization: Any = keras.layers.BatchNormalization
    if not hasattr(normalization.call, _MARK):
        normalization.call = _as_in_inference(normalization.call)
    loss: Any = keras.losses.Loss
    if not hasattr(loss.__call__, _MARK):
        loss.__call__ = _reduced(loss.__call__)


def _as_in_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapper(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        size = tf.TensorShape(inputs.shape).num_elements()
        if not training or size:
            return call(self, inputs, training=training, mask=mask)
        if size == 0:
            return call(self, inputs, training=False, mask=mask)
        return tf.cond(
            tf.size(inputs) > 0,
            lambda: call(self, inputs, training=training, mask=mask),
            lambda: call(self, inputs, training=False, mask=mask),
        )

    setattr(wrapper, _MARK, True)
    return wrapper


def _reduced(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = call(self, *args, **kwargs)
        unreduced = self.reduction in (None, "none") or tuple(loss.shape) != (0,)
        return loss if unreduced else tf.reduce_sum(loss)

    setattr(wrapper, _MARK, True)
    return wrapper
