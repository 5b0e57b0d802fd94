"""Makes Keras count the rows of tables when it counts parameters, and show rows and bytes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from keras.src.utils.summary_utils import readable_memory_size


def rows_of(table: Any) -> int:
    """Returns how many rows a `Table` or an `AdaptiveTable` has on this worker."""
    stats = table.stats()
    return int(stats["rows"] + stats.get("static_rows", 0))


class CountedRows:
    """The vectors of a table's rows, with the attributes of variables that `model.summary()` reads.

    Attributes:
        dtype: The dtype of the vectors.
        trainable: True if training changes them.
    """

    dtype = "float32"

    def __init__(self, table: Any) -> None:
        # Counting a table must not keep it alive after its layer.
        self._table = weakref.ref(table)
        self.trainable = True

    @property
    def shape(self) -> tuple[int, int]:
        """The present number of rows, and the length of each."""
        table = self._table()
        return (0, 0) if table is None else (rows_of(table), table.dim)


_counted: weakref.WeakKeyDictionary[Any, CountedRows] = weakref.WeakKeyDictionary()


def counted_rows(table: Any, trainable: bool) -> CountedRows:
    """Returns the object that stands for the rows of a table, the same each time.

    Keras counts each object once, even if a layer is in several models inside of one.
    """
    counted = _counted.setdefault(table, CountedRows(table))
    counted.trainable = trainable
    return counted


class RowCount(int):
    """The number of floats in a table's vectors; a summary also shows its rows and bytes.

    `model.summary()` writes `f"{layer.count_params():,}"`, and has no other place for them. Any
    other format works as for an int.

    Args:
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
