"""The commit: applies the gradients that wait for tables, once, each table by its own rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed.tf_ops.collections import CollectionTables
from sok_embed.tf_ops.native import ops


@dataclass(frozen=True, eq=False)
class RuleStep:
    """One step of a rule.

    Attributes:
        rule: The name of a row optimizer.
        hyper: The values of the parameters that differ from the defaults of the rule: numbers, or
            scalar tensors.
        step: The number of the step, for bias correction; 1 is the first. An integer, or an int64
            scalar. 0: the table counts its steps.
        optimizer: Identifies the optimizer, 0 if unknown. When a new optimizer takes over a table,
            the slots of its rows start anew. An optimizer is new if the table has not seen it
            before and `step` is at most `first_step`; an optimizer without a step is new if another
            one has committed before.
        first_step: The greatest `step` at which an optimizer may be new: the number of calls whose
            gradients it accumulates.
        clip_value: The sum of the gradients of a row, times the scale, is clipped to
            `[-clip_value, clip_value]`, element by element. 0: no clipping.
        slot_sources: Handles of the variables that hold the optimizer's slots of a static variable,
            `[buckets, width]` each, in the order of the rule's slots. Rows that later lookups of
            `adaptive_mask_gather` make copy their slots from there. Only for a commit of one
            `table_handle` or `anonymous_table`.
    """

    rule: str
    hyper: Mapping[str, Any] = field(default_factory=dict)
    step: tf.Tensor | int = 0
    optimizer: int = 0
    first_step: int = 1
    clip_value: float = 0.0
    slot_sources: Sequence[tf.Tensor] = ()


class Redemption(NamedTuple):
    """The deposits that a commit applies, and the factors of their gradients.

    Attributes:
        gradient: float32 `[ANCHOR_SIZE]`, the gradient of the anchor as the optimizer received it,
            which names deposits and a factor for each. Other deposits go on waiting, for at most 16
            more commits. `None`: all deposits that wait are applied.
        scale: float32 scalar that gradients are multiplied by.
        plain: True if the gradients of the anchor were only added up and multiplied on their way,
            and clipped to `clipped_to`.
        clipped_to: The bound to which they were clipped at last: `[-clipped_to, clipped_to]`,
            element by element. 0: they were not clipped.
    """

    gradient: tf.Tensor | None = None
    scale: tf.Tensor | float = 1.0
    plain: bool = True
    clipped_to: float = 0.0


RuleSteps = Sequence[RuleStep | None]
"""The step of each table; `None`: the table is not trained."""

_ALL_DEPOSITS = Redemption()


class Committed(NamedTuple):
    """The result of a commit that lists keys.

    Attributes:
        anchor: Zeros of the shape of the anchor.
        keys: The distinct keys that had gradients, int64 `[n]`, of each listed table in turn: one
            list for a table, two for an adaptive table, of the keys of own rows and of the buckets
            of static rows. A key has no row if it was left out, not admitted or evicted.
    """

    anchor: tf.Tensor
    keys: list[tf.Tensor]


def commit(
    tables: tf.Tensor | CollectionTables,
    anchor: tf.Tensor,
    steps: RuleSteps,
    redemption: Redemption = _ALL_DEPOSITS,
) -> tf.Tensor:
    """Sums the redeemed gradients of equal keys and applies a rule once.

    In an adaptive table the rule is applied to own and to static rows. Then counts are halved, and
    old rows go back to their static rows, if it is time.

    Args:
        tables: The handle of a table or of an adaptive table, or the handles of a collection.
        anchor: A float32 that was computed after the deposits.
        steps: The step of each table. Several tables may share one. `None`: the table is not
            trained.
        redemption: The deposits.

    Returns:
        Zeros of the shape of `anchor`.

    Raises:
        tf.errors.FailedPreconditionError: For deposits that were applied or dropped before, for a
            `plain` gradient that has other elements than the sum of deposits that it names, and for
            a sum of so many deposits that the anchor's gradient does not have its norm.
    """
    return commit_listing_keys(tables, anchor, steps, redemption, [], 0).anchor


def commit_listing_keys(
    tables: tf.Tensor | CollectionTables,
    anchor: tf.Tensor,
    steps: RuleSteps,
    redemption: Redemption,
    listed: Sequence[int],
    lists: int,
) -> Committed:
    """Commits as `commit` does, and lists the keys of rows that may have changed.

    Args:
        tables: The tables, as in `commit`.
        anchor: A float32 that was computed after the deposits.
        steps: The step of each table; `None` for a table that is not trained.
        redemption: The deposits.
        listed: The numbers of trained tables.
        lists: The number of lists: one for a table, two for an adaptive table.
    """
    distinct = list(dict.fromkeys([step for step in steps if step is not None]))
    made = ops.sok_embed_commit(
        **_inputs(tables),
        anchor=anchor,
        hypers=[_scalar(value, tf.float64) for step in distinct for value in step.hyper.values()],
        steps=[_scalar(step.step, tf.int64) for step in distinct],
        scale=redemption.scale,
        redeemed=[] if redemption.gradient is None else [redemption.gradient],
        slot_sources=[source for step in distinct for source in step.slot_sources],
        table_rules=[-1 if step is None else distinct.index(step) for step in steps],
        rules=[step.rule for step in distinct],
        hyper_names=[name for step in distinct for name in step.hyper],
        hyper_counts=[len(step.hyper) for step in distinct],
        optimizers=[step.optimizer for step in distinct],
        first_steps=[step.first_step for step in distinct],
        clip_values=[step.clip_value for step in distinct],
        plain=redemption.plain,
        clipped_to=redemption.clipped_to,
        listed=listed,
        num_lists=lists,
    )
    return Committed(made.committed_anchor, list(made.keys))


def drop_deposits(tables: tf.Tensor | CollectionTables) -> tf.Tensor:
    """Drops the deposited gradients. Returns how many there were, an int64 scalar.

    Args:
        tables: The tables, as in `commit`.
    """
    return ops.sok_embed_drop_deposits(**_inputs(tables))


def _inputs(tables: tf.Tensor | CollectionTables) -> dict[str, list[tf.Tensor]]:
    """Returns the inputs of an op that takes a table or a collection."""
    if isinstance(tables, CollectionTables):
        return {"queue": [tables.queue], "tables": []}
    return {"queue": [], "tables": [tables]}


def _scalar(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns a number, or a scalar tensor, as a tensor of a dtype."""
    if isinstance(value, (int, float)):
        return tf.constant(value, dtype)
    return tf.cast(value, dtype)
