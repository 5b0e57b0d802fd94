"""Compares two checkpoints: rows of tables, and dense variables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.checkpoint.files.partitions import Partitions
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.tools.newest_first import Watch
from sok_embed.checkpoint.tools.saved import Saved, SavedTable, rows_of

_HEAD = ("dim", "rule", "slot_start", "steps", "step_clock")
_COLUMNS = ("embeddings", "slots", "update_nums", "update_times")
# In a tf.train.Checkpoint, the names of values end with _VALUE; _GRAPH is not a variable.
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclass
class TableDifference:
    """The differences of a table."""

    table: str  # the path of the table, with the part of an adaptive one
    name: str  # the name of the table in A
    # The other fields that differ, such as `dim`, with their values in A and in B.
    head: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    only_a: int = 0  # the number of keys that only A has
    only_b: int = 0  # the number of keys that only B has
    both: int = 0  # the number of keys that both have
    # Rows of `both` whose bits differ: `embeddings`, `slots`, `update_nums` and `update_times`.
    # Columns of different lengths are not compared, and not named.
    differing: dict[str, int] = field(default_factory=dict)
    # The largest difference between elements, for `embeddings` and `slots` that differ; NaN if one
    # of the two elements is NaN.
    largest: dict[str, float] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """True if there is no difference."""
        found = (self.head, self.only_a, self.only_b, *self.differing.values())
        return not any(found)


class VariableDifference(NamedTuple):
    """The difference of a dense variable."""

    variable: str  # the path of the variable
    a: str | None  # the dtype and shape in A; `None` if A does not have it
    b: str | None  # the same for B
    # The number of elements that differ; `None`: they cannot be compared.
    differing: int | None = None
    # The largest difference between elements; `None` if they are not numbers.
    largest: float | None = None


class Difference(NamedTuple):
    """The differences of two checkpoints, A and B."""

    steps: tuple[int, int]  # the steps of A and of B
    only_a: list[str]  # tables that only A has
    only_b: list[str]  # tables that only B has
    tables: list[TableDifference]  # the tables that both have, also if nothing differs
    variables: list[VariableDifference]  # the dense variables that differ

    @property
    def same(self) -> bool:
        """True if nothing differs except the steps."""
        return not (self.only_a or self.only_b or self.variables) and all(
            table.same for table in self.tables
        )


def difference(a: Saved, b: Saved, watch: Watch | None = None) -> Difference:
    """Compares two checkpoints, bit by bit.

    Tables are matched by their paths. The counts of admissions and sketches are not compared. Rows
    are in memory a part at a time; if there are many, the rows of both checkpoints are in temporary
    files meanwhile.
    """
    labels_a, labels_b = ([table.label for table in saved.tables] for saved in (a, b))
    return Difference(
        steps=(a.manifest.step, b.manifest.step),
        only_a=[label for label in labels_a if label not in labels_b],
        only_b=[label for label in labels_b if label not in labels_a],
        tables=_tables(a, b, watch),
        variables=list(_variables(a, b)),
    )


class _Pair:
    """A table that both checkpoints have. Its rows are matched by their keys."""

    def __init__(self, a: SavedTable, b: SavedTable) -> None:
        self.tables = (a, b)
        widths = {"embeddings": (a.dim, b.dim), "slots": (a.slot_floats, b.slot_floats)}
        self.widths = {name: pair[0] for name, pair in widths.items() if pair[0] == pair[1]}
        floats: list[Any] = [(name, "<f4", (width,)) for name, width in self.widths.items()]
        counts = [("update_nums", "<u4"), ("update_times", "<u4")]
        self.dtype = np.dtype([("key", "<i8"), ("side", "u1"), *counts, *floats])
        self.bytes = self.dtype.itemsize * (a.rows + b.rows)

    def records(self, side: int, rows: Rows) -> npt.NDArray[Any]:
        """Returns the rows of a side (0: A, 1: B) as records."""
        records = np.zeros(len(rows.keys), self.dtype)
        records["key"], records["side"] = rows.keys, side
        for name in _COLUMNS:
            if name in (records.dtype.names or ()):
                records[name] = getattr(rows, name)
        return records

    def compare(self, partitions: Partitions) -> TableDifference:
        """Compares all rows."""
        a, b = self.tables
        found = TableDifference(a.label, str(a.described["name"]))
        for name in _HEAD:
            values = getattr(a, name), getattr(b, name)
            if values[0] != values[1]:
                found.head[name] = values
        found.differing = {name: 0 for name in _COLUMNS if name in (self.dtype.names or ())}
        for number in range(partitions.number):
            self._compare_part(partitions.part(number), found)
        return found

    def _compare_part(self, records: npt.NDArray[Any], found: TableDifference) -> None:
        records = records[np.lexsort((records["side"], records["key"]))]
        of_a = np.flatnonzero(records["key"][1:] == records["key"][:-1])
        if (records["side"][of_a] == records["side"][of_a + 1]).any():
            raise ValueError(
                f"Expected every key of table '{found.table}' once. Received: a key that occurs "
                "twice in a checkpoint. Run sok-embed checkpoint verify."
            )
        found.both += len(of_a)
        total = np.bincount(records["side"], minlength=2)
        found.only_a += int(total[0]) - len(of_a)
        found.only_b += int(total[1]) - len(of_a)
        a, b = records[of_a], records[of_a + 1]
        for name in found.differing:
            bits_a, bits_b = a[name].view(np.uint32), b[name].view(np.uint32)
            differs = bits_a != bits_b
            rows = differs if differs.ndim == 1 else differs.any(axis=1)
            found.differing[name] += int(rows.sum())
            if name in self.widths and differs.any():
                apart = _largest(a[name][differs], b[name][differs])
                found.largest[name] = float(np.maximum(found.largest.get(name, 0.0), apart))


def _largest(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Returns the largest difference of elements `[n]`, in float64; NaN if one of them is NaN."""
    with np.errstate(invalid="ignore"):  # infinity from infinity
        return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))


def _tables(a: Saved, b: Saved, watch: Watch | None) -> list[TableDifference]:
    of_b = {table.label: table for table in b.tables}
    pairs = {
        table.label: _Pair(table, of_b[table.label]) for table in a.tables if table.label in of_b
    }
    all_bytes = sum(pair.bytes for pair in pairs.values())
    with ExitStack() as stack:
        partitions = {
            label: stack.enter_context(Partitions(pair.dtype, pair.bytes, all_bytes))
            for label, pair in pairs.items()
        }
        for side, saved in enumerate((a, b)):
            chosen = [table for table in saved.tables if table.label in pairs]
            for table, rows in rows_of(saved, chosen, watch):
                partitions[table.label].add(pairs[table.label].records(side, rows))
        return [pair.compare(partitions[label]) for label, pair in pairs.items()]


def _variables(a: Saved, b: Saved) -> Iterator[VariableDifference]:
    """Yields the dense variables that differ. Imports TensorFlow only if some may differ."""
    contents = [
        sorted((record.bytes, record.checksum) for record in saved.manifest.files)
        for saved in (a, b)
    ]
    if contents[0] == contents[1]:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    readers = [
        tf.train.load_checkpoint(
            os.path.join(saved.held.places[0].local, saved.manifest.dense["prefix"])
        )
        for saved in (a, b)
    ]
    shapes = [reader.get_variable_to_shape_map() for reader in readers]
    for name in sorted(set(shapes[0]) | set(shapes[1])):
        if name == _GRAPH:
            continue
        values = [
            np.asarray(reader.get_tensor(name)) if name in shape else None
            for reader, shape in zip(readers, shapes, strict=True)
        ]
        found = _variable(name.removesuffix(_VALUE), values[0], values[1])
        if found is not None:
            yield found


def _variable(
    path: str, a: npt.NDArray[Any] | None, b: npt.NDArray[Any] | None
) -> VariableDifference | None:
    """Returns the difference between two values; `None` if they are equal."""
    described = [
        None if value is None else f"{value.dtype} {list(value.shape)}" for value in (a, b)
    ]
    if a is None or b is None or described[0] != described[1]:
        return VariableDifference(path, described[0], described[1])
    if a.tobytes() == b.tobytes() if a.dtype != object else np.array_equal(a, b):
        return None
    # The bits of floats are compared: NaN equals itself, and 0 differs from -0.
    differs = a != b if a.dtype == object else _bits(a) != _bits(b)
    largest = None
    if a.dtype.kind in "fiub" or a.dtype.kind == "V":
        largest = _largest(np.atleast_1d(a)[differs], np.atleast_1d(b)[differs])
    return VariableDifference(
        path, described[0], described[1], int(np.count_nonzero(differs)), largest
    )


def _bits(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the bits of each element as a number; elements longer than any number as they are."""
    value = np.atleast_1d(value)
    return value.view(f"u{value.itemsize}") if value.itemsize in (1, 2, 4, 8) else value
