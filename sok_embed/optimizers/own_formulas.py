"""Runs the `update_step` of an optimizer of the user's own on the rows of a batch.

The core of this package has no rule for such an optimizer. A commit by the rule `deferred_<n>`,
which has n slots, stores the gradients beside the rows. Then a copy of the optimizer updates these
rows in TensorFlow.
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

# An optimizer is built for a variable with so many rows, and tested with other numbers of rows.
_ROWS = 3
# Arguments of every Keras optimizer that do more than its formula, with values by which they do
# nothing. The optimizer itself has applied them before.
_NEUTRAL = {
    "learning_rate": 0.5,
    "gradient_accumulation_steps": None,
    "loss_scale_factor": None,
    "use_ema": False,
}
_PLAIN = (bool, int, float, str, bytes, type(None), np.generic, np.ndarray)
_VARIABLES = (tf.Variable, keras.Variable)
# The sizes of gradients that are tried: a formula may depend on a norm only above or below a bound.
_SCALES = (1.0, 1e4, 1e-4)
# Operations that run one of several functions, or none.
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile")
_Made = TypeVar("_Made")


class CannotRunOnRows(ValueError):
    """An optimizer cannot run on a part of the rows; the text says why."""


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

        Rows are float32 `[n, dim + slot_floats(dim)]`, as a commit has left them: the embedding,
        the slots, the gradient and the number of the step.
        """
        of_rows = self._copy_for(dim)
        widths = [dim] * (len(self.initials) + 2)
        with tf.device(_HOST):  # rows come from the host's memory, and go back there
            embeddings, *slots, gradient, steps = tf.split(rows, [*widths, 1], axis=1)
            # All rows of a commit have the same step number. There may be no rows.
            step = tf.cast(tf.maximum(tf.reduce_max(steps), 1.0), tf.int64) - 1
            after = of_rows.update(self._optimizer(), [embeddings, *slots], gradient, step, rate)
            return tf.concat([*after, gradient, steps], axis=1)

    def _copy_for(self, dim: int) -> _Copy:
        if dim not in self._copies:
            optimizer = self._optimizer()
            made = _outside_of_scopes(lambda: _Copy(optimizer, dim))
            if made.initials != getattr(self, "initials", made.initials):
                raise CannotRunOnRows(
                    f"whose slots start from {made.initials} for rows of {dim} numbers and from "
                    f"{self.initials} for others"
                )
            self._copies[dim] = made
        return self._copies[dim]


_formulas: weakref.WeakKeyDictionary[Any, OwnFormula] = weakref.WeakKeyDictionary()


def own_formula(optimizer: keras.optimizers.Optimizer) -> OwnFormula:
    """Returns the formula of an optimizer for rows. Warns once that it is slower.

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
        # Variables of the optimizer other than slots, by name: the copy's variable, and the
        # optimizer's.
        self._held: dict[str, tuple[Any, Any]] = {}
        self._plain: set[str] = set()  # names of other attributes that the copy takes over
        self._take_settings(optimizer)
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
            rows: The embeddings `[n, dim]`, then each of their slots.
            gradient: The gradient of the embeddings `[n, dim]`.
            step: The number of steps before this one, an int64 scalar.
            rate: The learning rate.

        Returns:
            The embeddings and slots after the update.
        """
        self._take_settings(optimizer)
        rate = tf.cast(rate, tf.float32)
        # A formula may read the rate of the optimizer, too.
        vars(self._optimizer)["_learning_rate"] = rate
        self._optimizer.iterations.assign(step)
        native = [variable.value for variable in self._variables]
        for variable, value in zip(native, rows, strict=True):
            variable.assign(value)
        self._optimizer.update_step(gradient, native[0], rate)
        return [variable.read_value() for variable in native]

    def _take_settings(self, optimizer: Any) -> None:
        """Sets numbers, functions and variables of the copy to what the optimizer has now."""
        tracked = {id(variable) for variable in optimizer.variables}
        of_copy = (*_NEUTRAL, "built", "_learning_rate", "_trainable_variables_indices")
        for name, value in vars(optimizer).items():
            own = name in of_copy or name.startswith("_self_")
            if own or id(value) in tracked:
                continue
            if isinstance(value, _VARIABLES):
                vars(self._optimizer)[name] = self._variable_like(name, value)
            elif _is_setting(value):
                vars(self._optimizer)[name] = _copied(value)
                self._plain.add(name)

    def _changed_settings(self) -> list[str]:
        """Returns the names of attributes that the copy has changed since it took them."""
        now = vars(self._optimizer)
        return [
            name
            for name, value in vars(self._original()).items()
            if name in now
            and name in self._plain
            and repr(_copied(now[name])) != repr(_copied(value))
        ]

    def _variable_like(self, name: str, variable: Any) -> Any:
        """Returns a variable of the copy with the present value of a variable."""
        held = self._held.get(name)
        if held is None or held[1] is not variable:
            like = keras.Variable if isinstance(variable, keras.Variable) else tf.Variable
            own = _outside_of_scopes(lambda: like(variable.numpy(), trainable=False))
            held = self._held[name] = (own, variable)
        held[0].assign(tf.convert_to_tensor(variable))
        return held[0]

    def check_rows_apart(self) -> list[float]:
        """Raises if the update of a row depends on other rows; returns the starts of slots."""
        random = np.random.default_rng(1)
        embeddings, first, second = random.normal(size=(3, _ROWS - 1, self._dim)).astype(np.float32)
        slots = [np.full_like(embeddings, start) for start in self.initials]

        def trained(rows: Any, scale: float) -> Any:
            state = [tf.constant(each[rows]) for each in (embeddings, *slots)]
            for step, gradient in enumerate((scale * first, scale * second)):
                state = self.update(self._original(), state, tf.constant(gradient[rows]), step, 0.1)
            return np.stack(state)

        def tried() -> tuple[Any, Any]:
            together, alone = [], []
            for scale in _SCALES:
                apart = [trained(slice(row, row + 1), scale) for row in range(_ROWS - 1)]
                together.append(trained(slice(None), scale))
                alone.append(np.concatenate(apart, axis=1))
            return np.stack(together), np.stack(alone)

        def first_step() -> Any:
            return self.update(self._original(), [embeddings, *slots], tf.constant(first), 0, 0.1)

        try:
            together, alone = _outside_of_scopes(tried)
            traced = _outside_of_scopes(
                lambda: tf.function(first_step, autograph=False).get_concrete_function().graph
            )
        except Exception as error:
            raise CannotRunOnRows(
                f"whose own `update_step` fails on a part of the rows: {error}"
            ) from error
        changed = [name for name, (own, value) in self._held.items() if _differ(own, value)]
        changed += self._changed_settings()
        if changed:
            raise CannotRunOnRows(
                f"whose own `update_step` changes {', '.join(changed)}, which is not a slot: it "
                "would change once for dense weights and once for rows. Use `iterations`, or "
                "change it outside of `update_step`"
            )
        rows = [at for of, at in traced.captures if of is self._variables[0].value.handle]
        assigned = [
            each
            for each in traced.get_operations()
            if each.type.startswith("Assign") and any(each.inputs[0] is at for at in rows)
        ]
        if len(assigned) > 2:  # the first one sets the rows
            raise CannotRunOnRows(
                "whose own `update_step` assigns the variable more than once, of which rows would "
                "follow the first. Add the changes and assign it once"
            )
        # With an update in a branch the commit would be in that branch, too, and gradients of steps
        # that do not take it would be lost.
        branches = [each for each in traced.get_operations() if each.type in _BRANCHES]
        if any(each is at for branch in branches for each in branch.inputs for at in rows):
            raise CannotRunOnRows(
                "whose own `update_step` reads or updates the variable within tf.cond or "
                "tf.while_loop. Do that outside of it, and choose the change with tf.where"
            )
        if not np.allclose(together, alone, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise CannotRunOnRows(
                "whose own `update_step` is random, or has the update of a row depend on other "
                "rows, of which a table has those of the batch alone"
            )
        return self.initials


def _made_again(optimizer: Any) -> Any:
    """Makes an optimizer of the same class and config, without what is not of the formula."""
    cls = optimizer.__class__  # for a DistributedOptimizer this is the class that it wraps
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a rate that is a lambda, which is not copied
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


def _is_setting(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_setting(each) for each in value)
    return isinstance(value, (*_PLAIN, FunctionType))


def _copied(value: Any) -> Any:
    """Returns a setting with copies of its dicts and lists."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value


def _differ(one: Any, other: Any) -> bool:
    return not np.array_equal(one.numpy(), other.numpy(), equal_nan=True)


def _slots(optimizer: Any, rows: Any) -> list[Any]:
    """Returns the slots of a variable; raises unless each has one number for each element."""
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
    """Gives a variable a value with any number of rows, and keeps its identity."""
    native = tf.Variable(variable.numpy(), shape=[None, dim], trainable=False, name=variable.name)
    native._unique_id = variable.value._unique_id  # optimizers identify variables by it
    variable._value = native
    variable._shape = (None, dim)


def _outside_of_scopes(make: Callable[[], _Made]) -> _Made:
    """Calls a function eagerly, outside of the functions and strategies that the caller is in."""

    def on_host() -> _Made:
        with tf.device(_HOST):
            return make()

    with ThreadPoolExecutor(1) as thread:  # each thread has scopes of its own
        return thread.submit(on_host).result()
