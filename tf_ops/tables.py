"""Ops on a table: its handle, lookups, training, contents.

All of them work eagerly, in a `tf.function` and in a TF1 graph. Keys are int32, int64 or uint64;
the same 64 bits are the same key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sok_embed.tf_ops.measuring import note_deposit
from sok_embed.tf_ops.native import number_in_graph, on_cpu, ops
from sok_embed.tf_ops.served import ServedRows, as_int64

# The length of an anchor whose gradient names deposits: kAnchorSize in tickets.h of the core.
ANCHOR_SIZE = 192
# So many of its last elements have the norm of what was deposited.
ANCHOR_COORDINATES = 64
# The marks of deposits are multiples of each other by powers of 2 to this: kMarkStep in tickets.h.
ANCHOR_MARK_STEP = 16


def table_handle(shared_name: str, dim: int, **attributes: Any) -> tf.Tensor:
    """Returns the table of a name, made at the first call: for TF1 graphs, which capture no handle.

    Args:
        shared_name: The name in TensorFlow's resource manager.
        dim: The length of a row.
        **attributes: `initializer` (`"constant"`, `"uniform"`, `"normal"`, `"truncated_normal"`)
            with its numbers `initializer_a` and `initializer_b`, `seed`, `max_rows` (0: no limit),
            `direct`, `owners`, `owner`, `shards` (the number of parts that rows in memory are in,
            by key, which threads work on side by side; 0: as many as suit the machine),
            `row_dtype` and `slot_dtype` (the types that embeddings and slots lie as,
            `"float32"`, `"bfloat16"`, `"float16"` or `"int8"`, for slots the first two),
            `eviction` (`"lru"`, `"lfu"`, `"max_age"`, `"min_norm"`; empty: none) with
            `eviction_max_age` in ticks of the table's clock, `eviction_min_l2` and
            `eviction_every`, `step_clock` (rows note the table's step of their last update, and not
            the second), `gpu` (the number of the GPU whose memory the rows lie in; -1: the host's)
            with `max_bytes` of that memory (0: what it has) and `gpu_optional` (rows lie in the
            host's memory without such a GPU).

    Returns:
        A scalar resource tensor, on the CPU.
    """
    with on_cpu():
        return ops.sok_embed_table_handle(shared_name=shared_name, dim=dim, **attributes)


def anonymous_table(table_name: str, dim: int, **attributes: Any) -> tf.Tensor:
    """Makes a table, which goes with `release` or the last copy of its handle.

    Its arguments are those of `table_handle`.
    """
    with on_cpu():
        return ops.sok_embed_anonymous_table(table_name=table_name, dim=dim, **attributes)


def release(handle: tf.Tensor) -> None:
    """Lets an anonymous table, adaptive table or queue go, though there are copies of its handle.

    Ops that run at that moment end as they would. Those that are run later with a copy of the
    handle raise a `tf.errors.FailedPreconditionError`.
    """
    with on_cpu():
        ops.sok_embed_release(owned=handle)


class Lookup(NamedTuple):
    """The result of a lookup.

    Attributes:
        embeddings: `keys.shape + [dim]`.
        receipt: A scalar variant that `deposit` takes. It means nothing outside of this process.
            `None` in a graph for serving.
    """

    embeddings: tf.Tensor
    receipt: tf.Tensor | None


def lookup(
    table: tf.Tensor,
    keys: tf.Tensor,
    dim: int,
    make_rows: bool,
    dtype: tf.DType = tf.float32,
    anchor: tf.Tensor | None = None,
    counts: tf.Tensor | None = None,
    reports: bool = False,
    device: str | None = None,
) -> Lookup:
    """Reads the embeddings of keys.

    The gradient of the embeddings goes to `anchor`, and deposits itself in the table on its way:
    see `deposit`.

    An admission counts the keys that have no row: this lookup does with `make_rows`, and otherwise
    the commit that applies its gradients, once for all gradients of the lookup.

    Args:
        table: A handle.
        keys: The keys, of any shape.
        dim: The length of a row of this table.
        make_rows: True if a key without a row gets one. Either way its embedding is the one that
            training would start from.
        dtype: `tf.float32` or `tf.bfloat16`.
        anchor: float32, the variable that stands for the table: a vector of `ANCHOR_SIZE`, whose
            gradient names the deposits, or a scalar. `None`: there is no gradient.
        counts: int64 of the shape of the keys, at least 0: how many keys of a batch each stands
            for, by which an admission counts it. `None`: 1 each.
        reports: True if an error does not raise, since other workers wait for the rows: the rows
            are zeros, and `collection_answer` takes the error from the receipt.
        device: The name of the GPU, as TensorFlow has it, whose memory has the table's rows: keys
            and embeddings are there too. Not with `counts`, `reports`, an admission or an eviction.
            `None`: they are in the host's memory.

    Raises:
        tf.errors.ResourceExhaustedError: If the table is full, and not enough rows may be evicted.
            It is left as it was.
        tf.errors.InvalidArgumentError: For a key out of the range of a direct table, and for counts
            of another shape or below 0.
    """
    if isinstance(table, ServedRows):
        return Lookup(tf.cast(table.lookup(as_int64(keys)), dtype), None)
    if device is not None:
        return _lookup_on_gpu(table, as_int64(keys), dim, make_rows, dtype, anchor, device)
    return Lookup(
        *ops.sok_embed_lookup(
            table=table,
            keys=keys,
            anchor=0.0 if anchor is None else anchor,
            dtype=dtype,
            dim=dim,
            make_rows=make_rows,
            number=number_in_graph(),
            counts=[] if counts is None else [counts],
            reports=reports,
        )
    )


def _lookup_on_gpu(
    table: tf.Tensor,
    keys: tf.Tensor,
    dim: int,
    make_rows: bool,
    dtype: tf.DType,
    anchor: tf.Tensor | None,
    device: str,
) -> Lookup:
    with on_cpu():
        token = ops.sok_embed_table_token(table=table)
    with tf.device(device):
        found = Lookup(
            *ops.sok_embed_lookup_on_gpu(
                token=token,
                keys=keys,
                anchor=0.0 if anchor is None else anchor,
                dtype=dtype,
                dim=dim,
                make_rows=make_rows,
                number=number_in_graph(),
            )
        )
    if not tf.executing_eagerly():
        # A function runs ops on one handle in their order, and the lookup takes none: this one does
        # in its place, so that a later commit waits for it.
        with on_cpu(), tf.control_dependencies([found.embeddings.op]):
            ops.sok_embed_table_token(table=table)
    return found


@tf.RegisterGradient("SokEmbed>Lookup")
def _lookup_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[tf.Tensor | None]:
    deposited = deposit(op.outputs[1], upstream, marks=has_marks(op.inputs[2]))
    return [None, None, deposited, *[None] * (len(op.inputs) - 3)]


@tf.RegisterGradient("SokEmbed>LookupOnGpu")
def _lookup_on_gpu_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[tf.Tensor | None]:
    marks = has_marks(op.inputs[2])
    return [None, None, deposit_on_gpu(op.outputs[0].device, op.outputs[1], upstream, marks)]


def has_marks(anchor: tf.Tensor) -> bool:
    """Returns whether the gradient of an anchor names the deposits; that of a scalar does not."""
    return anchor.shape.rank == 1


def deposit(receipt: tf.Tensor, gradients: tf.Tensor, marks: bool = False) -> tf.Tensor:
    """Hands gradients to the table, which keeps them until a commit redeems them.

    Inside of a `tf.function` it runs only if its output is used.

    Args:
        receipt: The receipt of the lookup that the gradients belong to.
        gradients: The shape of the lookup's embeddings, float32 or bfloat16.
        marks: True if the anchor is a vector of `ANCHOR_SIZE`.

    Returns:
        The gradient of the anchor: a zero, or a vector that names this deposit to `commit`, by
        numbers of about 2**-54 of its norm, which is that of the gradients, summed by key. Vectors
        of several deposits add up to one with the norm of the sum.
    """
    anchor_gradient = ops.sok_embed_deposit(
        receipt=receipt, gradients=gradients, number=number_in_graph(), marks=marks
    )
    if marks:
        note_deposit(anchor_gradient)
    return anchor_gradient


def deposit_on_gpu(device: str, receipt: tf.Tensor, gradients: tf.Tensor, marks: bool) -> tf.Tensor:
    """Hands gradients to the table where the lookup ran, on a device: see `deposit`."""
    with tf.device(device):
        anchor_gradient = ops.sok_embed_deposit_on_gpu(
            receipt=receipt, gradients=gradients, number=number_in_graph(), marks=marks
        )
    if marks:
        note_deposit(anchor_gradient)
    return anchor_gradient


class Export(NamedTuple):
    """The contents of a table of n rows, in no order.

    Attributes:
        keys: int64 `[n]`.
        embeddings: float32 `[n, dim]`.
        slots: float32 `[n, slot_floats]`, or `[0, 0]`.
        update_nums: int64 `[n]`, the commits that touched each row, or `[0]`.
        update_times: int64 `[n]`, of the last of them, or of when the row was made, or `[0]`: in
            seconds since 1970, of a table with `step_clock` in its steps.
        slot_start: float32 `[slot_floats]`, what the slots of a new row hold, or `[0]`.
        rule: string scalar, the name of the row optimizer, empty before the first commit.
        steps: int64 scalar, the commits so far.
        step_clock: int64 scalar, the time that a table with `step_clock` has come to; -1: times are
            in seconds.
        admission: uint8 `[k]`, what the table's admission has counted, and its config; `[0]`
            without an admission or without slots.
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
        """The contents of each part of a table, of which there is one."""
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
        """Returns the contents that `by_name` was called of."""
        return cls(*(tensors[name] for name in cls._fields))


def export(table: tf.Tensor, dim: int, with_slots: bool) -> Export:
    """Copies all rows out, as they are between two commits."""
    return Export(*ops.sok_embed_export(table=table, dim=dim, with_slots=with_slots))


class ExportedPiece(NamedTuple):
    """Some rows of a table, and all else that it holds.

    Attributes:
        size: int64 scalar, the rows of the whole table.
        contents: An `Export` of the rows of the piece.
    """

    size: tf.Tensor
    contents: Export


def export_piece(
    table: tf.Tensor, dim: int, begin: int, rows: int, *, with_admission: bool = False
) -> ExportedPiece:
    """Copies some rows out: each of them is in one piece, if the table does not change meanwhile.

    Args:
        table: A handle. Of one in a storage, every piece takes a walk through all rows.
        dim: The length of a row.
        begin: The first row, in an order of the table's own.
        rows: The number of rows; those beyond the last are left out.
        with_admission: True if the piece has the counters of an admission.
    """
    size, *fields = ops.sok_embed_export_piece(
        table=table, begin=begin, rows=rows, dim=dim, with_admission=with_admission
    )
    return ExportedPiece(size, Export(*fields))


class BegunCapture(NamedTuple):
    """The contents of a table beside its rows, which `_core.Capture` has.

    Attributes:
        capture: int64 scalar, the number that `_core.Capture` takes.
        slot_start: float32 `[slot_floats]`, what the slots of a new row hold.
        rule: A string scalar, the row optimizer's; empty before the first commit.
        steps: int64 scalar, the commits so far.
        step_clock: int64 scalar, what the clock shows if it counts steps, else -1.
        admission: uint8 `[bytes]`, what an admission has counted.
    """

    capture: tf.Tensor
    slot_start: tf.Tensor
    rule: tf.Tensor
    steps: tf.Tensor
    step_clock: tf.Tensor
    admission: tf.Tensor


def begin_capture(table: tf.Tensor, mark: int = 0, since: int = 0, reader: int = 0) -> BegunCapture:
    """Begins a capture of a table in memory, which goes on changing meanwhile.

    Args:
        table: A handle.
        mark: The number of the state that is captured, from which later captures may start, if this
            one is kept; 0: none will.
        since: The number of the state that was captured and kept before: only rows that were made
            or changed since then, and keys that went. 0: all rows.
        reader: The reader that has these numbers: 0 for checkpoints, 1 for publications. Each has
            all changes since its own last state.

    Raises:
        FailedPreconditionError: If another capture of the table goes on, or changes since that
            state are not known.
    """
    return BegunCapture(
        *ops.sok_embed_begin_capture(table=table, mark=mark, since=since, reader=reader)
    )


def checked(contents: Any) -> dict[str, Any]:
    """Returns the tensors of an export by name; raises for keys, counts and times that are floats.

    They would be rounded.

    Args:
        contents: An `Export` or an `AdaptiveExport`.

    Raises:
        ValueError: With the name of the first tensor that should hold integers and does not.
    """
    tensors: dict[str, Any] = contents.by_name()
    for name, value in tensors.items():
        if name.endswith(("keys", "update_nums", "update_times", "steps", "step_clock")):
            dtype = tf.as_dtype(value.dtype if tf.is_tensor(value) else np.asarray(value).dtype)
            if not dtype.is_integer:
                raise ValueError(f"Expected {name} to be integers. Received: dtype {dtype.name}.")
    return tensors


def restore(table: tf.Tensor, contents: Export) -> tf.Operation | None:
    """Replaces everything in the table by an export with slots.

    Rows keep the times of their updates, and a `step_clock` goes on from where it stood. Times in
    seconds that lie in the future become now, since the clocks of machines differ. If only one of
    the two tables has a `step_clock`, all rows count as updated now, and a warning is logged; also
    if there are counts of an admission, and this table has none.

    Raises:
        ValueError: For keys, counts and times that are not integers.
        tf.errors.InvalidArgumentError: If it does not fit this table, has counts of another
            admission, or holds what no training leaves. The table is left as it was.
        tf.errors.DataLossError: If the counts of the admission are damaged, likewise.
    """
    return ops.sok_embed_restore(table=table, **checked(contents))


def check_restore(table: tf.Tensor, contents: Export) -> tf.Operation | None:
    """Raises what `restore` would, and changes nothing."""
    return ops.sok_embed_check_restore(table=table, **checked(contents))


def add_rows(table: tf.Tensor, contents: Export) -> tf.Operation | None:
    """Takes up rows beside those that there are: a restore of contents that come in pieces.

    The first piece is for `restore`, and may have no rows; rule and clock of the others are those
    of the first.

    Raises:
        ValueError: For keys, counts and times that are not integers.
        tf.errors.InvalidArgumentError: As `restore`, and for a key that has a row. Nothing of the
            piece is taken up.
        tf.errors.ResourceExhaustedError: If the table would have too many rows, likewise.
    """
    return ops.sok_embed_add_rows(table=table, **checked(contents))


def assign(table: tf.Tensor, keys: tf.Tensor, embeddings: tf.Tensor) -> tf.Operation | None:
    """Sets embeddings `[n, dim]` of keys `[n]`. Of equal keys the last one counts."""
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
    """Reads the rows of distinct keys `[n]` that have one, with their slots; makes no rows.

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
    """Sets the rows of keys, with their slots. Of equal keys the last one counts.

    Args:
        table: A handle.
        keys: int64 `[n]`.
        rows: float32 `[n, dim + slot_floats]`.

    Raises:
        tf.errors.FailedPreconditionError: If rows of the table have other slots.
    """
    return ops.sok_embed_assign_rows(table=table, keys=keys, rows=rows)


def remove(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Removes the rows of keys `[n]`. Returns how many there were, an int64 scalar."""
    return ops.sok_embed_remove(table=table, keys=keys)


class RemovedKeys(NamedTuple):
    """Keys whose rows have gone.

    Attributes:
        keys: int64 `[n]`, distinct, in no order. They have no row now.
        complete: A bool scalar, whether they are all whose rows have gone since the call before.
            `False`: there are none, and more have gone than were to be noted, or all rows have been
            replaced, or this is the first call.
    """

    keys: tf.Tensor
    complete: tf.Tensor


def removed_keys(table: tf.Tensor, limit: int) -> RemovedKeys:
    """Returns the keys whose rows have gone since the call before. The first begins to note them.

    Args:
        table: A handle.
        limit: The most keys that are noted from now on, which take 8 bytes each, and up to 32 more
            to find them by. 0: nothing is noted any more.
    """
    return RemovedKeys(*ops.sok_embed_removed_keys(table=table, limit=limit))


class Metadata(NamedTuple):
    """The counters of keys, each of the shape of the keys.

    Attributes:
        exists: bool, whether there is a row.
        update_nums: int64, the commits that touched the row; 0 without one.
        update_times: int64, of the last of them, or of when the row was made: in seconds since
            1970, of a table with `step_clock` in its steps; 0 without a row.
    """

    exists: tf.Tensor
    update_nums: tf.Tensor
    update_times: tf.Tensor


def metadata(table: tf.Tensor, keys: tf.Tensor) -> Metadata:
    """Says which keys, of any shape, have a row, and returns its counters. Makes no rows."""
    return Metadata(*ops.sok_embed_metadata(table=table, keys=keys))


def exists(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Says which keys, of any shape, have a row: bool of their shape. Makes no rows."""
    if isinstance(table, ServedRows):
        return table.find(as_int64(keys))[1]
    return metadata(table, keys).exists


def list_keys(table: tf.Tensor, part: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the keys of the rows in one part of a table in memory, and how many parts there are.

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
    """Returns names, string `[k]`, and values, int64 `[k]`, of a table's figures."""
    names, values = ops.sok_embed_stats(table=table)
    return names, values
