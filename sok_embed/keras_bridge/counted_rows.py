"""Rows of tables where Keras counts the variables of a model."""

from __future__ import annotations

import weakref
from typing import Any


def rows_of(table: Any) -> int:
    """Returns how many rows a `Table` or an `AdaptiveTable` has on this worker."""
    stats = table.stats()
    return int(stats["rows"] + stats.get("static_rows", 0))


class CountedRows:
    """The vectors of a table's rows, with what `model.summary()` asks of a variable.

    Attributes:
        dtype: The dtype of the vectors.
        trainable: True if training changes them.
    """

    dtype = "float32"

    def __init__(self, table: Any) -> None:
        # A table that has been counted must go with its layer.
        self._table = weakref.ref(table)
        self.trainable = True

    @property
    def shape(self) -> tuple[int, int]:
        """The rows that there are by now, and the length of each."""
        table = self._table()
        return (0, 0) if table is None else (rows_of(table), table.dim)


_counted: weakref.WeakKeyDictionary[Any, CountedRows] = weakref.WeakKeyDictionary()


def counted_rows(table: Any, trainable: bool) -> CountedRows:
    """Returns what stands for the rows of a table, the same object each time.

    Keras counts each object once, also of a layer in several models that are one.
    """
    counted = _counted.setdefault(table, CountedRows(table))
    counted.trainable = trainable
    return counted
