"""Padding: the keys that stand in an input where there is no key."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from keras import ops

from sok_embed.arguments import check_flag, check_integer
from sok_embed.fingerprints import fingerprint, keys_of_strings
from sok_embed.keras_bridge.private_state import mask_of
from sok_embed.lookups.input_forms import Form

# The fingerprint of "", which `keras.layers.StringLookup` turns into 0.
_EMPTY_STRING = -7286425919675154353


def padding_keys(mask_zero: Any, padding_value: Any) -> tuple[int, ...]:
    """Returns the keys that are padding, as int64; an empty tuple if there is no padding.

    Args:
        mask_zero: True if 0 is padding, and the key of the empty string, as Keras has it.
        padding_value: The key that is padding: an int64, a uint64, or a string, which stands for
            its `fingerprint`; or `None`.

    Raises:
        ValueError: For other values, and for `mask_zero` with another value than its own.
    """
    keys = (0, _EMPTY_STRING) if check_flag("mask_zero", mask_zero) else ()
    if padding_value is None:
        return keys
    given = padding_value
    if isinstance(given, (str, bytes)):
        given = int(fingerprint(given))
    key = check_integer("padding_value", given, -(2**63), 2**64)
    key = key - 2**64 if key >= 2**63 else key
    if keys and key not in keys:
        raise ValueError(
            "Expected one padding value. Received: mask_zero=True, by which it is 0, and of "
            f"strings the empty one, and padding_value={padding_value!r}. Give one of them."
        )
    return keys or (key,)


def is_key(ids: Any, padding: Sequence[int]) -> Any:
    """Returns bool of the shape of the ids, true where they are not padding.

    Symbolic for symbolic ids.
    """
    keys = ops.cast(keys_of_strings(ids), "int64")
    differ = [ops.not_equal(keys, ops.convert_to_tensor(key, "int64")) for key in padding]
    return functools.reduce(ops.logical_and, differ)


def mask_of_keys(ids: Any, padding: Sequence[int]) -> Any:
    """Returns the Keras mask of the vectors of single keys, or `None`.

    Args:
        ids: An input, symbolic or not. In a dense input padding is masked, and so are keys that its
            Keras mask masks.
        padding: The keys that are padding.
    """
    attached = mask_of(ids)
    if not padding or Form.of(ids).kind != "dense":
        return attached
    keys = is_key(ids, padding)
    return keys if attached is None else ops.logical_and(attached, keys)
