"""Padding: the key that stands in an input where there is no key."""

from __future__ import annotations

from typing import Any

from keras import ops

from sok_embed.arguments import check_flag, check_integer
from sok_embed.fingerprints import fingerprint, keys_of_strings
from sok_embed.keras_bridge.private_state import mask_of
from sok_embed.lookups.input_forms import Form


def padding_key(mask_zero: Any, padding_value: Any) -> int | None:
    """Returns the key that is padding, as int64; `None` if there is no padding.

    Args:
        mask_zero: True if 0 is padding, as Keras has it.
        padding_value: The key that is padding: an int64, a uint64, or a string, which stands for
            its `fingerprint`; or `None`.

    Raises:
        ValueError: For other values, and for `mask_zero` with a value other than 0.
    """
    check_flag("mask_zero", mask_zero)
    if padding_value is None:
        return 0 if mask_zero else None
    if isinstance(padding_value, (str, bytes)):
        padding_value = int(fingerprint(padding_value))
    key = check_integer("padding_value", padding_value, -(2**63), 2**64, named=True)
    if mask_zero and key != 0:
        raise ValueError(
            "Expected one padding value. Received: mask_zero=True, by which it is 0, and "
            f"padding_value={padding_value}. Give one of them."
        )
    return key - 2**64 if key >= 2**63 else key


def is_key(ids: Any, padding: int) -> Any:
    """Returns bool of the shape of the ids, true where they are not padding.

    Symbolic for symbolic ids.
    """
    return ops.not_equal(
        ops.cast(keys_of_strings(ids), "int64"), ops.convert_to_tensor(padding, "int64")
    )


def mask_of_keys(ids: Any, padding: int | None) -> Any:
    """Returns the Keras mask of the vectors of single keys, or `None`.

    Args:
        ids: An input, symbolic or not. In a dense input padding is masked, and so are keys that its
            Keras mask masks.
        padding: The key that is padding, or `None`.
    """
    attached = mask_of(ids)
    if padding is None or Form.of(ids).kind != "dense":
        return attached
    keys = is_key(ids, padding)
    return keys if attached is None else ops.logical_and(attached, keys)
