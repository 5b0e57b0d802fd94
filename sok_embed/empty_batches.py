"""What a batch without examples does to layers of Keras that keep statistics of batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

_MARK = "_sok_embed_keeps_statistics"


def keep_statistics() -> None:
    """Has `keras.layers.BatchNormalization` take a batch without examples as in inference.

    From then on, in this process. Keras would take the mean of nothing: moving statistics and the
    gradients of `gamma` would be NaN, or with a mask the statistics would decay towards 0. Other
    batches are normalized as before. Calling it again changes nothing.
    """
    layer: Any = keras.layers.BatchNormalization
    if not hasattr(layer.call, _MARK):
        layer.call = _keeping(layer.call)


def _keeping(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def keeping(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
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

    setattr(keeping, _MARK, True)
    return keeping
