"""Ops on a table: its handle, lookups and their gradients.

All of them work eagerly, in a `tf.function` and in a TF1 graph. Keys are int32, int64 or uint64;
the same 64 bits are the same key.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sok_embed.binding.spec_text import spec_text

# Pickles of earlier versions look for these classes in this module.
from sok_embed.tf_ops.contents import (  # noqa: F401
    BegunCapture,
    Export,
    ExportedPiece,
    Metadata,
    RemovedKeys,
    WholeRows,
)
from sok_embed.tf_ops.measuring import note_deposit
from sok_embed.tf_ops.native import on_cpu, ops
from sok_embed.tf_ops.served import ServedRows, as_int64

ANCHOR_SIZE = 192
"""The length of an anchor whose gradient identifies deposits: kAnchorSize of tickets.h."""
ANCHOR_COORDINATES = 64
"""The number of its last elements, which hold the norm of the deposited gradients."""
ANCHOR_MARK_STEP = 16
"""The ratio of two marks of deposits is a power of 2 to this number: kMarkStep of tickets.h."""

_numbers = itertools.count(1)


def table_handle(shared_name: str, dim: int, **attributes: Any) -> tf.Tensor:
    """Returns the table with a name, which the first call makes.

    This is for TF1 graphs, which cannot capture a handle.

    Args:
        shared_name: The name in TensorFlow's resource manager.
        dim: The length of a row.
        **attributes: The other fields of `TableSpec` in the core's `tables/table_spec.h`, which has
            their defaults: `initializer` (`"constant"`, `"uniform"`, `"normal"`,
            `"truncated_normal"`) with its numbers `initializer_a` and `initializer_b`, `seed`,
            `max_rows` (0: no limit), `direct`, `owners`, `owner`, `shards`, `eviction` (`"lru"`,
            `"lfu"`, `"max_age"`, `"min_norm"`; empty: none) with `eviction_max_age` in ticks of the
            table's clock, `eviction_min_l2` and `eviction_every`, `step_clock`, `row_dtype` and so
            on.

    Returns:
        A scalar resource tensor, on the CPU.
    """
    with on_cpu():
        return ops.sok_embed_table_handle(shared_name=shared_name, spec=spec_of(dim, attributes))


def anonymous_table(table_name: str, dim: int, **attributes: Any) -> tf.Tensor:
    """Makes a table, which lives until `release` or until the last copy of its handle is gone.

    It has the same arguments as `table_handle`.
    """
    with on_cpu():
        return ops.sok_embed_anonymous_table(table_name=table_name, spec=spec_of(dim, attributes))


def spec_of(dim: int, attributes: Mapping[str, Any]) -> str:
    """Returns the attribute `spec` of an op. Its numbers are those of the core, float32."""
    with np.errstate(over="ignore"):
        rounded = {
            name: float(np.float32(value)) if isinstance(value, float) else value
            for name, value in attributes.items()
        }
    return spec_text(dim, rounded)


def release(handle: tf.Tensor) -> None:
    """Destroys an anonymous table, adaptive table or queue, even if copies of its handle exist.

    Ops that are running end normally. Later ops with a copy of the handle raise a
    `tf.errors.FailedPreconditionError`.
    """
    with on_cpu():
        ops.sok_embed_release(owned=handle)


class Lookup(NamedTuple):
    """The result of a lookup.

    Attributes:
        embeddings: `keys.shape + [dim]`.
        receipt: A scalar variant that `deposit` takes. It means nothing outside of this process.
            `None` in a graph for serving, and on a GPU.
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
) -> Lookup:
    """Reads the embeddings of keys.

    The gradient of the embeddings goes to `anchor`, and is deposited in the table on the way: see
    `deposit`.

    An admission counts the keys without a row: with `make_rows` this lookup counts them; otherwise
    the commit that applies its gradients does, once for all gradients of the lookup.

    Args:
        table: A handle.
        keys: The keys, of any shape.
        dim: The length of a row of this table.
        make_rows: True if a key without a row gets one. Either way its embedding is the one from
            which training would start.
        dtype: `tf.float32` or `tf.bfloat16`.
        anchor: float32, the variable that stands for the table: a vector of `ANCHOR_SIZE`, whose
            gradient identifies the deposits, or a scalar. `None`: there is no gradient.
        counts: int64 of the shape of the keys, at least 0: how many keys of a batch each key
            represents, as an admission counts them. `None`: 1 each.
        reports: True if an error is not raised, since other workers wait for the rows: the rows are
            zeros, and `collection_answer` takes the error from the receipt.

    Raises:
        tf.errors.ResourceExhaustedError: If the table is full, and not enough rows may be evicted.
            It is left as it was.
        tf.errors.InvalidArgumentError: For a key out of the range of a direct table, and for counts
            of another shape or below 0.
    """
    if isinstance(table, ServedRows):
        return Lookup(tf.cast(table.lookup(as_int64(keys)), dtype), None)
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


@tf.RegisterGradient("SokEmbed>Lookup")
def _lookup_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[tf.Tensor | None]:
    deposited = deposit(op.outputs[1], upstream, marks=has_marks(op.inputs[2]))
    return [None, None, deposited, *[None] * (len(op.inputs) - 3)]


def number_in_graph() -> int:
    """Returns the number of the next op in a graph, by the order in which ops are made.

    Returns:
        The number; 0 in eager execution, which needs no numbers.
    """
    return 0 if tf.executing_eagerly() else next(_numbers)


def has_marks(anchor: tf.Tensor) -> bool:
    """Returns whether the gradient of an anchor identifies the deposits.

    A scalar gradient does not.
    """
    return anchor.shape.rank == 1


def deposit(
    receipt: tf.Tensor, gradients: tf.Tensor, marks: bool = False, device: str | None = None
) -> tf.Tensor:
    """Gives gradients to the table, which keeps them until a commit redeems them.

    In a `tf.function` it runs only if its output is used.

    Args:
        receipt: The receipt of the lookup to which the gradients belong.
        gradients: The shape of the lookup's embeddings, float32 or bfloat16.
        marks: True if the anchor is a vector of `ANCHOR_SIZE`.
        device: The name of the GPU on which the lookup ran. `None`: it ran on the host.

    Returns:
        The gradient of the anchor: a zero, or a vector by which `commit` finds this deposit, from
        elements of about 2**-54 of its norm. The norm of the vector is the norm of the gradients,
        summed by key. The sum of the vectors of several deposits has the norm of the sum of their
        gradients.
    """
    with tf.device(device or "/device:CPU:0"):
        anchor_gradient = ops.sok_embed_deposit(
            receipt=receipt, gradients=gradients, number=number_in_graph(), marks=marks
        )
    if marks:
        note_deposit(anchor_gradient)
    return anchor_gradient
