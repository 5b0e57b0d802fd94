"""Makes Keras count the rows of tables when it counts the variables of a model."""

from __future__ import annotations

import weakref
from typing import Any


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
