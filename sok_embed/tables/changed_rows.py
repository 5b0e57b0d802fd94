"""Commits, and the formulas and constraints that run on the rows that a commit has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.tables.row_constraints import Constraint


class Formula(Protocol):
    """The update of rows for an optimizer that the core has no rule for."""

    def slot_floats(self, dim: int) -> int:
        """Returns how many floats follow an embedding of `dim` floats in a row."""

    def __call__(self, rows: tf.Tensor, dim: int, rate: tf.Tensor) -> tf.Tensor:
        """Returns rows `[n, dim + slot_floats(dim)]` after the update."""


@dataclass(frozen=True, eq=False)
class DeferredStep(tf_ops.RuleStep):
    """A step whose rule stores gradients beside the rows, for a formula.

    Attributes:
        formula: The formula that updates the rows after the commit.
    """

    formula: Formula | None = None


class ChangingTable(Protocol):
    """A table whose rows are changed further after a commit."""

    name: str
    dim: int
    constraint: Constraint | None

    @property
    def parts(self) -> Sequence[Any]:
        """The parts of the table, each with the `handle` of its rows."""


def commit_and_change(
    handles: tf.Tensor | tf_ops.CollectionTables,
    tables: Sequence[ChangingTable],
    anchor: tf.Tensor,
    steps: tf_ops.RuleSteps,
    redemption: tf_ops.Redemption,
) -> tf.Tensor:
    """Applies deposited gradients as `tf_ops.commit` does, and then formulas and constraints.

    Each worker changes the rows that it holds and that had gradients. A formula changes slots, too;
    counters of rows stay as they are.

    Args:
        handles: The handle of the table, or the handles of a collection, as in `tf_ops.commit`.
        tables: The tables.
        anchor: A float32 that was computed after the deposits.
        steps: The step of each table; `None` for a table that is not trained.
        redemption: The deposits that are applied.

    Returns:
        Zeros of the shape of `anchor`, computed after the rows were replaced.
    """
    listed, changing = [], []
    for number, (table, step) in enumerate(zip(tables, steps, strict=True)):
        defers = isinstance(step, DeferredStep)
        if defers or (step is not None and table.constraint is not None):
            listed.append(number)
            changing += [(table, part.handle, step) for part in table.parts]
    committed = tf_ops.commit_listing_keys(
        handles, anchor, steps, redemption, listed, len(changing)
    )
    replaced = []
    for (table, handle, step), keys in zip(changing, committed.keys, strict=True):
        updated = None
        if isinstance(step, DeferredStep):
            updated = _update(table, handle, keys, step)
        if table.constraint is not None:
            updated = _constrain(table, handle, keys, table.constraint, after=updated)
        replaced.append(updated)
    if tf.executing_eagerly() or not replaced:
        return committed.anchor
    with tf.control_dependencies(replaced):
        return tf.identity(committed.anchor)


def _update(
    table: ChangingTable, handle: tf.Tensor, keys: tf.Tensor, step: DeferredStep
) -> tf.Operation | None:
    """Updates the rows of keys `[n]` by the formula of a step; makes no rows."""
    assert step.formula is not None
    slot_floats = step.formula.slot_floats(table.dim)
    found = tf_ops.read_rows(handle, keys, table.dim, slot_floats)
    if found.rows.shape[0] == 0:
        return None
    rate = step.hyper["learning_rate"]
    after = step.formula(_with_a_row(found.rows), table.dim, rate)
    return tf_ops.assign_rows(handle, found.keys, after[: tf.size(found.keys)])


def _constrain(
    table: ChangingTable,
    handle: tf.Tensor,
    keys: tf.Tensor,
    constraint: Constraint,
    after: tf.Operation | None,
) -> tf.Operation | None:
    """Replaces the rows of keys `[n]` by the result of a constraint; makes no rows."""
    with tf.control_dependencies([] if after is None else [after]):
        there = tf.boolean_mask(keys, tf_ops.metadata(handle, keys).exists)
        rows = tf_ops.lookup(handle, there, table.dim, make_rows=False).embeddings
    if rows.shape[0] == 0:
        return None
    made = tf.convert_to_tensor(constraint(_with_a_row(rows)), tf.float32)
    if not made.shape.is_compatible_with(rows.shape):
        raise ValueError(
            f"Table '{table.name}': expected a constraint to return rows of the shape of its "
            f"argument, {rows.shape}. Received: shape {made.shape}."
        )
    return tf_ops.assign(handle, there, made[: tf.size(there)])


def _with_a_row(rows: tf.Tensor) -> tf.Tensor:
    """Returns rows `[n, width]`; in a graph that has none when it runs, a row of ones.

    A function of a user's own may fail without rows: operations of Keras choose by shapes.
    """
    if rows.shape[0] is not None:
        return rows
    lacking = tf.cast(tf.equal(tf.shape(rows)[0], 0), tf.int32)
    some = tf.pad(rows, [[0, lacking], [0, 0]], constant_values=1.0)
    some.set_shape(rows.shape)
    return some
