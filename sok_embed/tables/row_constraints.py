"""Constraints of rows, which act on the rows that a commit has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.keras_bridge.keras_arguments import function_of_rows

Constraint = Callable[[tf.Tensor], Any]

_BY_AXIS = (
    keras.constraints.MaxNorm,
    keras.constraints.MinMaxNorm,
    keras.constraints.UnitNorm,
)


def get(identifier: Any) -> Any:
    """Returns the constraint of what a user writes: a function of rows `[n, dim]`, or `None`.

    Args:
        identifier: A Keras constraint, its name or config, a function of rows, or `None`.

    Raises:
        ValueError: For anything else, and for a constraint that needs more than one row.
    """
    constraint = function_of_rows("Constraint", keras.constraints.get, identifier)
    name = type(constraint).__name__
    if isinstance(constraint, _BY_AXIS) and not _is_of_rows(constraint.axis):
        raise ValueError(
            "Expected a constraint that acts on each row by itself. Received: "
            f"{name}(axis={constraint.axis!r}), which needs all rows of the table. Give the axis "
            f"of a row: keras.constraints.{name}(axis=1)."
        )
    return constraint


def _is_of_rows(axis: Any) -> bool:
    axes = list(axis) if isinstance(axis, Sequence) else [axis]
    return axes in ([1], [-1])


class Constrained(NamedTuple):
    """A constraint with the rows that it acts on.

    Attributes:
        number: The number of the table among those of a commit.
        name: The name of the table.
        handles: The handles of the rows: of a table, or of own and of static rows.
        dim: The length of a row.
        constraint: A function of rows, from `get`.
    """

    number: int
    name: str
    handles: Sequence[tf.Tensor]
    dim: int
    constraint: Constraint


def commit_constrained(
    tables: tf.Tensor | tf_ops.CollectionTables,
    anchor: tf.Tensor,
    steps: tf_ops.RuleSteps,
    redemption: tf_ops.Redemption,
    constraints: Sequence[Constrained],
) -> tf.Tensor:
    """Applies deposited gradients as `tf_ops.commit` does, and then constraints.

    Each worker constrains the rows that it holds and has just changed. Slots and counters of rows
    stay as they are.

    Args:
        tables: The tables, as in `tf_ops.commit`.
        anchor: A float32 that was computed after the deposits.
        steps: The step of each table; `None` for a table that is not trained.
        redemption: The deposits that are applied.
        constraints: The constraints of tables that have one.

    Returns:
        Zeros of the shape of `anchor`, computed after the rows were replaced.
    """
    trained = [each for each in constraints if steps[each.number] is not None]
    if not trained:
        return tf_ops.commit(tables, anchor, steps, redemption)
    places = [(each, handle) for each in trained for handle in each.handles]
    listed = [each.number for each in trained]
    committed = tf_ops.commit_listing_keys(tables, anchor, steps, redemption, listed, len(places))
    replaced = [
        _constrain(each, handle, keys)
        for (each, handle), keys in zip(places, committed.keys, strict=True)
    ]
    if tf.executing_eagerly():
        return committed.anchor
    with tf.control_dependencies(replaced):
        return tf.identity(committed.anchor)


def _constrain(each: Constrained, handle: tf.Tensor, keys: tf.Tensor) -> tf.Operation | None:
    """Replaces the rows of keys `[n]` by what a constraint makes of them; makes no rows."""
    there = tf.boolean_mask(keys, tf_ops.metadata(handle, keys).exists)
    rows = tf_ops.lookup(handle, there, each.dim, make_rows=False).embeddings
    made = tf.convert_to_tensor(each.constraint(rows), tf.float32)
    if not made.shape.is_compatible_with(rows.shape):
        raise ValueError(
            f"Table '{each.name}': expected a constraint to return rows of the shape of its "
            f"argument, {rows.shape}. Received: shape {made.shape}."
        )
    return tf_ops.assign(handle, there, made)
