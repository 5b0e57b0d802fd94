"""The number of a table's parameters, which `model.summary()` shows with rows and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras.src.utils.summary_utils import readable_memory_size

from sok_embed.keras_bridge.counted_rows import rows_of


class RowCount(int):
    """The number of floats in a table's vectors; a summary also shows its rows and bytes.

    `model.summary()` writes `f"{layer.count_params():,}"`, and has no other place for them. Any
    other format works as for an int.

    Args:
        rows: The number of rows of the table, or of all tables.
        numbers: The number of floats in their vectors.
        memory: Bytes in memory, with slots and index.
    """

    _text: str

    def __new__(cls, rows: int, numbers: int, memory: int) -> RowCount:
        """Makes an int that also has a text."""
        count = super().__new__(cls, numbers)
        count._text = f"\n{rows:,} rows\n{readable_memory_size(memory)}"
        return count

    @classmethod
    def of(cls, tables: Sequence[Any], numbers: int) -> RowCount:
        """Makes the count of tables whose vectors have `numbers` floats together."""
        memory = sum(int(table.stats()["bytes"]) for table in tables)
        return cls(sum(map(rows_of, tables)), numbers, memory)

    def __format__(self, spec: str) -> str:
        return int.__format__(int(self), spec) + (self._text if spec == "," else "")
