"""Corrects the results of Keras for a batch without examples, which would be silently wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sok_embed.keras_bridge.batch_normalization import prepare_batch_normalization
from sok_embed.keras_bridge.replaced_functions import replace_function


def take_empty_batches() -> None:
    """Makes Keras handle batches without examples, in this process from now on.

    `keras.layers.BatchNormalization` handles such a batch as in inference.

    A loss that is reduced to one number is 0. Without this Keras returns an empty vector if it
    knows the size while it traces or runs eagerly. Adding other losses to it gives an empty vector
    too, so that these would be lost.

    Other batches are handled as before. Calling it again changes nothing.
    """
    prepare_batch_normalization(takes_empty_batches=True)
    replace_function(keras.losses.Loss, "__call__", _reduced_loss)


def _reduced_loss(call: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    loss = call(self, *args, **kwargs)
    unreduced = self.reduction in (None, "none") or tuple(loss.shape) != (0,)
    return loss if unreduced else tf.reduce_sum(loss)
