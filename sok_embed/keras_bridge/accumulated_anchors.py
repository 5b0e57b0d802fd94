"""Leaves the gradients of rows that an optimizer has accumulated out of what is saved.

With `gradient_accumulation_steps` an optimizer of Keras adds the gradients of some calls up in
variables, which are saved with it. The sum of an anchor names gradients that wait in this process,
and would name nothing, or others, in another one. So zeros are saved in its place: a loaded model
goes on within its window, and rows get the gradients of the calls that follow.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_MARK = "_sok_embed_is_left_out"


def leave_out_of_files(optimizer: keras.optimizers.Optimizer, anchor: Any) -> None:
    """Has zeros saved in place of what an optimizer accumulates of an anchor.

    Args:
        optimizer: An optimizer that has been built.
        anchor: One of its variables.

    Warns:
        UserWarning: At each save amid a window.
    """
    if not optimizer.gradient_accumulation_steps:
        return
    accumulator = optimizer._accumulated_gradients[optimizer._get_variable_index(anchor)]
    native = accumulator.value
    if hasattr(native, _MARK):
        return
    setattr(native, _MARK, True)
    shape, dtype = tuple(native.shape), native.dtype
    # Neither the variable nor the optimizer is kept alive by what it holds itself.
    variable, owner = weakref.ref(native), weakref.ref(optimizer)

    def for_keras() -> Any:
        _warn(owner())
        return np.zeros(shape, dtype.as_numpy_dtype)

    def for_checkpoints() -> dict[str, tf.Tensor]:
        if tf.executing_eagerly():
            _warn(owner())
        held: Any = variable()
        return {name: tf.zeros(shape, dtype) for name in type(held)._serialize_to_tensors(held)}

    accumulator.numpy = for_keras
    if not isinstance(native, tf.distribute.DistributedValues):
        native._serialize_to_tensors = for_checkpoints


def _warn(optimizer: Any) -> None:
    """Warns if the optimizer, which may be gone, has accumulated gradients."""
    calls = 0 if optimizer is None else optimizer.gradient_accumulation_steps
    waiting = int(tf.convert_to_tensor(optimizer._iterations)) % calls if calls else 0
    if waiting:
        warnings.warn(
            f"Expected to save after the call that applies what '{optimizer.name}' accumulates of "
            f"{calls} calls. Received: a save after {waiting} of them. Their gradients of rows "
            "stay behind, and those of dense weights are saved: a loaded model goes on with the "
            "call that follows, and its rows miss these gradients in that step. Save at the end of "
            "a window to lose nothing, as sok_embed.callbacks.BackupAndRestore does.",
            stacklevel=4,
        )
