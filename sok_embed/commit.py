"""The commit: what an optimizer's step does to a table.

A table is trained through its anchor, a variable that stays 0. Optimizers of Keras and of
`tf.compat.v1.train` call the constraint of a variable right after they have updated it, once a
step. The anchor's constraint is a `Commit`. What the optimizer was given as the anchor's gradient
names gradients that the backward pass deposited in the table; the commit applies these, each by the
factor that the anchor's gradient was changed by on its way.
"""

from __future__ import annotations

import itertools
import sys
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from sok_embed import communicators, v1_optimizers
from sok_embed.distributed_optimizer import averages_gradients
from sok_embed.optimizers import row_rule, warn_of_ignored
from sok_embed.slot_variables import slot_variables


class TrainedTable(Protocol):
    """What gradients are deposited in: a `Table`, or what has these three."""

    name: str

    def commit(self, anchor: tf.Tensor, **arguments: Any) -> tf.Tensor:
        """Applies the gradients that wait; arguments and result are those of `tf_ops.commit`."""

    def step_count(self) -> tf.Tensor:
        """The number of commits that found gradients, an int64 scalar."""


def applying_optimizer() -> Any:
    """The optimizer whose step is being applied on this thread, or `None`.

    Keras enters a name scope with the optimizer as its caller around `apply`.
    """
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    for scope in reversed(scopes):
        if isinstance(scope.caller, keras.optimizers.Optimizer):
            return scope.caller
    return v1_optimizers.applying_optimizer()


def _arrived_gradient(anchor: Any) -> tf.Tensor | None:
    """What the running `apply` of a Keras optimizer was given as the gradient of an anchor.

    Keras hands it to nobody else, so it is taken from the frame of `apply`, where it has been
    divided by the loss scale already.

    Returns:
        Of this replica, `[ANCHOR_SIZE]`. `None` of an anchor that is a scalar: it names nothing.

    Raises:
        RuntimeError: If there is no such frame.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "apply" and "trainable_variables" in frame.f_locals:
            variables, gradients = (
                frame.f_locals[name] for name in ("trainable_variables", "grads")
            )
            for variable, gradient in zip(variables or [], gradients, strict=False):
                if _native(variable) is _native(anchor):
                    return gradient if gradient.shape.rank == 1 else None
        frame = frame.f_back
    raise RuntimeError(
        "Expected Keras to call the constraint of a variable from `Optimizer.apply`, with its "
        f"gradient at hand. Received: another caller, with Keras {keras.__version__}. Use a "
        "version of Keras that this release of sok_embed was tested with."
    )


def _sum_over_replicas(gradient: tf.Tensor) -> tuple[tf.Tensor, bool]:
    """The sum, and whether this replica commits it, for all of them."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return gradient, True
    total = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
    return total, tf.get_static_value(replica.replica_id_in_sync_group) == 0


@dataclass(frozen=True)
class _Pace:
    """When the applying optimizer takes a step, and how many calls it takes the mean of."""

    apply: tf.Tensor | bool
    calls: int


def _pace(optimizer: Any) -> _Pace:
    calls = optimizer.gradient_accumulation_steps if _is_keras(optimizer) else None
    if not calls:
        return _Pace(True, 1)
    # Keras applies what it has accumulated in the last of so many calls, and counts the calls in
    # `_iterations`, after the constraints.
    number = tf.convert_to_tensor(optimizer._iterations)
    return _Pace(tf.equal((number + 1) % calls, 0), calls)


class Commit(keras.constraints.Constraint):
    """The constraint of an anchor.

    Args:
        table: Where the gradients were deposited.
        optimizer: A Keras optimizer that updates the rows. `None`: the optimizer that is applying
            the step does.
        static: A variable that the same optimizer trains and new rows start from, or a callable
            that returns it: rows copy their slots from its slots. `None`: there is none.
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

    def __call__(self, anchor: Any) -> tf.Tensor:
        """Applies what the optimizer was given, and returns the value of the anchor."""
        _refuse_loss_scaling(self._table.name)
        applying = applying_optimizer()
        optimizer = self._optimizer or applying
        if optimizer is None:
            raise ValueError(
                f"Table '{self._table.name}': expected to be trained by a Keras optimizer, or one "
                "of tf.compat.v1.train, whose rule the rows follow. Received: a step of something "
                "else. Give the layer an optimizer of its own, as in `optimizer='adam'`."
            )
        rule = row_rule(optimizer)
        if applying is not None and not self._warned:
            self._warned = True
            warn_of_ignored(applying, self._table.name)
            _warn_of_drifting(applying, self._table.name)
        hyper = dict(rule.hyper)
        follows = optimizer is applying
        if _is_keras(optimizer) and follows and not optimizer._use_weight_decay(_native(anchor)):
            hyper["weight_decay"] = 0.0
        pace = _pace(applying)
        given = _arrived_gradient if _is_keras(applying) else v1_optimizers.arrived_gradient
        redeemed = given(anchor)
        if redeemed is not None:
            redeemed, commits = _sum_over_replicas(redeemed)
            if not commits:
                return tf.zeros_like(tf.convert_to_tensor(anchor))
        anchor = tf.cast(tf.convert_to_tensor(anchor), tf.float32)
        numbers = {name: value for name, value in hyper.items() if isinstance(value, float)}
        tensors = {
            "learning_rate": self._learning_rate(optimizer, follows),
            **{name: value for name, value in hyper.items() if name not in numbers},
        }
        return self._table.commit(
            anchor,
            rule=rule.name,
            hyper_names=[*tensors, *numbers],
            hypers=tf.concat(
                [*map(_as_vector, tensors.values()), tf.constant([*numbers.values()], tf.float64)],
                0,
            ),
            # The table counts the steps of an optimizer that only it uses.
            step=_step(optimizer) if follows else 0,
            scale=1.0 / (pace.calls * communicators.size()),
            apply=pace.apply,
            optimizer=_number(applying),
            redeemed=redeemed,
            **(self._slot_sources(optimizer) if follows else {}),
        )

    def _learning_rate(self, optimizer: Any, follows: bool) -> Any:
        if not _is_keras(optimizer):
            return v1_optimizers.learning_rate(optimizer)
        rate = optimizer._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) and not follows:
            return rate(self._table.step_count())
        return optimizer.learning_rate

    def _slot_sources(self, optimizer: Any) -> dict[str, list[tf.Tensor]]:
        """An argument of the commit, if the optimizer has slots of the static variable."""
        static = self._static() if callable(self._static) else self._static
        slots = None if static is None else slot_variables(optimizer, static)
        return {"slot_sources": [slot.handle for slot in slots]} if slots else {}


def _is_keras(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.Optimizer)


def _step(optimizer: Any) -> Any:
    """The number of the step that is being applied, 1 for the first; 0 if it is not known."""
    if _is_keras(optimizer):
        return tf.cast(optimizer.iterations, tf.int64) + 1
    return v1_optimizers.step(optimizer)


def _as_vector(scalar: Any) -> tf.Tensor:
    return tf.reshape(tf.cast(tf.convert_to_tensor(scalar), tf.float64), [1])


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
    if communicators.size() == 1:
        return
    if _is_keras(optimizer):
        name, wrapper = optimizer.name, "sok_embed.DistributedOptimizer"
        averages = averages_gradients(optimizer)
    else:
        name, wrapper = optimizer.get_name(), "horovod.tensorflow.DistributedOptimizer"
        averages = v1_optimizers.averages_gradients()
    if not averages:
        warnings.warn(
            f"Table '{table}' is shared by {communicators.size()} workers, and the optimizer "
            f"'{name}' does not average dense gradients over them, so that their dense weights "
            f"drift apart. Wrap it in {wrapper}.",
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
