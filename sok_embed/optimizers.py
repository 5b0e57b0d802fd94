"""Optimizers and their native twins: the rules that update rows of a table.

A table has no `tf.Variable`, so no optimizer of Keras or `tf.compat.v1.train` can update it.
`row_rule` says which rule of the C++ core computes the same thing, with which hyperparameters. The
learning rate is not among them: it may change between steps, and travels with each commit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from sok_embed import v1_optimizers
from sok_embed.arguments import shown

__all__ = [
    "GroupFtrl",
    "GroupFtrlOptimizer",
    "RowRule",
    "RowwiseAdagrad",
    "get",
    "row_rule",
    "serialize",
]

GroupFtrlOptimizer = v1_optimizers.GroupFtrlOptimizer


@dataclass(frozen=True)
class RowRule:
    """A rule of the C++ core, with its parameters.

    Attributes:
        name: Its name in the core's registry, e.g. `"adam"`. It decides the slots of a row.
        hyper: The parameters by Keras' names, all but `learning_rate`. Floats, but for what an
            optimizer of `tf.compat.v1.train` was given as a tensor: scalars of that graph.
    """

    name: str
    hyper: dict[str, Any]


@keras.saving.register_keras_serializable(package="sok_embed")
class RowwiseAdagrad(keras.optimizers.Optimizer):
    """Adagrad with one accumulator a row: the running sum of the mean square of its gradient.

    An embedding row of `dim` floats needs one float of optimizer state instead of `dim`. The
    formula and the defaults are those of `EXACT_ROWWISE_ADAGRAD` in FBGEMM's table batched
    embeddings, without its weight decay modes; `weight_decay` here is Keras', decoupled:

    ```
    accumulator += mean(gradient ** 2)                              # over the last axis
    w -= learning_rate * gradient / (sqrt(accumulator) + epsilon)
    ```

    It trains dense variables too. A matrix has one accumulator for each of its rows, of shape
    `shape[:-1] + (1,)`; a vector is one row; a scalar has an accumulator of its own.

    Example:
    >>> optimizer = RowwiseAdagrad(learning_rate=0.1)
    >>> row_rule(optimizer).name
    'rowwise_adagrad'

    Args:
        learning_rate: A float, a `keras.optimizers.schedules.LearningRateSchedule`, or a callable
            without arguments. Defaults to 0.01.
        initial_accumulator_value: What accumulators start from, at least 0. Defaults to 0.
        epsilon: Added to the denominator, at least 0. Defaults to 1e-8.
        **kwargs: Those of `keras.optimizers.Optimizer`: `weight_decay`, `name`, ….

    Raises:
        ValueError: For a negative `initial_accumulator_value` or `epsilon`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        for argument, value in (
            ("initial_accumulator_value", initial_accumulator_value),
            ("epsilon", epsilon),
        ):
            if not value >= 0:
                raise ValueError(f"Expected {argument} >= 0. Received: {argument}={value}.")
        super().__init__(learning_rate=learning_rate, **kwargs)
        _check_rate(self)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def build(self, variables: list[Any]) -> None:
        """Makes one accumulator for each variable."""
        if self.built:
            return
        super().build(variables)
        initializer = keras.initializers.Constant(self.initial_accumulator_value)
        self._accumulators = [
            self.add_variable(
                shape=(*variable.shape[:-1], 1) if len(variable.shape) else (),
                initializer=initializer,
                dtype=variable.dtype,
                name=f"{_variable_path(variable)}_accumulator",
            )
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its accumulator."""
        if isinstance(gradient, tf.IndexedSlices):
            # A row that occurs twice has the sum of its gradients, before they are squared.
            gradient = tf.convert_to_tensor(gradient)
        learning_rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        accumulator = self._accumulators[self._get_variable_index(variable)]
        square = ops.square(gradient)
        if len(variable.shape):
            square = ops.mean(square, axis=-1, keepdims=True)
        self.assign_add(accumulator, square)
        # Where no gradient has come yet and epsilon is 0, this is 0 rather than 0 / 0.
        rate = ops.divide_no_nan(learning_rate, ops.add(ops.sqrt(accumulator), self.epsilon))
        self.assign_sub(variable, ops.multiply(rate, gradient))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


@keras.saving.register_keras_serializable(package="sok_embed")
class GroupFtrl(keras.optimizers.Ftrl):
    """Ftrl whose l1 regularization sets rows of tables to zero as a whole: a group lasso.

    It is the rule of DeepRec's `tf.train.FtrlOptimizer` for embedding variables, the op
    `KvResourceSparseApplyFtrl` in `tensorflow/core/kernels/training_ali_ops.cc` of
    [DeepRec](https://github.com/DeepRec-AI/DeepRec). A row of weights `w` and gradient `g` has two
    slots, `accumulator` and `linear`:

    ```
    shrunk = g + 2 * l2_shrinkage * w
    total = accumulator + shrunk ** 2
    linear += shrunk - (total ** -power - accumulator ** -power) / learning_rate * w
    norm = sqrt(sum(linear ** 2))                                   # one norm for each row
    eta = total ** -power / learning_rate + 2 * l2 + beta / learning_rate
    w = (l1 - norm) / (eta * norm) * linear if norm > l1 else 0
    accumulator += g ** 2
    ```

    with the power `learning_rate_power`, -0.5. Where l1 is 0, it differs from Ftrl in the l2
    shrinkage only. Dense variables are trained by the formula of `keras.optimizers.Ftrl`, each
    element by itself, as DeepRec does.

    Example:
    >>> row_rule(GroupFtrl(0.1, l1_regularization_strength=2.0)).name
    'group_ftrl'

    Args:
        learning_rate: As `keras.optimizers.Ftrl` has it, and so are all others.
        **kwargs: The others.
    """

    def __init__(self, learning_rate: Any = 0.001, **kwargs: Any) -> None:
        super().__init__(learning_rate, **{"name": "group_ftrl", **kwargs})


def _variable_path(variable: Any) -> str:
    # The name is made as Keras names optimizer variables. A tf.Variable has no path.
    path: str = getattr(variable, "path", variable.name)
    return path.replace("/", "_").replace(":", "_")


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
        Its `RowRule`. `weight_decay=None` is 0.0.

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
    _check_rate(optimizer)
    return optimizer


def _check_rate(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises for a learning rate below 0 or not finite; those of schedules are seen by commits."""
    rate = optimizer._learning_rate
    if not isinstance(rate, keras.Variable):
        return
    with tf.init_scope():  # this works also where a function is traced
        value = float(tf.convert_to_tensor(rate))  # a strategy makes it distributed
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"Expected a learning rate of at least 0. Received: learning_rate={value} in "
            f"{type(optimizer).__name__}. To climb a loss, give the model its negative."
        )


def check_own(optimizer: keras.optimizers.Optimizer | None, table: str) -> None:
    """Looks at the options of a layer's own optimizer that cannot reach rows.

    Args:
        optimizer: What `get` returned.
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
