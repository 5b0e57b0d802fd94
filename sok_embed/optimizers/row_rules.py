"""Optimizers and their native twins: the rules that update rows of a table.

A table has no `tf.Variable`, so no optimizer of Keras or `tf.compat.v1.train` can update it.
`row_rule` says which rule of the C++ core computes the same thing, with which hyperparameters. The
learning rate is not among them: it may change between steps, and travels with each commit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import shown
from sok_embed.binding import _core
from sok_embed.binding.rules import TWINS, Twin, rule_of_class
from sok_embed.optimizers import keras_optimizers, v1_optimizers
from sok_embed.optimizers.own_formulas import CannotRunOnRows, OwnFormula, own_formula


@dataclass(frozen=True)
class RowRule:
    """A rule of the C++ core, with its parameters.

    Attributes:
        name: The name of the rule in the core's registry, e.g. `"adam"`. It decides the slots of a
            row.
        hyper: The parameters by Keras' names, all but `learning_rate`. Floats; scalars of the graph
            for arguments that an optimizer of `tf.compat.v1.train` was given as tensors.
        formula: The update of rows that the rule defers to TensorFlow, for an optimizer with an
            `update_step` of its own. `None`: the core updates the rows.
    """

    name: str
    hyper: dict[str, Any]
    formula: OwnFormula | None = None


# Parameters that are not attributes of a Keras optimizer: each commit is given the learning rate,
# and the velocity of RMSprop starts from another number than 0 only for tf.compat.v1.train.
_OF_THE_CORE_ALONE = ("learning_rate", "initial_velocity")


def _class_of(twin: Twin) -> type[Any]:
    """Returns the class of a twin's optimizer, from Keras or from this package."""
    home = keras_optimizers if hasattr(keras_optimizers, twin.optimizer) else keras.optimizers
    found: type[Any] = getattr(home, twin.optimizer)
    return found


_CLASSES = {_class_of(twin): twin.optimizer for twin in TWINS}
_REMEDY = "Give the table one of these with `optimizer=`, or train the model"
_BY_NAME = {twin.rule: twin for twin in TWINS if twin.arguments is not None}


@functools.cache
def _parameters(rule: str) -> tuple[str, ...]:
    """Returns the parameters of a rule that are attributes of its Keras optimizer."""
    names = (name for name, _ in _core.rule_defaults(rule))
    return tuple(name for name in names if name not in _OF_THE_CORE_ALONE)


def row_rule(optimizer: Any) -> RowRule:
    """Finds the rule of the C++ core that computes what an optimizer computes.

    A subclass has the twin of the class it comes from, unless it has a formula of its own. An
    optimizer with an `update_step` of its own runs on the rows of each batch, in TensorFlow.

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
        ValueError: If no rule computes the same, with the list of the classes that have one; for an
            `update_step` of its own that cannot run on a part of the rows; and for `use_ema`, which
            does not reach rows.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        known = _known(optimizer, v1_optimizers.TWINS, v1_optimizers.FORMULA, "Train the model")
        return RowRule(*v1_optimizers.TWINS[known].rule_of(optimizer))
    own = _has_own_formula(optimizer)
    known = type(optimizer) if own else _known(optimizer, _CLASSES, (), _REMEDY)
    if optimizer.use_ema:
        raise ValueError(
            "Expected an optimizer without use_ema, which averages dense variables alone and would "
            f"leave rows of a table beside them as they are. Received: {_describe(optimizer)} with "
            "use_ema=True. Leave it out, or give the table an optimizer of its own by `optimizer=`."
        )
    for method in ("_apply_weight_decay", "_use_weight_decay"):
        if getattr(type(optimizer), method) is not getattr(keras.optimizers.Optimizer, method):
            raise ValueError(
                f"Expected an optimizer with the weight decay of Keras. Received: "
                f"{_describe(optimizer)}, which has a {method} of its own: it would reach dense "
                "variables alone. Decay in `update_step`, or give the table an optimizer of its "
                "own by `optimizer=`."
            )
    if own:
        return _deferred(optimizer)
    rule = rule_of_class(_CLASSES[known], functools.partial(getattr, optimizer))
    assert rule is not None  # TWINS has a row for each choice of a class's options
    hyper = {name: getattr(optimizer, name) for name in _parameters(rule)}
    if hyper["weight_decay"] is None:
        hyper["weight_decay"] = 0.0
    return RowRule(rule, {name: float(value) for name, value in hyper.items()})


def _has_own_formula(optimizer: Any) -> bool:
    """Returns whether a class outside of Keras and this package has written `update_step`."""
    for cls in type(optimizer).__mro__:
        if "update_step" in vars(cls):
            return cls.__module__.partition(".")[0] not in ("keras", "sok_embed")
    return False


def _deferred(optimizer: Any) -> RowRule:
    """Returns the rule of an optimizer that has an `update_step` of its own."""
    try:
        formula = own_formula(optimizer)
    except CannotRunOnRows as error:
        raise ValueError(
            f"Expected an optimizer that can train rows of a table: {_names(_CLASSES)}, or one "
            f"whose `update_step` runs on any rows. Received: {_describe(optimizer)}, {error}. "
            f"{_REMEDY} with one."
        ) from error
    hyper = {f"initial_{slot}": value for slot, value in enumerate(formula.initials)}
    hyper["weight_decay"] = float(optimizer.weight_decay or 0.0)
    return RowRule(formula.rule, hyper, formula)


def _names(classes: Iterable[type[Any]]) -> str:
    return ", ".join(each.__name__ for each in classes)


def _known(
    optimizer: Any, twins: Mapping[type[Any], Any], formula: tuple[str, ...], remedy: str
) -> type[Any]:
    """Returns the class among `twins` whose formula an optimizer has; raises if there is none."""
    cls = type(optimizer)
    for known in cls.__mro__:
        if known in twins:
            break
    else:
        raise ValueError(
            f"Expected an optimizer that can train rows of a table: {_names(twins)}. "
            f"Received: {_describe(optimizer)}. {remedy} with one."
        )
    for method in formula:
        if getattr(cls, method) is not getattr(known, method):
            raise ValueError(
                f"Expected an optimizer that can train rows of a table: {_names(twins)}, or a "
                f"subclass that keeps the formula. Received: {_describe(optimizer)}, whose own "
                f"`{method}` replaces that of {known.__name__}. {remedy} with one."
            )
    return known


def get(identifier: Any) -> keras.optimizers.Optimizer | None:
    """Makes a Keras optimizer from the argument `optimizer=` of a layer.

    Example:
    >>> get("momentum").momentum
    0.9

    Args:
        identifier: `None`; the name of a rule, such as `"adam"` or `"momentum"`, which is
            `SGD(momentum=0.9)`, in upper or lower case; a Keras optimizer; or the config that
            `serialize` made of one. `sok_embed.binding.rules` has all names.

    Returns:
        A Keras optimizer for which `row_rule` finds a rule, or `None` for `None`.

    Raises:
        ValueError: For anything else, and for a learning rate that is negative, NaN or infinite.
    """
    if identifier is None:
        return None
    if isinstance(identifier, str):
        twin = _BY_NAME.get(identifier.lower())
        if twin is None:
            raise ValueError(
                f"Expected an optimizer's name of {', '.join(_BY_NAME)}, or a "
                f"`keras.optimizers.Optimizer` object. Received: {shown(identifier)}."
            )
        optimizer = _class_of(twin)(**(twin.arguments or {}))
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
    keras_optimizers.check_rate(optimizer)
    return optimizer


def check_own(optimizer: keras.optimizers.Optimizer | None, table: str) -> None:
    """Checks that a layer's own optimizer has no options that cannot work for rows.

    Raises:
        ValueError: For `gradient_accumulation_steps` and `loss_scale_factor`, which change what a
            step is. The optimizer of the model decides that, for rows too.
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


def has_schedule(optimizer: Any) -> bool:
    """Returns whether the rate of a Keras optimizer depends on the step."""
    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def serialize(optimizer: keras.optimizers.Optimizer | None) -> dict[str, Any] | None:
    """Returns the config of an optimizer, from which `get` makes an equal one, or `None`."""
    if optimizer is None:
        return None
    config: dict[str, Any] = keras.optimizers.serialize(optimizer)
    return config


def config_of(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Returns the config of an optimizer; a learning rate that is a function or schedule stays one.

    Example:
    >>> config_of(keras.optimizers.SGD(0.5))["learning_rate"]
    0.5
    """
    rate: Any = optimizer._learning_rate
    if not callable(rate):
        return dict(optimizer.get_config())
    optimizer._learning_rate = None
    try:
        return {**optimizer.get_config(), "learning_rate": rate}
    finally:
        optimizer._learning_rate = rate


def _describe(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} (expected an instance of it)"
    text = shown(value)
    return text if text == type(value).__name__ else f"{text} of type {type(value).__name__}"
