"""The tables that a checkpoint finds in what it is given, and the rows of each."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed import kv, tf_ops
from sok_embed.binding import _core
from sok_embed.checkpoint.files.dump_rows import rows_of_dump
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.files.rows_index import Head
from sok_embed.tables.adaptive_table import AdaptiveTable
from sok_embed.tables.counts import SketchPlace
from sok_embed.tables.owners import EveryWorkerRule
from sok_embed.tables.table import Table
from sok_embed.tables.tensors import as_errors
from sok_embed.tables.worker_record import WorkerRecord


def contents_of(
    head: Head, dim: int, rows: Rows | None = None, admission: bytes = b""
) -> tf_ops.Export:
    """Returns what `tf_ops.restore` takes, with rows or without."""
    start = np.array(head.slot_start, np.float32)
    if rows is None:
        empty = np.zeros(0, np.int64)
        rows = Rows(
            empty, np.zeros((0, dim), np.float32), np.zeros((0, len(start)), np.float32),
            empty, empty,
        )  # fmt: skip
    return tf_ops.Export(
        **rows.with_slots(head.slot_start)._asdict(),
        slot_start=start,
        rule=head.rule,
        steps=np.int64(head.steps),
        step_clock=np.int64(head.step_clock),
        admission=np.frombuffer(admission, np.uint8),
    )


@dataclass(frozen=True)
class Part:
    """Rows that lie under one handle: those of a table, or the own or static ones of an adaptive.

    Attributes:
        table: The table of the rows.
        name: `"rows"`, `"own"` or `"static"`.
    """

    table: Table | AdaptiveTable
    name: str

    @property
    def handle(self) -> tf.Tensor:
        """The handle of the rows for ops."""
        if isinstance(self.table, AdaptiveTable):
            own, static = tf_ops.adaptive_tables(self.table.resource_handle)
            return own if self.name == "own" else static
        return self.table.resource_handle

    @property
    def max_rows(self) -> int:
        """The most rows on this worker; 0: as many as there are."""
        return 0 if self.name == "static" else int(self.table._attributes["max_rows"])

    @property
    def shared(self) -> bool:
        """True if every worker has all of the rows."""
        return isinstance(self.table, Table) and isinstance(self.table._owner_rule, EveryWorkerRule)

    def mine(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns which keys belong to this worker."""
        if isinstance(self.table, Table):
            owners = self.table.owners_of(keys)
            if owners is None:
                return np.ones(keys.shape, np.bool_)
        else:
            buckets = keys if self.name == "static" else self.table.buckets(keys)
            owners = buckets % self.table.owners
        return np.asarray(owners == self.table.owner)

    @property
    def storage(self) -> kv.Storage | None:
        """The storage of the rows; `None`: they are in memory."""
        return self.table.storage if isinstance(self.table, Table) else None

    @property
    def group(self) -> int:
        """The group of the storage."""
        assert isinstance(self.table, Table)
        return self.table._group

    def head(self) -> tuple[Head, bytes]:
        """Returns the head, and the counts of the admission."""
        _, exported = as_errors(
            lambda: tf_ops.export_piece(self.handle, self.table.dim, 0, 0, with_admission=True)
        )
        return head_of(exported), exported.admission.numpy().tobytes()

    def capture(self, mark: int, since: int) -> tuple[Head, bytes, _core.Capture]:
        """Begins a capture: see `tf_ops.begin_capture`. Returns what `head` does, and the capture.

        Raises:
            RuntimeError: If another one goes on, or changes since that state are not known.
        """
        begun = as_errors(lambda: tf_ops.begin_capture(self.handle, mark, since))
        capture = _core.Capture(int(begun.capture))
        return head_of(begun), begun.admission.numpy().tobytes(), capture


def head_of(exported: tf_ops.Export | tf_ops.BegunCapture) -> Head:
    """Returns the head of an export or a capture."""
    return Head(
        bytes(np.asarray(exported.rule).item()).decode(),
        int(exported.steps),
        int(exported.step_clock),
        tuple(map(float, np.asarray(exported.slot_start))),
    )


def stored_rows(storage: kv.Storage | _core.Storage, group: int, scratch: str) -> Iterator[Rows]:
    """Yields the rows of a group, from a dump: each piece of a view would walk through all rows.

    Args:
        storage: The storage.
        group: The group.
        scratch: The path of a file that is written meanwhile.
    """
    try:
        storage.dump(scratch, group=group)
        for *_, rows in rows_of_dump(scratch):
            yield rows
    finally:
        if os.path.exists(scratch):
            os.remove(scratch)


def calls_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns the number of times that an optimizer was given gradients."""
    return _integer(optimizer._iterations)


def steps_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns the number of times that an optimizer has applied gradients: its `iterations`."""
    return _integer(optimizer.iterations)


def _integer(variable: Any) -> int:
    """Returns the value of a variable or a tensor, also under a strategy of `tf.distribute`.

    Python's `int` raises there for variables of Keras.
    """
    held = variable.value if isinstance(variable, keras.Variable) else variable
    return int(tf.convert_to_tensor(held))


class Host(NamedTuple):
    """A table and where it was found.

    Attributes:
        path: The path of attributes by which the table is reached; the same in every process of one
            program.
        table: The table.
    """

    path: str
    table: Table | AdaptiveTable

    @property
    def parts(self) -> list[Part]:
        """Its rows."""
        if isinstance(self.table, AdaptiveTable):
            return [Part(self.table, "own"), Part(self.table, "static")]
        return [Part(self.table, "rows")]

    @property
    def sketch_place(self) -> SketchPlace:
        """The buckets that the sketch of an adaptive table counts."""
        assert isinstance(self.table, AdaptiveTable)
        return SketchPlace(self.table.static_buckets, self.table.owners, self.table.owner)

    def description(self) -> dict[str, Any]:
        """Returns the description of the table for a manifest, the same on every worker."""
        attributes = self.table._attributes
        described = {
            "path": self.path,
            "name": self.table.name,
            "kind": "table" if isinstance(self.table, Table) else "adaptive",
            "dim": self.table.dim,
            "owners": owner_text(self.table),
            "initializer": {
                "kind": attributes["initializer"],
                "a": float(attributes["initializer_a"]),
                "b": float(attributes["initializer_b"]),
            },
            "seed": int(attributes["seed"]),
        }
        if isinstance(self.table, AdaptiveTable):
            for name in ("static_buckets", "sketch_capacity", "counter_bits"):
                described[name] = int(attributes[name])
        return described


def owner_text(table: Table | AdaptiveTable) -> str:
    """Returns the rule that gives the keys of a table to workers, as a text."""
    return table._owner_rule.text if isinstance(table, Table) else "bucket % size"


class Found(NamedTuple):
    """The parts that hang on the objects of a checkpoint.

    Attributes:
        tables: The tables in the order of their paths.
        variables: All variables, by their paths.
        optimizers: The optimizers of Keras.
        iterators: Paths of iterators of `tf.data`.
        others: Paths of all else that has something to save, iterators among them.
    """

    tables: list[Host]
    variables: dict[str, Any]
    optimizers: list[keras.optimizers.Optimizer]
    iterators: list[str]
    others: list[str]


def find(root: tf.train.Checkpoint) -> Found:
    """Looks at all that `tf.train.Checkpoint` would write, nearest first."""
    view = tf.train.TrackableView(root)
    paths: dict[int, str] = {id(root): ""}
    waiting: deque[Any] = deque([root])
    found = Found([], {}, [], [], [])
    while waiting:
        each = waiting.popleft()
        path = paths[id(each)]
        if isinstance(each, (Table, AdaptiveTable)):
            found.tables.append(Host(path, each))
        elif isinstance(each, (keras.Variable, tf.Variable)):
            found.variables[path] = each
        elif isinstance(each, keras.optimizers.Optimizer):
            found.optimizers.append(each)
        elif _saves_something(each):
            found.others.append(path)
            if isinstance(each, tf.data.Iterator):
                found.iterators.append(path)
        for name, child in sorted(view.children(each).items()):
            if id(child) not in paths:
                paths[id(child)] = f"{path}/{name}" if path else name
                waiting.append(child)
    return found._replace(tables=sorted(found.tables, key=lambda host: host.path))


def _saves_something(each: Any) -> bool:
    """Returns true if an object other than a variable or a table has something to save."""
    if isinstance(each, WorkerRecord):
        return False  # belongs to the rows
    none = tf.__internal__.tracking.Trackable
    return any(
        getattr(type(each), method) is not getattr(none, method)
        for method in ("_serialize_to_tensors", "_gather_saveables_for_checkpoint")
    )
