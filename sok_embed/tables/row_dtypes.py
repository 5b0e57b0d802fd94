"""The types that a table keeps its rows in."""

from __future__ import annotations

from typing import Any

from sok_embed.arguments import is_among, shown

FLOAT32 = "float32"
ROW_DTYPES = (FLOAT32, "bfloat16", "float16", "int8")
SLOT_DTYPES = (FLOAT32, "bfloat16")
_BYTES = {FLOAT32: 4, "bfloat16": 2, "float16": 2, "int8": 1}  # of a number


def check_row_dtypes(what: str, row_dtype: Any, slot_dtype: Any) -> None:
    """Raises ValueError for types in which a table cannot keep its rows.

    Args:
        what: The beginning of the message, such as `"Layer 'a'"`.
        row_dtype: The type of the embeddings.
        slot_dtype: The type of the optimizer's slots.
    """
    given = {"row_dtype": (row_dtype, ROW_DTYPES), "slot_dtype": (slot_dtype, SLOT_DTYPES)}
    for name, (dtype, known) in given.items():
        if dtype is None or not is_among(dtype, known):
            raise ValueError(
                f"{what}: expected {name} to be one of {', '.join(known)}. Received: "
                f"{shown(dtype)}."
            )


def stored_bytes(dtype: str, n: int) -> int:
    """Returns the bytes that `n` numbers of a row take: whole float32, and an int8 row's scale.

    Example:
    >>> stored_bytes("bfloat16", 15), stored_bytes("int8", 16)
    (32, 20)
    """
    return -(-n * _BYTES[dtype] // 4) * 4 + (4 if dtype == "int8" else 0)
