"""Optimizers of `tf.compat.v1.train` and their native twins.

Rows follow them as they follow a Keras optimizer, but through the constraint of the anchor:
`apply_gradients` calls it right after it has updated the anchor. Learning rates and hyperparameters
are read from the arguments of an optimizer's constructor, or from the tensors that
`apply_gradients` makes of them first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1.train


class GroupFtrlOptimizer(tf.compat.v1.train.FtrlOptimizer):
    """`tf.compat.v1.train.FtrlOptimizer`, with DeepRec's rule for rows of tables.

    Dense variables are trained by TensorFlow's formula, rows of tables by the formula of
    `sok_embed.optimizers.GroupFtrl`. DeepRec's `tf.train.FtrlOptimizer` makes the same difference
    between variables and embedding variables. The arguments are those of TensorFlow's class.

    Example:
    >>> optimizer = GroupFtrlOptimizer(0.1, l1_regularization_strength=2.0)
    >>> optimizer.get_name()
    'Ftrl'
    """


def _value(optimizer: Any, argument: str, prepared: str) -> Any:
    """Returns an argument of the constructor, rounded to float32, or the tensor made of it."""
    value = getattr(optimizer, argument)
    if callable(value):
        tensor = getattr(optimizer, prepared, None)
        return value() if tensor is None else tensor
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        return value
    return float(np.float32(value))


def _gradient_descent(optimizer: Any) -> tuple[str, dict[str, Any]]:
    return "sgd", {}


def _momentum(optimizer: Any) -> tuple[str, dict[str, Any]]:
    return "v1_momentum", {
        "momentum": _value(optimizer, "_momentum", "_momentum_tensor"),
        "nesterov": float(optimizer._use_nesterov),
    }


def _adagrad(optimizer: Any) -> tuple[str, dict[str, Any]]:
    initial = float(optimizer._initial_accumulator_value)
    return "adagrad", {"initial_accumulator_value": initial, "epsilon": 0.0}


def _adam(optimizer: Any) -> tuple[str, dict[str, Any]]:
    return "adam", {
        "beta_1": _value(optimizer, "_beta1", "_beta1_t"),
        "beta_2": _value(optimizer, "_beta2", "_beta2_t"),
        "epsilon": _value(optimizer, "_epsilon", "_epsilon_t"),
    }


def _rmsprop(optimizer: Any) -> tuple[str, dict[str, Any]]:
    # TensorFlow's optimizer has a slot for the momentum even if the momentum is 0.
    name = "rmsprop_centered_momentum" if optimizer._centered else "rmsprop_momentum"
    return name, {
        "rho": _value(optimizer, "_decay", "_decay_tensor"),
        "momentum": _value(optimizer, "_momentum", "_momentum_tensor"),
        "epsilon": _value(optimizer, "_epsilon", "_epsilon_tensor"),
        "initial_velocity": 1.0,
    }


def _ftrl(optimizer: Any) -> tuple[str, dict[str, Any]]:
    names = (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )
    return "ftrl", {name: _value(optimizer, f"_{name}", f"_{name}_tensor") for name in names}


def _group_ftrl(optimizer: Any) -> tuple[str, dict[str, Any]]:
    return "group_ftrl", _ftrl(optimizer)[1]


class V1Twin(NamedTuple):
    """The rules of a class of `tf.compat.v1.train`.

    Attributes:
        rule_of: A function that returns the rule of an instance, and the rule's hyperparameters.
        slots: Maps each rule to the names of the optimizer's slots, in the order of a row's slots.
    """

    rule_of: Callable[[Any], tuple[str, dict[str, Any]]]
    slots: dict[str, tuple[str, ...]]


TWINS: dict[type[Any], V1Twin] = {
    v1.GradientDescentOptimizer: V1Twin(_gradient_descent, {"sgd": ()}),
    v1.MomentumOptimizer: V1Twin(_momentum, {"v1_momentum": ("momentum",)}),
    v1.AdagradOptimizer: V1Twin(_adagrad, {"adagrad": ("accumulator",)}),
    v1.AdamOptimizer: V1Twin(_adam, {"adam": ("m", "v")}),
    v1.RMSPropOptimizer: V1Twin(
        _rmsprop,
        {
            "rmsprop_momentum": ("rms", "momentum"),
            "rmsprop_centered_momentum": ("rms", "momentum", "mg"),
        },
    ),
    v1.FtrlOptimizer: V1Twin(_ftrl, {"ftrl": ("accum", "linear")}),
    GroupFtrlOptimizer: V1Twin(_group_ftrl, {"group_ftrl": ("accum", "linear")}),
}
# No two classes have the same rule.
SLOTS = {rule: names for twin in TWINS.values() for rule, names in twin.slots.items()}

# These methods are the formula of a class.
FORMULA = (
    "_apply_dense",
    "_apply_sparse",
    "_apply_sparse_duplicate_indices",
    "_create_slots",
    "_finish",
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "_resource_apply_sparse_duplicate_indices",
)


# A float32 power of a beta loses digits below this, and soon becomes 0.
_LEAST_POWER = 1e-37


def learning_rate(optimizer: Any) -> tf.Tensor:
    """Returns the rate of the running `apply_gradients`, as `step` and the rule need it.

    Adam multiplies float32 powers of its betas from step to step, and the rule computes exact
    powers. The bias corrections differ by 1e-5; the returned rate compensates for that.
    """
    if not isinstance(optimizer, v1.AdamOptimizer):
        return optimizer._learning_rate_tensor
    number = tf.cast(step(optimizer), tf.float64)
    betas = [tf.cast(beta, tf.float64) for beta in (optimizer._beta1_t, optimizer._beta2_t)]
    exact = [tf.where(number > 0, beta**number, 0.0) for beta in betas]
    rate = tf.cast(optimizer._lr_t, tf.float64)
    return rate * _bias_correction(*_adam_powers(optimizer)) / _bias_correction(*exact)


def step(optimizer: Any) -> tf.Tensor | int:
    """Returns the number of the running step, which is 1 for the first.

    Only Adam knows it, by the powers of its betas.

    Returns:
        An int64 scalar; 0 for an optimizer that counts no steps.
    """
    if not isinstance(optimizer, v1.AdamOptimizer):
        return 0
    power_1, power_2 = _adam_powers(optimizer)
    return tf.where(
        power_1 > _LEAST_POWER,
        _exponent(power_1, optimizer._beta1_t),
        _exponent(power_2, optimizer._beta2_t),
    )


def _adam_powers(optimizer: Any) -> list[tf.Tensor]:
    return [tf.cast(power, tf.float64) for power in optimizer._get_beta_accumulators()]


def _exponent(power: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    # This is 0 if the beta is 0.
    logarithm = tf.math.log(tf.maximum(power, _LEAST_POWER))
    return tf.cast(tf.round(logarithm / tf.math.log(tf.cast(beta, tf.float64))), tf.int64)


def _bias_correction(power_1: tf.Tensor, power_2: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(1.0 - power_2) / (1.0 - power_1)
