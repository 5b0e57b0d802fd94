"""Commits, and the formulas and constraints that run on the rows that a commit has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


class ChangingRows(NamedTuple):
    """The rows of a table among those of a commit.

    Attributes:
        number: The number of the table among those of the commit.
        name: The name of the table.
        handles: A function that returns the handles of the rows: one of a table, or two of an
            adaptive table, for own and static rows.
        dim: The length of a row.
        constraint: A function of rows, from `row_constraints.get`, or `None`.
    """

    number: int
    name: str
    handles: Callable[[], Sequence[tf.Tensor]]
    dim: int
    constraint: Constraint | None


def commit_and_change(
    tables: tf.Tensor | tf_ops.CollectionTables,
    anchor: tf.Tensor,
    steps: tf_ops.RuleSteps,
    redemption: tf_ops.Redemption,
    changing: Sequence[ChangingRows],
) -> tf.Tensor:
    """Applies deposited gradients as `tf_ops.commit` does, and then formulas and constraints.

    Each worker changes the rows that it holds and that had gradients. A formula changes slots, too;
    counters of rows stay as they are.

    Args:
        tables: The tables, as in `tf_ops.commit`.
        anchor: A float32 that was computed after the deposits.
        steps: The step of each table; `None` for a table that is not trained.
        redemption: The deposits that are applied.
        changing: The rows of each table.

    Returns:
        Zeros of the shape of `anchor`, computed after the rows were replaced.
    """
    listed = [each for each in changing if _changes(each, steps[each.number])]
    if not listed:
        return tf_ops.commit(tables, anchor, steps, redemption)
    places = [(each, handle) for each in listed for handle in each.handles()]
    numbers = [each.number for each in listed]
    committed = tf_ops.commit_listing_keys(tables, anchor, steps, redemption, numbers, len(places))
    replaced = []
    for (each, handle), keys in zip(places, committed.keys, strict=True):
        step = steps[each.number]
        updated = None
        if isinstance(step, DeferredStep):
            updated = _update(each, handle, keys, step)
        if each.constraint is not None:
            updated = _constrain(each, handle, keys, each.constraint, after=updated)
        replaced.append(updated)
    if tf.executing_eagerly():
        return committed.anchor
    with tf.control_dependencies(replaced):
        return tf.identity(committed.anchor)


def _changes(each: ChangingRows, step: tf_ops.RuleStep | None) -> bool:
    """Returns whether a formula or a constraint must change the rows after a commit."""
    if step is None:
        return False
    return each.constraint is not None or isinstance(step, DeferredStep)


def _update(
    each: ChangingRows, handle: tf.Tensor, keys: tf.Tensor, step: DeferredStep
) -> tf.Operation | None:
    """Updates the rows of keys `[n]` by the formula of a step; makes no rows."""
    assert step.formula is not None
    slot_floats = step.formula.slot_floats(each.dim)
    found = tf_ops.read_rows(handle, keys, each.dim, slot_floats)
    if found.rows.shape[0] == 0:
        return None
    rate = step.hyper["learning_rate"]
    after = step.formula(_with_a_row(found.rows), each.dim, rate)
    return tf_ops.assign_rows(handle, found.keys, after[: tf.size(found.keys)])


def _constrain(
    each: ChangingRows,
    handle: tf.Tensor,
    keys: tf.Tensor,
    constraint: Constraint,
    after: tf.Operation | None,
) -> tf.Operation | None:
    """Replaces the rows of keys `[n]` by the result of a constraint; makes no rows."""
    with tf.control_dependencies([] if after is None else [after]):
        there = tf.boolean_mask(keys, tf_ops.metadata(handle, keys).exists)
        rows = tf_ops.lookup(handle, there, each.dim, make_rows=False).embeddings
    if rows.shape[0] == 0:
        return None
    made = tf.convert_to_tensor(constraint(_with_a_row(rows)), tf.float32)
    if not made.shape.is_compatible_with(rows.shape):
        raise ValueError(
            f"Table '{each.name}': expected a constraint to return rows of the shape of its "
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
