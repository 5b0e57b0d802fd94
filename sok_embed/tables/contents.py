"""The contents of a table, in the forms in which they are saved.

There are three: entries of Keras' HDF5 files, tensors of a trackable, and tensors of a saver of
`tf.compat.v1.train`. `tf_ops.Export` and `tf_ops.AdaptiveExport` name their tensors; in each form a
tensor has its name there, behind a prefix. All of them are needed: files without some of them are
refused before anything is loaded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.keras_bridge import callers

Contents = TypeVar("Contents", tf_ops.Export, tf_ops.AdaptiveExport)

# The field of a table on disk, whose rows stay in its storage: the path and the id.
STORAGE = "storage"


# Whether the rows of tables are written elsewhere than by `tf.train.Checkpoint`.
_apart: ContextVar[bool] = ContextVar("sok_embed_rows_apart", default=False)


@contextlib.contextmanager
def rows_apart() -> Iterator[None]:
    """Has `tf.train.Checkpoint` write and read everything but what tables hold."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


def are_apart() -> bool:
    """Returns whether trackables with rows are to give `tf.train.Checkpoint` nothing."""
    return _apart.get()


# Whether SavedModels are written with all that tables hold, and not with vectors alone.
_whole_in_saved_models: ContextVar[bool] = ContextVar(
    "sok_embed_whole_in_saved_models", default=False
)


@contextlib.contextmanager
def whole_saved_models() -> Iterator[None]:
    """Has SavedModels carry all that tables hold, for a function in them that trains.

    Without it they have the keys and vectors that serving needs: slots, update counts, times and
    what was counted for newcomers stay behind. Files of Keras and `tf.train.Checkpoint` always have
    them.

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
    """Returns whether a SavedModel is being written, which is to have vectors alone of tables."""
    return not _whole_in_saved_models.get() and callers.writing_saved_model()


# The function for the contents of a table on all workers, while one writes a file for all.
_of_all_workers: ContextVar[Callable[[Any], Any] | None] = ContextVar(
    "sok_embed_contents_of_all_workers", default=None
)


@contextlib.contextmanager
def of_all_workers(contents: Callable[[Any], Any]) -> Iterator[None]:
    """Has Keras files take the contents of tables from a function, with a table as its argument."""
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
    """Adds what a table holds to the store that Keras hands to `save_own_variables`.

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
    """Takes out what `save` has added: NumPy arrays."""
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
    """Raises ValueError for a file that has some fields of a table and lacks others.

    Args:
        what: The name of the object that is loaded, as it begins the message.
        saved: The entries of the file.
        kind: The kind of contents.
        prefixes: The prefix of the entries of each table.
    """
    for prefix in prefixes:
        names = entries(kind, prefix)
        missing = [name for name in names if name not in saved]
        if missing and len(missing) < len(names):
            raise ValueError(
                f"{what}: expected all that a table holds, with the entries {', '.join(names)}. "
                f"Received: a file without {', '.join(missing)}, as an earlier version of "
                "sok-embed writes it, or another program. Load it with that version, and bring the "
                "rows over by `table.export()` there and `table.assign` here."
            )


def storage_tensors(path: Any) -> dict[str, tf.Tensor]:
    """Returns the entries of a table on disk, which replace those of its rows.

    Args:
        path: Bytes that say where they are, or a string tensor.
    """
    return {STORAGE: path if tf.is_tensor(path) else tf.constant(os.fsencode(path))}
