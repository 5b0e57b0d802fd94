"""The commit: what an optimizer's step does to a table.

A table is trained through its anchor, a variable that stays 0. The anchor's gradient names
gradients that the backward pass has deposited in the table, and has their norm. When an optimizer
of Keras would update the anchor, a commit applies the named gradients instead. If the anchor's
gradient was multiplied by a factor on its way, such as a loss scale, they are multiplied by it too.
Optimizers of `tf.compat.v1.train` call the constraint of a variable right after they have updated
it, once a step; there the commit runs in that call. `Commit`, the constraint of an anchor, does
both.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.anchors import (
    AnchorConstraint,
    Update,
    forget_with,
    leave_out_of_files,
)
from sok_embed.optimizers import v1_optimizers
from sok_embed.optimizers.row_rules import has_schedule, row_rule
from sok_embed.optimizers.slot_variables import slots_beside
from sok_embed.tables.changed_rows import DeferredStep
from sok_embed.training.distributed_optimizer import check_trained_together
from sok_embed.training.strategies import check_parts, own_gradient


class TrainedTable(Protocol):
    """The interface of all kinds of tables, and collections, by which gradients are applied."""

    name: str
    host: Callable[[], Any]

    def commit(
        self, anchor: tf.Tensor, steps: tf_ops.RuleSteps, redemption: tf_ops.Redemption
    ) -> tf.Tensor:
        """Applies deposited gradients; arguments and result are those of `tf_ops.commit`."""

    def step_count(self) -> tf.Tensor:
        """Returns the number of commits that found gradients, an int64 scalar."""


class Commit(AnchorConstraint):
    """The constraint of an anchor.

    Args:
        table: The table to which gradients were deposited.
        optimizer: A Keras optimizer that updates the rows. `None`: the optimizer that is applying
            the step does.
        static: A variable, or a callable that returns it, from which new rows start and which the
            same optimizer trains: new rows copy their slots from the variable's slots. `None`:
            there is none.
    """

    def __init__(
        self,
        table: TrainedTable,
        optimizer: keras.optimizers.Optimizer | None,
        static: Any = None,
    ) -> None:
        self._table = table
        self._optimizer = optimizer
        self._static = static
        self._warned = False
        self._saw_update = False
        self._returned: tf.Tensor | None = None

    def __call__(self, anchor: Any) -> tf.Tensor:
        """Returns the value of the anchor, 0. In a step of `tf.compat.v1.train`, commits."""
        applying = callers.applying_optimizer()
        if isinstance(applying, keras.optimizers.Optimizer):
            self._check_updates_seen(applying)
            if applying.gradient_accumulation_steps:
                leave_out_of_files(applying, anchor)
            self._returned = tf.zeros_like(tf.convert_to_tensor(anchor))
        else:
            redeemed = callers.arrived_v1_gradient(anchor)
            self._returned = self._commit(applying, anchor, redeemed)
        return self._returned

    def on_assignment(self, value: Any) -> Any:
        """Raises for a value other than 0: it would not reach the rows."""
        returned, self._returned = self._returned, None
        # Weight decay subtracts a share of the anchor, which is 0.
        if value is returned or callers.decaying_weights():
            return value
        applying = callers.optimizer_in_apply()
        if applying is not None:
            raise ValueError(
                f"Table '{self._table.name}': expected variables to be changed by the update_step "
                f"of {type(applying).__name__}. Received: a second change by its `apply`, which "
                "would reach dense variables alone. Change them in `update_step`, use "
                "`weight_decay=` or a constraint, or give the table an optimizer of its own by "
                "`optimizer=`."
            )
        error = (
            f"Table '{self._table.name}': expected its anchor to be changed by an optimizer, which "
            "trains the rows, or to be set to 0. Received: values other than 0, as `variable."
            "assign_sub(rate * gradient)` makes them. Give the gradients to the `apply` of an "
            "optimizer, as in keras.optimizers.SGD(rate).apply(gradients, variables)."
        )
        value = tf.convert_to_tensor(value, tf.float32)
        if tf.executing_eagerly():
            if np.any(value.numpy()):
                raise ValueError(error)
            return value
        with tf.control_dependencies([tf.debugging.assert_equal(value, 0.0, message=error)]):
            return tf.identity(value)

    def on_update(self, update: Update) -> None:
        """Commits the gradients that a Keras optimizer is given."""
        self._saw_update = True
        forget_with(self, update.gradient)
        # The gradient of a scalar names nothing.
        redeemed = update.gradient if update.gradient.shape.rank == 1 else None
        optimizer = update.optimizer
        committed = self._commit(optimizer, update.variable, redeemed, update.learning_rate)
        # Slots of anchors are not read, except gradients that the optimizer accumulates.
        read = set(map(id, getattr(optimizer, "_accumulated_gradients", [])))
        shape = tuple(update.variable.shape)
        slots = [
            each
            for each in optimizer.variables
            if tuple(each.shape) == shape and id(each) not in read
        ]
        tf_ops.note_update(committed, update.change, slots)

    @property
    def host(self) -> Any:
        """The layer that has the table, or `None`."""
        return self._table.host()

    @property
    def clips_by_norm(self) -> bool:
        """True if an optimizer of the table's own clips its gradients by their norm."""
        own: Any = self._optimizer
        return own is not None and bool(own.clipnorm or own.global_clipnorm)

    def _check_updates_seen(self, applying: Any) -> None:
        """Raises if an optimizer has updated the anchor in a way that was not noticed."""
        replica = tf.distribute.get_replica_context()
        number = 0 if replica is None else replica.replica_id_in_sync_group
        if tf.get_static_value(number) != 0:
            return
        seen, self._saw_update = self._saw_update, False
        # Most steps of an optimizer that accumulates update nothing.
        if seen or applying.gradient_accumulation_steps:
            return
        if row_rule(applying).formula is not None:
            raise RuntimeError(
                f"Table '{self._table.name}': expected the update_step of {applying.name} to "
                "update its variable at every step. Received: a step without an update. Assign "
                "the variable its own value where it is to stay."
            )
        raise RuntimeError(
            f"Table '{self._table.name}': expected {applying.name} to update variables as the "
            f"optimizers of Keras 3.15 do. Received: a step of Keras {keras.__version__} "
            "that updated variables in another way. Use a version of Keras that this release of "
            "sok_embed was tested with."
        )

    def _commit(
        self, applying: Any, anchor: Any, redeemed: tf.Tensor | None, rate: Any = None
    ) -> tf.Tensor:
        """Commits a step of `applying`; `rate` is the learning rate of a Keras optimizer's step."""
        workers = communicators.size()
        parts = check_parts(anchor, applying, self._table.name)
        if workers > 1 and applying is not None:
            check_trained_together(applying, self._table.name, warns=not self._warned)
            self._warned = True
        steps = self._rule_steps(applying, anchor, rate)
        own: Any = self._optimizer
        # This clips by norm. The commit clips by value.
        if redeemed is not None and own is not None and own is not applying:
            if steps[0] is not None and not steps[0].clip_value:
                redeemed = own._clip_gradients([redeemed])[0]
        if parts > 1:
            # The loss divides the gradients that are summed by the number of workers.
            redeemed, workers = own_gradient(redeemed, parts, self._table.name), 1
        redemption = tf_ops.Redemption(
            redeemed,
            scale=1.0 / workers,
            plain=workers == 1,
            clipped_to=_clip_value([applying], self._table.name) or 0.0,
        )
        return self._table.commit(tf.convert_to_tensor(anchor), steps, redemption)

    def _rule_steps(self, applying: Any, anchor: Any, rate: Any) -> tf_ops.RuleSteps:
        """Returns the step of each table; `None` for a table that is not trained."""
        return [self._rule_step(self._optimizer, self._table, applying, anchor, rate)]

    def _rule_step(
        self, own: Any, table: TrainedTable, applying: Any, anchor: Any, rate: Any
    ) -> tf_ops.RuleStep:
        """Returns the step of a table whose own optimizer, or `None`, is `own`."""
        optimizer = own or applying
        if optimizer is None:
            raise ValueError(
                f"Table '{table.name}': expected to be trained by a Keras optimizer, or one "
                "of tf.compat.v1.train, whose rule the rows follow. Received: a step of something "
                "else. Give the layer an optimizer of its own, as in `optimizer='adam'`."
            )
        rule = row_rule(optimizer)
        hyper, follows = dict(rule.hyper), optimizer is applying
        step: Any = 0  # the table counts the steps of an optimizer that only it uses
        if not follows:
            # A schedule follows the steps of the table.
            has_steps = has_schedule(optimizer)
            rate = (
                optimizer._learning_rate(table.step_count())
                if has_steps
                else optimizer.learning_rate
            )
        elif isinstance(optimizer, keras.optimizers.Optimizer):
            step = tf.cast(optimizer.iterations, tf.int64) + 1
            if not optimizer._use_weight_decay(anchor):
                hyper["weight_decay"] = 0.0
        else:
            rate, step = v1_optimizers.learning_rate(optimizer), v1_optimizers.step(optimizer)
        of_class: Any = tf_ops.RuleStep
        if rule.formula is not None:
            of_class = functools.partial(DeferredStep, formula=rule.formula)
            if self._static is not None:
                raise ValueError(
                    f"Table '{table.name}': expected an optimizer of Keras or of this package, for "
                    "rows that start from static rows and copy their slots. Received: "
                    f"{type(optimizer).__name__}, whose `update_step` is its own. Compile the "
                    "model with one of Keras."
                )
        made: tf_ops.RuleStep = of_class(
            rule.name,
            {"learning_rate": tf.convert_to_tensor(rate), **hyper},
            step=step,
            optimizer=_number(optimizer),
            # It counts calls, not the steps that it accumulates gradients for.
            first_step=getattr(applying, "gradient_accumulation_steps", None) or 1,
            clip_value=_clip_value([applying, own], table.name) or 0.0,
            slot_sources=self._slot_sources(optimizer)
            if follows and self._static is not None
            else (),
        )
        return made

    def _slot_sources(self, optimizer: Any) -> Sequence[tf.Tensor]:
        """Returns handles of the slots that the optimizer has of the static variable."""
        static = self._static() if callable(self._static) else self._static
        slots = None if static is None else slots_beside(optimizer, static)
        handles = [slot.handle for slot in slots or ()]
        table: Any = self._table
        device = getattr(table, "lookup_device", None)
        if not handles or device is None:
            return handles
        # The op that commits is on the CPU, and takes no handle of a GPU.
        tf_ops.bind_slots(table.resource_handle, handles, device)
        return []


def _clip_value(optimizers: list[Any], table: str) -> float | None:
    """Returns the bound of elements after optimizers in turn have clipped them.

    `None` if the last one that clips clips by a norm, or none clips.
    """
    value: float | None = None
    for optimizer in optimizers:
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            continue
        by_norm = bool(optimizer.clipnorm or optimizer.global_clipnorm)
        if by_norm and value is not None:
            raise ValueError(
                f"Table '{table}': expected the layer's own optimizer to clip values too, or not "
                "at all. Received: clipvalue of the model's optimizer and a norm of the layer's, "
                "which is not known of rows whose values are clipped. Leave out one of them."
            )
        if not by_norm and optimizer.clipvalue:
            value = min(value or math.inf, optimizer.clipvalue)
    if value is not None and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise ValueError(
            f"Table '{table}': expected clipnorm or global_clipnorm, or a single replica. "
            f"Received: clipvalue={value} under a tf.distribute strategy, by which Keras clips the "
            "gradients of each replica for themselves; those of rows are summed by then."
        )
    return value


_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count(1)


def _number(optimizer: Any) -> int:
    """Returns a number that identifies an optimizer.

    Gradients that one optimizer accumulates, another must not apply.
    """
    if optimizer is None:
        return 0
    if optimizer not in _numbers:
        _numbers[optimizer] = next(_next_number)
    return _numbers[optimizer]
