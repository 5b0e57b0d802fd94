"""Runs the `update_step` of a Keras optimizer of somebody else on the rows of a batch.

The core of this package has no rule for such an optimizer. A commit leaves the gradients beside the
rows, by the rule `deferred_<n>` of n slots, and then a copy of the optimizer updates the rows that
were read, in TensorFlow.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

MOST_SLOTS = 8
_HOST = "/device:CPU:0"

# Optimizers are built for a variable of so many rows, and tried with other numbers of rows.
_ROWS = 3
# Arguments of every Keras optimizer that change more than the formula, with the values that leave
# the formula alone. The optimizer itself has done what they ask for.
_NEUTRAL = {
    "learning_rate": 0.5,
    "gradient_accumulation_steps": None,
    "loss_scale_factor": None,
    "use_ema": False,
}
_PLAIN = (bool, int, float, str, bytes, type(None), np.generic, np.ndarray)
_VARIABLES = (tf.Variable, keras.Variable)
_Made = TypeVar("_Made")


class CannotRunOnRows(ValueError):
    """Says why an optimizer cannot run on a part of the rows."""


class OwnFormula:
    """The formula of an optimizer, for rows of tables.

    Args:
        optimizer: A Keras optimizer with an `update_step` of its own.

    Attributes:
        initials: The numbers that slots start from, in the order of the slots.

    Raises:
        CannotRunOnRows: If the formula needs more than one row, or cannot be copied.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._copies: dict[int, _Copy] = {}  # by the length of rows
        self.initials = self._copy_for(2).check_rows_apart()

    @property
    def rule(self) -> str:
        """The rule of the core that keeps the slots."""
        return f"deferred_{len(self.initials)}"

    def slot_floats(self, dim: int) -> int:
        """Returns how many floats follow an embedding of `dim` floats in a row."""
        return (len(self.initials) + 1) * dim + 1

    def __call__(self, rows: tf.Tensor, dim: int, rate: Any) -> tf.Tensor:
        """Returns rows after the update.

        Args:
            rows: Rows as a commit has left them, float32 `[n, dim + slot_floats(dim)]`: the
                embedding, the slots, the gradient and the number of the step.
            dim: The length of an embedding.
            rate: The learning rate.
        """
        copy = self._copy_for(dim)
        widths = [dim] * (len(self.initials) + 2)
        with tf.device(_HOST):  # rows come from its memory, and go back there
            embeddings, *slots, gradient, steps = tf.split(rows, [*widths, 1], axis=1)
            # All rows of a commit have the number of the same step; there may be no rows.
            step = tf.cast(tf.maximum(tf.reduce_max(steps), 1.0), tf.int64) - 1
            after = copy.update(self._optimizer(), [embeddings, *slots], gradient, step, rate)
            return tf.concat([*after, gradient, steps], axis=1)

    def _copy_for(self, dim: int) -> _Copy:
        if dim not in self._copies:
            optimizer = self._optimizer()
            copy = _outside_of_scopes(lambda: _Copy(optimizer, dim))
            if copy.initials != getattr(self, "initials", copy.initials):
                raise CannotRunOnRows(
                    f"whose slots start from {copy.initials} for rows of {dim} numbers and from "
                    f"{self.initials} for others"
                )
            self._copies[dim] = copy
        return self._copies[dim]


_formulas: weakref.WeakKeyDictionary[Any, OwnFormula] = weakref.WeakKeyDictionary()


def own_formula(optimizer: keras.optimizers.Optimizer) -> OwnFormula:
    """Returns the formula of an optimizer for rows. Warns once that it is slower.

    Args:
        optimizer: A Keras optimizer with an `update_step` of its own.

    Raises:
        CannotRunOnRows: If the formula needs more than one row, or cannot be copied.
    """
    if optimizer not in _formulas:
        _formulas[optimizer] = OwnFormula(optimizer)
        warnings.warn(
            f"{optimizer.__class__.__name__} has an update_step of its own, which updates the rows "
            "of each batch through TensorFlow: they are read, updated and written back. This is "
            "slower than the rules that sok_embed has for the optimizers of Keras.",
            stacklevel=2,
        )
    return _formulas[optimizer]


class _Copy:
    """A copy of an optimizer that has one variable, of any number of rows."""

    def __init__(self, optimizer: Any, dim: int) -> None:
        self._original = weakref.ref(optimizer)
        self._dim = dim
        self._optimizer = _made_again(optimizer)
        _take_settings(self._optimizer, optimizer)
        start = 0.5 + np.arange(_ROWS * dim, dtype=np.float32).reshape(_ROWS, dim)
        rows = keras.Variable(start, name="rows")
        try:
            self._optimizer.build([rows])
        except Exception as error:
            raise CannotRunOnRows(f"whose `build` fails for a matrix: {error}") from error
        held = vars(self._optimizer).values()
        if any(isinstance(each, keras.optimizers.Optimizer) for each in held):
            raise CannotRunOnRows("which holds another optimizer, whose slots are not known")
        slots = _slots(self._optimizer, rows)
        self.initials = [float(slot.numpy().flat[0]) for slot in slots]
        self._variables = [rows, *slots]
        for variable in self._variables:
            _allow_any_rows(variable, dim)

    def update(
        self, optimizer: Any, rows: Sequence[tf.Tensor], gradient: tf.Tensor, step: Any, rate: Any
    ) -> list[tf.Tensor]:
        """Runs `update_step` on rows.

        Args:
            optimizer: The optimizer, as it is now.
            rows: The embeddings `[n, dim]`, and each slot of them.
            gradient: The gradient of the embeddings `[n, dim]`.
            step: The number of steps before this one, an int64 scalar.
            rate: The learning rate.

        Returns:
            The embeddings and slots after the update.
        """
        _take_settings(self._optimizer, optimizer)
        rate = tf.cast(rate, tf.float32)
        # A formula may ask the optimizer for its rate, too.
        vars(self._optimizer)["_learning_rate"] = rate
        self._optimizer.iterations.assign(step)
        native = [variable.value for variable in self._variables]
        for variable, value in zip(native, rows, strict=True):
            variable.assign(value)
        self._optimizer.update_step(gradient, native[0], rate)
        return [variable.read_value() for variable in native]

    def check_rows_apart(self) -> list[float]:
        """Raises if the update of a row depends on other rows; returns the starts of slots."""
        random = np.random.default_rng(1)
        embeddings, first, second = random.normal(size=(3, _ROWS - 1, self._dim)).astype(np.float32)
        slots = [np.full_like(embeddings, start) for start in self.initials]

        def trained(rows: Any) -> Any:
            state = [tf.constant(each[rows]) for each in (embeddings, *slots)]
            for step, gradient in enumerate((first, second)):
                state = self.update(self._original(), state, tf.constant(gradient[rows]), step, 0.1)
            return np.stack(state)

        def tried() -> tuple[Any, Any]:
            apart = [trained(slice(row, row + 1)) for row in range(_ROWS - 1)]
            return trained(slice(None)), np.concatenate(apart, axis=1)

        try:
            together, alone = _outside_of_scopes(tried)
        except Exception as error:
            raise CannotRunOnRows(
                f"whose own `update_step` fails on a part of the rows: {error}"
            ) from error
        if not np.allclose(together, alone, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise CannotRunOnRows(
                "whose own `update_step` is random, or has the update of a row depend on other "
                "rows, of which a table has those of the batch alone"
            )
        return self.initials


def _made_again(optimizer: Any) -> Any:
    """Makes an optimizer of the same class and config, but for what is not of the formula."""
    cls = optimizer.__class__  # that of a DistributedOptimizer is the class that it wraps
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a rate that is a lambda, which is not copied
            config = optimizer.get_config()
    except Exception as error:
        raise CannotRunOnRows(f"whose get_config fails: {error}") from error
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    arguments = list(inspect.signature(cls.__init__).parameters.values())[1:]
    lacking = [
        each.name for each in arguments if each.kind not in variadic and each.name not in config
    ]
    if lacking:
        raise CannotRunOnRows(
            f"of which no copy can be made for rows: its get_config lacks {', '.join(lacking)} of "
            "its constructor. Add them"
        )
    config.update({name: value for name, value in _NEUTRAL.items() if name in config})
    try:
        return cls.from_config(config)
    except Exception as error:
        raise CannotRunOnRows(
            f"of which no copy can be made for rows by from_config: {error}"
        ) from error


def _take_settings(copy: Any, optimizer: Any) -> None:
    """Sets the attributes of a copy to what they are now: numbers, functions, variables."""
    tracked = {id(variable) for variable in optimizer.variables}
    for name, value in vars(optimizer).items():
        own = name in (*_NEUTRAL, "built", "_learning_rate") or name.startswith("_self_")
        if not own and id(value) not in tracked and _is_setting(value):
            vars(copy)[name] = value


def _is_setting(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(each, _PLAIN) for each in value)
    return isinstance(value, (*_PLAIN, *_VARIABLES, FunctionType))


def _slots(optimizer: Any, rows: Any) -> list[Any]:
    """Returns the slots of a variable, each of which has one number for each element."""
    others = (id(optimizer.iterations), id(optimizer._learning_rate))
    slots = [each for each in optimizer.variables if id(each) not in others]
    for slot in slots:
        if tuple(slot.shape) != tuple(rows.shape) or slot.dtype != "float32":
            raise CannotRunOnRows(
                f"whose slot '{slot.name}' is {slot.dtype} of shape {tuple(slot.shape)} for a "
                f"matrix of shape {tuple(rows.shape)}: slots of rows are float32 of the same shape"
            )
        if np.ptp(slot.numpy()) != 0:
            raise CannotRunOnRows(
                f"whose slot '{slot.name}' starts from different numbers: slots of rows start from "
                "one"
            )
    if len(slots) > MOST_SLOTS:
        raise CannotRunOnRows(f"which has {len(slots)} slots: rows have at most {MOST_SLOTS}")
    return slots


def _allow_any_rows(variable: Any, dim: int) -> None:
    """Gives a variable a value that takes any number of rows, and the same identity."""
    native = tf.Variable(variable.numpy(), shape=[None, dim], trainable=False, name=variable.name)
    native._unique_id = variable.value._unique_id  # optimizers know variables by it
    variable._value = native
    variable._shape = (None, dim)


def _outside_of_scopes(make: Callable[[], _Made]) -> _Made:
    """Calls a function eagerly, outside of the functions and strategies that the caller is in."""

    def on_host() -> _Made:
        with tf.device(_HOST):
            return make()

    with ThreadPoolExecutor(1) as thread:  # scopes are those of a thread
        return thread.submit(on_host).result()
