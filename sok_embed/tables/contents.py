"""The contents of a table, in the forms in which they are saved.

There are three forms: entries of Keras' HDF5 files, tensors of a trackable, and tensors of a saver
of `tf.compat.v1.train`. In each form a tensor has the name of its field in `tf_ops.Export` or
`tf_ops.AdaptiveExport`, after a prefix. A file that lacks some of them is refused before anything
is loaded.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.keras_bridge import callers

Contents = TypeVar("Contents", tf_ops.Export, tf_ops.AdaptiveExport)

# The name of the only field of a table on disk, whose rows stay in its storage: its path and id.
STORAGE = "storage"


# True while rows of tables are written to other files than those of `tf.train.Checkpoint`.
_apart: ContextVar[bool] = ContextVar("sok_embed_rows_apart", default=False)


@contextlib.contextmanager
def rows_apart() -> Iterator[None]:
    """Makes `tf.train.Checkpoint` write and read everything except the contents of tables."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


def are_apart() -> bool:
    """Returns whether `tf.train.Checkpoint` must get nothing from trackables with rows."""
    return _apart.get()


# True while SavedModels are written with the whole contents of tables, not with vectors alone.
_whole_in_saved_models: ContextVar[bool] = ContextVar(
    "sok_embed_whole_in_saved_models", default=False
)


@contextlib.contextmanager
def whole_saved_models() -> Iterator[None]:
    """Makes SavedModels carry the whole contents of tables, for a function in them that trains.

    Without it they have only the keys and vectors that serving needs, and no slots, update counts,
    times and counts of admissions. Files of Keras and `tf.train.Checkpoint` always have all of
    these.

    Example:
    >>> module = tf.Module()
    >>> with whole_saved_models():
    ...     tf.saved_model.save(module, "to_train_on")
    """
    token = _whole_in_saved_models.set(True)
    try:
        yield
    finally:
        _whole_in_saved_models.reset(token)


def are_vectors_alone() -> bool:
    """Returns whether a SavedModel is being written that gets only vectors of tables."""
    return not _whole_in_saved_models.get() and callers.writing_saved_model()


# While one worker writes a file for all: the function that returns the contents of a table on all
# workers.
_of_all_workers: ContextVar[Callable[[Any], Any] | None] = ContextVar(
    "sok_embed_contents_of_all_workers", default=None
)


@contextlib.contextmanager
def of_all_workers(contents: Callable[[Any], Any]) -> Iterator[None]:
    """Makes Keras files take the contents of each table from `contents(table)`."""
    token = _of_all_workers.set(contents)
    try:
        yield
    finally:
        _of_all_workers.reset(token)


def are_of_all_workers() -> bool:
    """Returns whether files are being written with the contents of all workers."""
    return _of_all_workers.get() is not None


def whole_contents(table: Any) -> Any:
    """Returns a table's contents for a Keras file: an `Export` with slots, or `AdaptiveExport`."""
    of_all_workers = _of_all_workers.get()
    if of_all_workers is not None:
        return of_all_workers(table)
    return table.snapshot()


def entries(kind: type[Contents], prefix: str) -> list[str]:
    """Returns the names of the entries in a Keras file."""
    return [f"{prefix}{name}" for name in kind.names()]


def save(store: Any, prefix: str, contents: Contents) -> None:
    """Adds the contents of a table to the store that Keras passes to `save_own_variables`.

    Args:
        store: The store of arrays, by name.
        prefix: The prefix of the entries.
        contents: The contents, as NumPy arrays.
    """
    for name, value in contents.by_name().items():
        # HDF5 has no type for the bytes that a string tensor holds.
        store[f"{prefix}{name}"] = (
            np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
        )


def load(store: Any, prefix: str, kind: type[Contents]) -> Contents:
    """Returns the NumPy arrays that `save` has added."""
    arrays = {name: np.asarray(store[f"{prefix}{name}"]) for name in kind.names()}
    return kind.from_names(
        {
            name: value.tobytes() if name.endswith("rule") else value
            for name, value in arrays.items()
        }
    )


def check_whole(
    what: str, saved: Collection[str], kind: type[Contents], prefixes: Sequence[str]
) -> None:
    """Raises ValueError for a file that has some fields of a table and lacks others."""
    for prefix in prefixes:
        names = entries(kind, prefix)
        missing = [name for name in names if name not in saved]
        if missing and len(missing) < len(names):
            raise ValueError(
                f"{what}: expected all contents of a table, with the entries {', '.join(names)}. "
                f"Received: a file without {', '.join(missing)}, as an earlier version of "
                "sok-embed writes it, or another program. Load it with that version, and bring "
                "the rows over by `table.export()` there and `table.assign` here."
            )


def storage_tensors(path: Any) -> dict[str, tf.Tensor]:
    """Returns the entries of a table on disk, which take the place of its rows.

    Args:
        path: The path and the id of the storage, as bytes or a string tensor.
    """
    return {STORAGE: path if tf.is_tensor(path) else tf.constant(os.fsencode(path))}


def warn_of_later_steps(table: Any, what: str, steps: int) -> None:
    """Warns if dense weights that are loaded are older than the rows on disk.

    `steps` are those of the table when the dense weights were saved.
    """
    now = int(table.step_count())
    if steps != now and table.size():
        warnings.warn(
            f"{what}: expected rows in {table.storage!r} after {steps} steps of training, as "
            f"the dense weights are. Received: rows after {now} steps, which do not fit these "
            "weights. To keep rows with a file, save it by "
            "sok_embed.callbacks.ModelCheckpoint, or save a sok_embed.checkpoint.Checkpoint.",
            stacklevel=6,
        )


def warn_of_dropped(table: Any, given: tf_ops.Export) -> None:
    """Warns of what a restore has left out, since the table has another admission or clock."""
    if len(given.admission) and not table.counts_keys:
        warnings.warn(
            f"Table '{table.name}': expected no counts of an admission, since the table has no "
            "admission. Received: counts, which are dropped: every key gets a row.",
            stacklevel=3,
        )
    if table.spec.step_clock != (int(given.step_clock) >= 0):
        warnings.warn(
            f"Table '{table.name}': expected rows whose times are by a clock like the table's. "
            "Received: steps for seconds, or seconds for steps. All rows count as updated now.",
            stacklevel=3,
        )
