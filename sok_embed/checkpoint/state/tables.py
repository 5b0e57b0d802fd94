"""Finds the tables in the objects that a checkpoint is given, and reads their rows."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.files.rows_index import Head
from sok_embed.tables.base_table import BaseTable, Part
from sok_embed.tables.tensors import as_errors
from sok_embed.tables.worker_record import WorkerRecord


def contents_of(
    head: Head, dim: int, rows: Rows | None = None, admission: bytes = b""
) -> tf_ops.Export:
    """Returns the contents that `tf_ops.restore` takes, with or without rows."""
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


def read_head(handle: tf.Tensor, dim: int) -> tuple[Head, bytes]:
    """Returns the head of the rows under a handle, and the counts of its admission."""
    _, exported = as_errors(lambda: tf_ops.export_piece(handle, dim, 0, 0, with_admission=True))
    return head_of(exported), exported.admission.numpy().tobytes()


def begin_capture(
    part: Part, mark: int, since: int, reader: int = 0
) -> tuple[Head, bytes, _core.Capture]:
    """Begins a capture: see `tf_ops.begin_capture`.

    Returns:
        The head, the counts of an admission, and the capture.

    Raises:
        RuntimeError: If another capture is in progress, or the changes since `since` are not known.
    """
    begun = as_errors(lambda: tf_ops.begin_capture(part.handle, mark, since, reader))
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


def calls_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns the number of times that an optimizer was given gradients."""
    return _integer(optimizer._iterations)


def steps_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns the number of times that an optimizer has applied gradients: its `iterations`."""
    return _integer(optimizer.iterations)


def step_of(model: keras.Model) -> int:
    """Returns the `iterations` of the optimizer of a model; 0: it has none."""
    optimizer = getattr(model, "optimizer", None)
    return 0 if optimizer is None else steps_of(optimizer)


def _integer(variable: Any) -> int:
    """Returns the value of a variable or a tensor, also under a strategy of `tf.distribute`.

    Python's `int` raises there for variables of Keras.
    """
    held = variable.value if isinstance(variable, keras.Variable) else variable
    return int(tf.convert_to_tensor(held))


class LocatedTable(NamedTuple):
    """A table and where it was found."""

    # The path of attributes by which the table is reached; the same in every process of one
    # program.
    path: str
    table: BaseTable  # the table

    @property
    def parts(self) -> list[Part]:
        """The parts of the table."""
        return self.table.parts

    def description(self) -> dict[str, Any]:
        """Returns the description of the table for a manifest, the same on every worker."""
        spec = self.table.spec
        kind, a, b = spec.initializer
        described = {
            "path": self.path,
            "name": self.table.name,
            "kind": self.table.kind,
            "dim": self.table.dim,
            "owners": self.table.owner_text,
            "initializer": {"kind": kind, "a": float(a), "b": float(b)},
            "seed": spec.seed,
        }
        return described | {name: int(getattr(self.table, name)) for name in self.table.fixed}


class SavedObjects(NamedTuple):
    """The parts that hang on the objects of a checkpoint."""

    tables: list[LocatedTable]  # the tables in the order of their paths
    variables: dict[str, Any]  # all variables, by their paths
    optimizers: list[keras.optimizers.Optimizer]  # the optimizers of Keras
    iterators: list[str]  # paths of iterators of `tf.data`
    others: list[str]  # paths of all other objects that have something to save, including iterators


def find(root: tf.train.Checkpoint) -> SavedObjects:
    """Searches all objects that `tf.train.Checkpoint` would write, the nearest first."""
    view = tf.train.TrackableView(root)
    paths: dict[int, str] = {id(root): ""}
    waiting: deque[Any] = deque([root])
    found = SavedObjects([], {}, [], [], [])
    while waiting:
        each = waiting.popleft()
        path = paths[id(each)]
        if isinstance(each, BaseTable):
            found.tables.append(LocatedTable(path, each))
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
