"""The commit: what an optimizer's step does to a table.

A layer's only trainable variable is its anchor, a scalar that stays 0. Keras calls the constraint
of a variable right after it has updated it, once a step; the anchor's constraint is a `Commit`,
which applies the gradients that the step's backward pass deposited in the table.
"""

from __future__ import annotations

import itertools
import sys
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from sok_embed import communicators, tf_ops
from sok_embed.distributed_optimizer import averages_gradients
from sok_embed.optimizers import row_rule, warn_of_ignored
from sok_embed.table import Table


def applying_optimizer() -> keras.optimizers.Optimizer | None:
    """The Keras optimizer whose `apply` is running on this thread, or `None`.

    Keras enters a name scope with the optimizer as its caller around `apply`.
    """
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    for scope in reversed(scopes):
        if isinstance(scope.caller, keras.optimizers.Optimizer):
            return scope.caller
    return None


@dataclass(frozen=True)
class _Pace:
    """When the applying optimizer takes a step, and what it divides gradients by."""

    apply: tf.Tensor | bool
    divisor: float


def _pace(optimizer: Any) -> _Pace:
    if optimizer is None:
        return _Pace(True, 1.0)
    divisor = float(optimizer.loss_scale_factor or 1.0)
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        return _Pace(True, divisor)
    # Keras applies what it has accumulated in the last of `steps` calls, and counts the calls in
    # `_iterations`, after the constraints.
    calls = tf.convert_to_tensor(optimizer._iterations)
    return _Pace(tf.equal((calls + 1) % steps, 0), divisor * steps)


class Commit(keras.constraints.Constraint):
    """The constraint of a layer's anchor.

    Args:
        table: Where the gradients were deposited.
        optimizer: Updates the rows. `None`: the optimizer that is applying the step does.
    """

    def __init__(self, table: Table, optimizer: keras.optimizers.Optimizer | None) -> None:
        self._table = table
        self._optimizer = optimizer
        self._warned = False

    def __call__(self, anchor: Any) -> tf.Tensor:
        """Applies the deposited gradients and returns the value of the anchor."""
        _refuse_loss_scaling(self._table.name)
        applying = applying_optimizer()
        optimizer = self._optimizer or applying
        if optimizer is None:
            raise ValueError(
                f"Table '{self._table.name}': expected to be trained by a Keras optimizer, whose "
                "rule the rows follow. Received: a step of something else. Give the layer an "
                "optimizer of its own, as in `optimizer='adam'`."
            )
        rule = row_rule(optimizer)
        if applying is not None and not self._warned:
            self._warned = True
            warn_of_ignored(applying, self._table.name)
            _warn_of_drifting(applying, self._table.name)
        hyper = dict(rule.hyper)
        follows = optimizer is applying
        if follows and not optimizer._use_weight_decay(_native(anchor)):
            hyper["weight_decay"] = 0.0
        pace = _pace(applying)
        anchor = tf.cast(tf.convert_to_tensor(anchor), tf.float32)
        rate = self._learning_rate(optimizer, follows)
        return tf_ops.commit(
            self._table.resource_handle,
            anchor,
            rule=rule.name,
            hyper_names=["learning_rate", *hyper],
            hypers=tf.concat([[rate], tf.constant([*hyper.values()], tf.float64)], 0),
            # The table counts the steps of an optimizer that only it uses.
            step=tf.cast(optimizer.iterations, tf.int64) + 1 if follows else 0,
            scale=1.0 / (pace.divisor * communicators.size()),
            apply=pace.apply,
            optimizer=_number(applying),
        )

    def _learning_rate(self, optimizer: Any, follows: bool) -> tf.Tensor:
        rate = optimizer._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) and not follows:
            rate = rate(tf_ops.steps(self._table.resource_handle))
        else:
            rate = optimizer.learning_rate
        return tf.cast(tf.convert_to_tensor(rate), tf.float64)


_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count(1)


def _number(optimizer: Any) -> int:
    """Tells optimizers apart: what one accumulates, another must not apply."""
    if optimizer is None:
        return 0
    if optimizer not in _numbers:
        _numbers[optimizer] = next(_next_number)
    return _numbers[optimizer]


def _native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _warn_of_drifting(optimizer: Any, table: str) -> None:
    if communicators.size() > 1 and not averages_gradients(optimizer):
        warnings.warn(
            f"Table '{table}' is shared by {communicators.size()} workers, and the optimizer "
            f"'{optimizer.name}' does not average dense gradients over them, so that their dense "
            "weights drift apart. Wrap it in sok_embed.DistributedOptimizer.",
            stacklevel=2,
        )


def _refuse_loss_scaling(table: str) -> None:
    """Raises if a LossScaleOptimizer drives the step.

    It multiplies the loss and skips steps whose gradients overflow. Both happen out of sight of
    what was deposited, so the rows would be trained with scaled gradients.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("loss_scale_optimizer.py"):
            raise ValueError(
                f"Table '{table}': expected an optimizer that does not scale the loss. Received: a "
                "LossScaleOptimizer, which Keras also puts around the optimizer of a mixed_float16 "
                "model. Use mixed_bfloat16, which needs no loss scaling, or compile the model with "
                "auto_scale_loss=False."
            )
        frame = frame.f_back
