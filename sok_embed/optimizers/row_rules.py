"""Optimizers and their native twins: the rules that update rows of a table.

A table has no `tf.Variable`, so no optimizer of Keras or `tf.compat.v1.train` can update it.
`row_rule` says which rule of the C++ core computes the same thing, with which hyperparameters. The
learning rate is not among them: it may change between steps, and travels with each commit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import shown
from sok_embed.optimizers import v1_optimizers
from sok_embed.optimizers.keras_optimizers import GroupFtrl, RowwiseAdagrad, check_rate


@dataclass(frozen=True)
class RowRule:
    """A rule of the C++ core, with its parameters.

    Attributes:
        name: The name of the rule in the core's registry, e.g. `"adam"`. It decides the slots of a
            row.
        hyper: The parameters by Keras' names, all but `learning_rate`. Floats, but for what an
            optimizer of `tf.compat.v1.train` was given as a tensor: scalars of that graph.
    """

    name: str
    hyper: dict[str, Any]


def _sgd(optimizer: Any) -> tuple[str, dict[str, Any]]:
    if optimizer.momentum == 0:
        return "sgd", {}
    return "momentum", {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}


def _adagrad(name: str) -> Callable[[Any], tuple[str, dict[str, Any]]]:
    def twin(optimizer: Any) -> tuple[str, dict[str, Any]]:
        return name, _attributes(optimizer, "initial_accumulator_value", "epsilon")

    return twin


def _rmsprop(optimizer: Any) -> tuple[str, dict[str, Any]]:
    # Keras ignores a momentum that is not above 0. Momentum and centering each need a slot.
    has_momentum = optimizer.momentum > 0
    name = (
        "rmsprop"
        + ("_centered" if optimizer.centered else "")
        + ("_momentum" if has_momentum else "")
    )
    return name, _attributes(optimizer, "rho", "epsilon", *(["momentum"] if has_momentum else []))


def _adam(name: str) -> Callable[[Any], tuple[str, dict[str, Any]]]:
    def twin(optimizer: Any) -> tuple[str, dict[str, Any]]:
        hyper = _attributes(optimizer, "beta_1", "beta_2", "epsilon")
        return ("amsgrad" if optimizer.amsgrad else name), hyper

    return twin


def _ftrl(optimizer: Any) -> tuple[str, dict[str, Any]]:
    return "ftrl", _attributes(
        optimizer,
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )


def _group_ftrl(optimizer: Any) -> tuple[str, dict[str, Any]]:
    return "group_ftrl", _ftrl(optimizer)[1]


def _nadam(optimizer: Any) -> tuple[str, dict[str, Any]]:
    return "nadam", _attributes(optimizer, "beta_1", "beta_2", "epsilon")


def _lion(optimizer: Any) -> tuple[str, dict[str, Any]]:
    return "lion", _attributes(optimizer, "beta_1", "beta_2")


def _attributes(optimizer: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(optimizer, name) for name in names}


# Each function returns the rule and the hyperparameters of an instance of the class, but for the
# weight decay.
_TWINS: dict[type[Any], Callable[[Any], tuple[str, dict[str, Any]]]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adagrad: _adagrad("adagrad"),
    RowwiseAdagrad: _adagrad("rowwise_adagrad"),
    keras.optimizers.RMSprop: _rmsprop,
    keras.optimizers.Adam: _adam("adam"),
    keras.optimizers.AdamW: _adam("adamw"),
    keras.optimizers.Nadam: _nadam,
    keras.optimizers.Ftrl: _ftrl,
    GroupFtrl: _group_ftrl,
    keras.optimizers.Lion: _lion,
}

_BY_NAME: dict[str, Callable[[], Any]] = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda: keras.optimizers.SGD(momentum=0.9),
    "adagrad": keras.optimizers.Adagrad,
    "rowwise_adagrad": RowwiseAdagrad,
    "rmsprop": keras.optimizers.RMSprop,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "amsgrad": lambda: keras.optimizers.Adam(amsgrad=True),
    "nadam": keras.optimizers.Nadam,
    "ftrl": keras.optimizers.Ftrl,
    "group_ftrl": GroupFtrl,
    "lion": keras.optimizers.Lion,
}


def row_rule(optimizer: Any) -> RowRule:
    """Finds the rule of the C++ core that computes what an optimizer computes.

    A subclass has the twin of the class it comes from, unless it has a formula of its own.

    Example:
    >>> row_rule(keras.optimizers.SGD(momentum=0.9)).hyper
    {'momentum': 0.9, 'nesterov': 0.0, 'weight_decay': 0.0}
    >>> row_rule(tf.compat.v1.train.AdagradOptimizer(0.1)).name
    'adagrad'

    Args:
        optimizer: A `keras.optimizers.Optimizer` or a `tf.compat.v1.train.Optimizer`.

    Returns:
        The `RowRule`. `weight_decay=None` is 0.0.

    Raises:
        ValueError: If there is no such rule, with the list of the classes that have one.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        known = _known(optimizer, v1_optimizers.TWINS, v1_optimizers.FORMULA, "Train the model")
        return RowRule(*v1_optimizers.TWINS[known](optimizer))
    known = _known(
        optimizer,
        _TWINS,
        ("update_step",),
        "Give the table one of these with `optimizer=`, or train the model",
    )
    name, hyper = _TWINS[known](optimizer)
    weight_decay = optimizer.weight_decay
    hyper["weight_decay"] = 0.0 if weight_decay is None else weight_decay
    return RowRule(name, {key: float(value) for key, value in hyper.items()})


def _known(
    optimizer: Any, twins: dict[type[Any], Any], formula: tuple[str, ...], remedy: str
) -> type[Any]:
    """Returns the class among `twins` whose formula an optimizer has; raises if there is none."""
    cls = type(optimizer)
    supported = ", ".join(twin.__name__ for twin in twins)
    known = next((base for base in cls.__mro__ if base in twins), None)
    if known is None:
        raise ValueError(
            f"Expected an optimizer that can train rows of a table: {supported}. "
            f"Received: {_describe(optimizer)}. {remedy} with one."
        )
    for method in formula:
        if getattr(cls, method) is not getattr(known, method):
            raise ValueError(
                f"Expected an optimizer that can train rows of a table: {supported}, or a "
                f"subclass that keeps the formula. Received: {_describe(optimizer)}, whose own "
                f"`{method}` replaces that of {known.__name__}. {remedy} with one."
            )
    return known


def get(identifier: Any) -> keras.optimizers.Optimizer | None:
    """Makes a Keras optimizer of what a user writes for `optimizer=`.

    Example:
    >>> get("momentum").momentum
    0.9

    Args:
        identifier: `None`; a name, one of `"sgd"`, `"momentum"` (`SGD(momentum=0.9)`),
            `"adagrad"`, `"rowwise_adagrad"`, `"rmsprop"`, `"adam"`, `"adamw"`, `"amsgrad"`
            (`Adam(amsgrad=True)`), `"nadam"`, `"ftrl"`, `"group_ftrl"`, `"lion"`, in upper or lower
            case; a Keras optimizer; or the config that `serialize` made of one.

    Returns:
        A Keras optimizer for which `row_rule` finds a rule, or `None` for `None`.

    Raises:
        ValueError: For anything else, and for a learning rate that is negative, NaN or infinite.
    """
    if identifier is None:
        return None
    if isinstance(identifier, str):
        make = _BY_NAME.get(identifier.lower())
        if make is None:
            raise ValueError(
                f"Expected an optimizer's name of {', '.join(_BY_NAME)}, or a "
                f"`keras.optimizers.Optimizer` object. Received: {shown(identifier)}."
            )
        optimizer = make()
    elif isinstance(identifier, dict):
        if "class_name" not in identifier:
            raise ValueError(
                "Expected the config of an optimizer, with a `class_name` and a `config`. "
                f"Received: {shown(identifier)}."
            )
        # Keras writes to the config that it reads.
        try:
            optimizer = keras.optimizers.deserialize(dict(identifier))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"Expected the config of an optimizer, as `serialize` makes it. "
                f"Received: {shown(identifier)}, of which Keras says: {error}"
            ) from error
    else:
        optimizer = identifier
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"Expected an optimizer: None, a name of {', '.join(_BY_NAME)}, a "
            f"`keras.optimizers.Optimizer`, or its config. Received: {_describe(optimizer)}."
        )
    row_rule(optimizer)
    check_rate(optimizer)
    return optimizer


def check_own(optimizer: keras.optimizers.Optimizer | None, table: str) -> None:
    """Looks at the options of a layer's own optimizer that cannot reach rows.

    Args:
        optimizer: The optimizer, as returned by `get`.
        table: The name of the table, for messages.

    Raises:
        ValueError: For `gradient_accumulation_steps` and `loss_scale_factor`, which change what a
            step is. That the model's optimizer decides, for rows too.
    """
    if optimizer is None:
        return
    for option in ("gradient_accumulation_steps", "loss_scale_factor"):
        value = getattr(optimizer, option, None)
        if value is not None:
            raise ValueError(
                f"Table '{table}': expected an optimizer of the layer's own without {option}. "
                f"Received: {option}={value}. Give it to the optimizer of the model, which decides "
                "when a step is taken and how the loss is scaled, for the rows too."
            )
    warn_of_ignored(optimizer, table)


def warn_of_ignored(optimizer: keras.optimizers.Optimizer, table: str) -> None:
    """Warns if the optimizer averages values, which does not reach rows."""
    if getattr(optimizer, "use_ema", None):
        warnings.warn(
            f"Table '{table}': use_ema of the optimizer '{optimizer.name}' reaches dense variables "
            "only, not the rows of a table.",
            stacklevel=3,
        )


def has_schedule(optimizer: Any) -> bool:
    """Returns whether the rate of a Keras optimizer depends on the step that it is asked for."""
    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def serialize(optimizer: keras.optimizers.Optimizer | None) -> dict[str, Any] | None:
    """Returns the config of an optimizer, from which `get` makes an equal one, or `None`."""
    if optimizer is None:
        return None
    config: dict[str, Any] = keras.optimizers.serialize(optimizer)
    return config


def _describe(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} (expected an instance of it)"
    text = shown(value)
    return text if text == type(value).__name__ else f"{text} of type {type(value).__name__}"
