"""Ops on an adaptive table, which decides by itself which keys have rows of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sok_embed.tf_ops import stock_hashes
from sok_embed.tf_ops.contents import (
    Export,
    checked,
)
from sok_embed.tf_ops.native import on_cpu, ops
from sok_embed.tf_ops.served import ServedAdaptiveRows, as_int64, is_serving
from sok_embed.tf_ops.tables import (
    Lookup,
    deposit,
    has_marks,
    number_in_graph,
    spec_of,
)

_NO_COUNTS = np.zeros([0], np.int64)
_NO_MASK = np.zeros([0], np.int32)
# The attributes that only an adaptive table has, or has instead of its two tables of rows.
_ADAPTIVE = (
    "static_buckets owners owner promote_after max_rows decay_every ttl copy_slots demote_blend "
    "sketch_capacity counter_bits"
).split()


def anonymous_adaptive_table(table_name: str, dim: int, **attributes: Any) -> tf.Tensor:
    """Makes a new adaptive table, which lives as long as copies of its handle.

    Args:
        table_name: The name of the table, for messages.
        dim: The length of a row.
        **attributes: `static_buckets`, of all workers; `owners`, `owner`; `promote_after`;
            `max_rows`, `decay_every` and `ttl`, where 0 is none; `copy_slots`; `demote_blend`;
            `sketch_capacity`; `counter_bits`; and the fields of both tables of rows, as of
            `table_handle`. See `sok_embed.AdaptiveEmbedding`.

    Returns:
        A scalar resource tensor, on the CPU.
    """
    own = {name: attributes.pop(name) for name in _ADAPTIVE if name in attributes}
    with on_cpu():
        return ops.sok_embed_anonymous_adaptive_table(
            table_name=table_name, spec=spec_of(dim, attributes), **own
        )


def adaptive_tables(table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns handles of the two tables, of own rows and of static rows by bucket, to read from."""
    own, static = ops.sok_embed_adaptive_tables(table=table)
    return own, static


def adaptive_buckets(keys: tf.Tensor, num_buckets: int) -> tf.Tensor:
    """Returns the static row of an adaptive table that each key shares.

    Args:
        keys: int64, of any shape.
        num_buckets: Buckets are below it.

    Returns:
        int64, of the shape of `keys`: a 64-bit mix of the key, scaled to `[0, num_buckets)`.
    """
    if is_serving():
        return stock_hashes.adaptive_buckets(as_int64(keys), num_buckets)
    return ops.sok_embed_adaptive_buckets(keys=keys, num_buckets=num_buckets)


def adaptive_lookup(
    table: tf.Tensor,
    keys: tf.Tensor,
    dim: int,
    training: bool,
    *,
    counts: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    dtype: tf.DType = tf.float32,
    anchor: tf.Tensor | None = None,
    reports: bool = False,
) -> Lookup:
    """Reads own rows of the keys that have one, and static rows of the others.

    The gradient goes to `anchor`, and is deposited in the table on its way. The commit gives it to
    the key's own row if it has one by then, else to its static row.

    Args:
        table: A handle.
        keys: int64, of any shape.
        dim: The length of a row of this table.
        training: True if keys are counted, and those seen often enough get rows, which start as
            their static rows, bit for bit. If not, nothing changes.
        counts: int64, the shape of `keys`: how many keys of the batch each key stands for. `None`:
            1.
        mask: int32, the shape of `keys`: 1 reads the own row, which is made if there is none, 0 the
            static row, -1 the own row if there is one. `None`: -1.
        dtype: `tf.float32` or `tf.bfloat16`.
        anchor: The anchor, as in `lookup`. `None`: no gradient.
        reports: True if an error is put into the receipt, as in `lookup`.

    Raises:
        tf.errors.InvalidArgumentError: For a mask other than -1, 0 and 1, a negative count, or a
            key that another worker owns.
    """
    if isinstance(table, ServedAdaptiveRows):
        return Lookup(tf.cast(table.lookup(as_int64(keys), mask), dtype), None)
    return Lookup(
        *ops.sok_embed_adaptive_lookup(
            table=table,
            keys=keys,
            counts=_NO_COUNTS if counts is None else counts,
            mask=_NO_MASK if mask is None else mask,
            anchor=0.0 if anchor is None else anchor,
            dtype=dtype,
            dim=dim,
            training=training,
            has_counts=counts is not None,
            has_mask=mask is not None,
            number=number_in_graph(),
            reports=reports,
        )
    )


@tf.RegisterGradient("SokEmbed>AdaptiveLookup")
def _adaptive_lookup_gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[Any]:
    return [None, None, None, None, deposit(op.outputs[1], upstream, has_marks(op.inputs[4]))]


class AdaptiveExport(NamedTuple):
    """The contents of an adaptive table, all of one moment.

    Attributes:
        own: An `Export` of the own rows; its `step_clock` is -1, and its `admission` is empty.
        static: An `Export` of the static rows, whose keys are buckets, likewise.
        cells: uint8, the sketch.
        counters: int64, a version and the counts that `adaptive_stats` gives.
    """

    own: Export
    static: Export
    cells: tf.Tensor
    counters: tf.Tensor

    @property
    def parts(self) -> tuple[Export, ...]:
        """The contents of each part of the table, in their order."""
        return self.own, self.static

    @staticmethod
    def names() -> list[str]:
        """Returns the names of all tensors, such as `own_keys`, `static_keys` and `cells`."""
        parts = [f"{part}_{name}" for part in ("own", "static") for name in Export.names()]
        return [*parts, "cells", "counters"]

    def by_name(self) -> dict[str, Any]:
        """Returns all tensors by their names."""
        tensors = (*self.own, *self.static, self.cells, self.counters)
        return dict(zip(self.names(), tensors, strict=True))

    @classmethod
    def from_names(cls, tensors: Mapping[str, Any]) -> AdaptiveExport:
        """Returns the contents from the result of `by_name`."""
        return cls._of([tensors[name] for name in cls.names()])

    @classmethod
    def _of(cls, tensors: Sequence[Any]) -> AdaptiveExport:
        n = len(Export._fields)
        return cls(Export(*tensors[:n]), Export(*tensors[n : 2 * n]), *tensors[2 * n :])


def adaptive_export(table: tf.Tensor, dim: int, *, with_rows: bool = True) -> AdaptiveExport:
    """Copies everything, as it is between two commits; or everything except rows."""
    return AdaptiveExport._of(
        ops.sok_embed_adaptive_export(table=table, dim=dim, with_rows=with_rows)
    )


def adaptive_restore(table: tf.Tensor, contents: AdaptiveExport) -> tf.Operation | None:
    """Replaces everything by an export.

    Raises:
        ValueError: For keys, counts and times that are not integers.
        tf.errors.InvalidArgumentError: If it does not fit this table, which is left as it was.
        tf.errors.DataLossError: If the sketch is damaged.
    """
    return ops.sok_embed_adaptive_restore(table=table, **checked(contents))


def adaptive_check_restore(table: tf.Tensor, contents: AdaptiveExport) -> tf.Operation | None:
    """Raises what `adaptive_restore` would raise, and changes nothing."""
    return ops.sok_embed_adaptive_restore(table=table, mode="check", **checked(contents))


def adaptive_demote(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Removes the own rows of keys. Returns how many keys had one, an int64 scalar."""
    return ops.sok_embed_adaptive_demote(table=table, keys=keys)


def adaptive_stats(table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns names, string `[k]`, and values, float64 `[k]`, of an adaptive table's figures."""
    names, values = ops.sok_embed_adaptive_stats(table=table)
    return names, values
