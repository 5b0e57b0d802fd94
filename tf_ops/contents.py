"""Ops on the contents of a table: exports, captures, rows set and removed, counters and figures.

They have the keys of `tf_ops/tables.py`, and work where those ops do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sok_embed.tf_ops.native import ops
from sok_embed.tf_ops.served import ServedRows, as_int64


class Export(NamedTuple):
    """The contents of a table of n rows, in no particular order.

    Attributes:
        keys: int64 `[n]`.
        embeddings: float32 `[n, dim]`.
        slots: float32 `[n, slot_floats]`, or `[0, 0]`.
        update_nums: int64 `[n]`, the number of commits that changed each row, or `[0]`.
        update_times: int64 `[n]`, the time of the last of these commits, or of when the row was
            made, or `[0]`: in seconds since 1970; for a table with `step_clock`, in its steps.
        slot_start: float32 `[slot_floats]`, the slots of a new row, or `[0]`.
        rule: string scalar, the name of the row optimizer, empty before the first commit.
        steps: int64 scalar, the commits so far.
        step_clock: int64 scalar, the current time of a table with `step_clock`; -1: times are in
            seconds.
        admission: uint8 `[k]`, the counts of the table's admission, and its config; `[0]` without
            an admission or without slots.
    """

    keys: tf.Tensor
    embeddings: tf.Tensor
    slots: tf.Tensor
    update_nums: tf.Tensor
    update_times: tf.Tensor
    slot_start: tf.Tensor
    rule: tf.Tensor
    steps: tf.Tensor
    step_clock: tf.Tensor
    admission: tf.Tensor

    @property
    def parts(self) -> tuple[Export, ...]:
        """The contents of each part of a table; this kind has one part."""
        return (self,)

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of all tensors."""
        return list(cls._fields)

    def by_name(self) -> dict[str, Any]:
        """Returns all tensors by their names."""
        return self._asdict()

    @classmethod
    def from_names(cls, tensors: Mapping[str, Any]) -> Export:
        """Returns the contents from the result of `by_name`."""
        return cls(*(tensors[name] for name in cls._fields))


def export(table: tf.Tensor, dim: int, with_slots: bool) -> Export:
    """Copies all rows, as they are between two commits."""
    return Export(*ops.sok_embed_export(table=table, dim=dim, with_slots=with_slots))


class ExportedPiece(NamedTuple):
    """Some rows of a table, and all its other contents.

    Attributes:
        size: int64 scalar, the rows of the whole table.
        contents: An `Export` of the rows of the piece.
    """

    size: tf.Tensor
    contents: Export


def export_piece(
    table: tf.Tensor, dim: int, begin: int, rows: int, *, with_admission: bool = False
) -> ExportedPiece:
    """Copies some rows: each row is in exactly one piece, if the table does not change meanwhile.

    Args:
        table: A handle. For a table in a storage, every piece scans all rows.
        dim: The length of a row.
        begin: The first row, in an order that the table chooses.
        rows: The number of rows; rows beyond the last one are left out.
        with_admission: True if the piece has the counters of an admission.
    """
    size, *fields = ops.sok_embed_export_piece(
        table=table, begin=begin, rows=rows, dim=dim, with_admission=with_admission
    )
    return ExportedPiece(size, Export(*fields))


class BegunCapture(NamedTuple):
    """The contents of a table except its rows, which are in a `_core.Capture`.

    Attributes:
        capture: int64 scalar, the number that `_core.Capture` takes.
        slot_start: float32 `[slot_floats]`, the slots of a new row.
        rule: A string scalar, the name of the row optimizer; empty before the first commit.
        steps: int64 scalar, the commits so far.
        step_clock: int64 scalar, the time of the clock if it counts steps, else -1.
        admission: uint8 `[bytes]`, the counts of an admission.
    """

    capture: tf.Tensor
    slot_start: tf.Tensor
    rule: tf.Tensor
    steps: tf.Tensor
    step_clock: tf.Tensor
    admission: tf.Tensor


def begin_capture(table: tf.Tensor, mark: int = 0, since: int = 0, reader: int = 0) -> BegunCapture:
    """Begins a capture of a table in memory, which may change meanwhile.

    Args:
        table: A handle.
        mark: The number of the captured state, since which a later capture may take changes, if
            this one is kept; 0: no later one will.
        since: The number of a state that was captured and kept before: the capture has only rows
            that were made or changed since then, and removed keys. 0: all rows.
        reader: The reader to which these numbers belong: 0 for checkpoints, 1 for publications.
            Each gets all changes since its own last state.

    Raises:
        FailedPreconditionError: If another capture of the table is in progress, or the changes
            since that state are not known.
    """
    return BegunCapture(
        *ops.sok_embed_begin_capture(table=table, mark=mark, since=since, reader=reader)
    )


def checked(contents: Any) -> dict[str, Any]:
    """Returns the tensors of an export by name; raises for keys, counts and times that are floats.

    They would be rounded.

    Args:
        contents: An `Export` or an `AdaptiveExport`.
    """
    tensors: dict[str, Any] = contents.by_name()
    for name, value in tensors.items():
        if name.endswith(("keys", "update_nums", "update_times", "steps", "step_clock")):
            dtype = tf.as_dtype(value.dtype if tf.is_tensor(value) else np.asarray(value).dtype)
            if not dtype.is_integer:
                raise ValueError(f"Expected {name} to be integers. Received: dtype {dtype.name}.")
    return tensors


def restore(table: tf.Tensor, contents: Export) -> tf.Operation | None:
    """Replaces all contents of the table by an export with slots.

    Rows keep the times of their updates, and a `step_clock` continues from its saved time. Times in
    seconds that are in the future are set to now, since the clocks of machines differ. If only one
    of the two tables has a `step_clock`, all rows count as updated now, and a warning is logged;
    also if there are counts of an admission, and this table has none.

    Raises:
        ValueError: For keys, counts and times that are not integers.
        tf.errors.InvalidArgumentError: If the contents do not fit this table, have counts of
            another admission, or cannot come from training. The table is left unchanged.
        tf.errors.DataLossError: If the counts of the admission are damaged, likewise.
    """
    return ops.sok_embed_restore(table=table, **checked(contents))


def check_restore(table: tf.Tensor, contents: Export) -> tf.Operation | None:
    """Raises the errors that `restore` would raise, and changes nothing."""
    return ops.sok_embed_restore(table=table, mode="check", **checked(contents))


def add_rows(table: tf.Tensor, contents: Export) -> tf.Operation | None:
    """Adds rows to the existing ones, to restore contents that come in pieces.

    The first piece is given to `restore`, and may have no rows; the other pieces must have the same
    rule and clock.

    Raises:
        ValueError: For keys, counts and times that are not integers.
        tf.errors.InvalidArgumentError: As `restore` raises, and for a key that has a row. No row of
            the piece is added.
        tf.errors.ResourceExhaustedError: If the table would have too many rows, likewise.
    """
    return ops.sok_embed_restore(table=table, mode="add", **checked(contents))


def assign(table: tf.Tensor, keys: tf.Tensor, embeddings: tf.Tensor) -> tf.Operation | None:
    """Sets embeddings `[n, dim]` of keys `[n]`. Of equal keys the last one is used."""
    return ops.sok_embed_assign(table=table, keys=keys, embeddings=embeddings)


class WholeRows(NamedTuple):
    """Rows with their slots.

    Attributes:
        keys: The keys that have a row, int64 `[m]`.
        rows: float32 `[m, dim + slot_floats]`, each an embedding and its slots.
    """

    keys: tf.Tensor
    rows: tf.Tensor


def read_rows(table: tf.Tensor, keys: tf.Tensor, dim: int, slot_floats: int) -> WholeRows:
    """Reads the existing rows of distinct keys `[n]`, with their slots; makes no rows.

    Args:
        table: A handle.
        keys: int64 `[n]`.
        dim: The length of an embedding.
        slot_floats: The number of floats of the slots of a row.

    Raises:
        tf.errors.FailedPreconditionError: If rows of the table have other slots.
    """
    return WholeRows(
        *ops.sok_embed_read_rows(table=table, keys=keys, dim=dim, slot_floats=slot_floats)
    )


def assign_rows(table: tf.Tensor, keys: tf.Tensor, rows: tf.Tensor) -> tf.Operation | None:
    """Sets the rows of keys, with their slots. Of equal keys the last one is used.

    Args:
        table: A handle.
        keys: int64 `[n]`.
        rows: float32 `[n, dim + slot_floats]`.

    Raises:
        tf.errors.FailedPreconditionError: If rows of the table have other slots.
    """
    return ops.sok_embed_assign(table=table, keys=keys, embeddings=rows, with_slots=True)


def remove(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Removes the rows of keys `[n]`. Returns how many there were, an int64 scalar."""
    return ops.sok_embed_remove(table=table, keys=keys)


class RemovedKeys(NamedTuple):
    """Keys whose rows have been removed.

    Attributes:
        keys: int64 `[n]`, distinct, in no particular order. They have no row now.
        complete: A bool scalar, whether these are all keys whose rows have been removed since the
            last call. `False`: `keys` is empty, since more rows were removed than could be
            recorded, or all rows were replaced, or this is the first call.
    """

    keys: tf.Tensor
    complete: tf.Tensor


def removed_keys(table: tf.Tensor, limit: int) -> RemovedKeys:
    """Returns the keys whose rows were removed since the last call.

    The first call starts recording.

    Args:
        table: A handle.
        limit: The largest number of keys that are recorded from now on. Each takes 8 bytes, and up
            to 32 more for finding it. 0: stop recording.
    """
    return RemovedKeys(*ops.sok_embed_removed_keys(table=table, limit=limit))


class Metadata(NamedTuple):
    """The counters of keys, each of the shape of the keys.

    Attributes:
        exists: bool, whether there is a row.
        update_nums: int64, the number of commits that changed the row; 0 without a row.
        update_times: int64, the time of the last of these commits, or of when the row was made: in
            seconds since 1970; for a table with `step_clock`, in its steps; 0 without a row.
    """

    exists: tf.Tensor
    update_nums: tf.Tensor
    update_times: tf.Tensor


def metadata(table: tf.Tensor, keys: tf.Tensor) -> Metadata:
    """Returns which keys, of any shape, have a row, and the rows' counters. Makes no rows."""
    return Metadata(*ops.sok_embed_metadata(table=table, keys=keys))


def exists(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Returns which keys, of any shape, have a row: bool of the same shape. Makes no rows."""
    if isinstance(table, ServedRows):
        return table.find(as_int64(keys))[1]
    return metadata(table, keys).exists


def prefetch(table: tf.Tensor, keys: tf.Tensor, later: bool = False) -> tf.Operation | None:
    """Reads rows of a storage into its cache, for lookups that will ask for them. Makes no rows.

    It runs beside lookups and steps, whose results are those without it. Of a table in memory it
    reads nothing.

    Args:
        table: A handle.
        keys: int32, int64 or uint64 of any shape. Keys without a row are searched for in vain.
        later: True if the keys are only noted; the next call with `False` reads their rows too.

    Returns:
        The operation, which ends when the rows have been read; eagerly `None`. A row that cannot be
        read is an error of the lookup that needs it.
    """
    return ops.sok_embed_prefetch(table=table, keys=keys, later=later)


def list_keys(table: tf.Tensor, part: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the keys of the rows in one part of a table in memory, and the number of parts.

    A key is in the same part for as long as the table lives.

    Args:
        table: A handle.
        part: The number of the part, in [0, parts).

    Returns:
        int64 `[n]`, ascending as uint64, and an int64 scalar.
    """
    keys, parts = ops.sok_embed_list_keys(table=table, part=part)
    return keys, parts


def size(table: tf.Tensor) -> tf.Tensor:
    """Returns the number of rows, an int64 scalar."""
    return ops.sok_embed_size(table=table)


def steps(table: tf.Tensor) -> tf.Tensor:
    """Returns the number of commits that found gradients, an int64 scalar."""
    return ops.sok_embed_steps(table=table)


def stats(table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the names (string `[k]`) and the values (int64 `[k]`) of a table's figures."""
    names, values = ops.sok_embed_stats(table=table)
    return names, values
