"""Padding among the keys of an input: the key that stands where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from sok_embed.arguments import check_integer


def padding_key(mask_zero: Any, padding_value: Any) -> int | None:
    """Returns the key that is padding, as int64, or `None` if all keys are keys.

    Args:
        mask_zero: True if 0 is padding, as Keras has it.
        padding_value: The key that is padding, an int64 or a uint64; or `None`.

    Raises:
        ValueError: For other values, and for `mask_zero` beside a value that is not 0.
    """
    if not isinstance(mask_zero, (bool, np.bool_)):
        raise ValueError(
            f"Expected mask_zero to be True or False. Received: mask_zero={mask_zero!r}."
        )
    if padding_value is None:
        return 0 if mask_zero else None
    key = check_integer("padding_value", padding_value, -(2**63), 2**64, named=True)
    if mask_zero and key != 0:
        raise ValueError(
            "Expected one padding value. Received: mask_zero=True, by which it is 0, and "
            f"padding_value={padding_value}. Give one of them."
        )
    return key - 2**64 if key >= 2**63 else key


def is_key(ids: Any, padding: int) -> Any:
    """Returns where ids are not padding: bool of their shape, symbolic for symbolic ones."""
    return ops.not_equal(ops.cast(ids, "int64"), ops.convert_to_tensor(padding, "int64"))


def without_padding(ids: Any, padding: int) -> Any:
    """Returns ragged or sparse ids without those that are padding; dense `[B, L]` as ragged."""
    if isinstance(ids, tf.SparseTensor):
        return tf.sparse.retain(ids, is_key(ids.values, padding))
    if isinstance(ids, tf.RaggedTensor):
        return tf.ragged.boolean_mask(ids, ids.with_flat_values(is_key(ids.flat_values, padding)))
    return tf.ragged.boolean_mask(ids, is_key(ids, padding))
