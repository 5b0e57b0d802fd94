"""Optimizers of vectors: a rule for gradients, and a schedule for its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import (
    MOST_DIMENSION,
    UINT32,
    check_choice,
    check_floats,
    check_integer,
    check_number,
    described,
    shown_arguments,
)
from sok_embed.binding import _core
from sok_embed.binding._core import RULE_PREFIX


class Schedule:
    """A learning rate that changes with the number of updates of a row.

    `schedule(initial, step)` is the learning rate of an update; the first has the step 0.
    Names, parameters and formulas are those of Keras' classes and, for
    `natural_exponential_decay` and `linear_cosine_decay`, of `tf.compat.v1.train`:

    | name | parameters |
    |---|---|
    | `exponential_decay` | `decay_steps`, `decay_rate`, `staircase=False` |
    | `natural_exponential_decay` | `decay_steps`, `decay_rate`, `staircase=False` |
    | `inverse_time_decay` | `decay_steps`, `decay_rate`, `staircase=False` |
    | `polynomial_decay` | `decay_steps`, `end_learning_rate=1e-4`, `power=1`, `cycle=False` |
    | `cosine_decay` | `decay_steps`, `alpha=0`, `warmup_target`, `warmup_steps=0` |
    | `linear_cosine_decay` | `decay_steps`, `num_periods=0.5`, `alpha=0`, `beta=1e-3` |

    Example:
    >>> schedule = Schedule("exponential_decay", decay_steps=10, decay_rate=0.5)
    >>> schedule(0.1, step=20)
    0.025

    Args:
        name: One of the table.
        parameters: The parameters in the table above, as a mapping.
        **more: The same, by name.

    Raises:
        ValueError: For an unknown name or parameter, one that is missing, or a value that the
            schedule cannot work with.
    """

    def __init__(
        self, name: str, parameters: Mapping[str, float] | None = None, /, **more: float
    ) -> None:
        names = _core.schedule_names()
        self.name = check_choice("the name of a schedule", name, names)
        self.parameters = _checked(f"schedule '{name}'", parameters, more, flags=True)
        self(1.0, 0)

    def __call__(self, initial: float, step: int) -> float:
        """Returns the learning rate of an update.

        Args:
            initial: The learning rate that the schedule starts from.
            step: 0 for the first update.
        """
        return _core.schedule_value(self.name, list(self.parameters.items()), float(initial), step)

    def __repr__(self) -> str:
        return f"Schedule({shown_arguments(self.name, self.parameters)})"


class Optimizer:
    """A rule by which gradients change vectors. Each row counts its own updates.

    | name | parameters and defaults |
    |---|---|
    | `sgd` | `gamma` 1e-3, `lambda` 0 |
    | `ftrl` | `alpha` 5e-3, `beta` 0, `lambda1` 0, `lambda2` 0 |
    | `adagrad` | `gamma` 1e-2, `lambda` 0, `eta` 0, `epsilon` 1e-10 |
    | `adam`, `amsgrad` | `gamma` 1e-3, `beta1` 0.9, `beta2` 0.999, `lambda` 0, `epsilon` 1e-8 |
    | `adamw` | as `adam`, with `lambda` 1e-2 |
    | `lion` | `eta` 3e-4, `beta1` 0.9, `beta2` 0.99, `lambda` 1e-2 |

    Formulas are those of PyTorch's `SGD`, `Adagrad` (`eta` is its `lr_decay`), `Adam` and `AdamW`,
    of McMahan et al. 2013, algorithm 1 (`ftrl`), and of Chen et al. 2023, algorithm 2 (`lion`).
    `amsgrad` takes the largest of the bias-corrected velocities, where PyTorch takes it before the
    correction. The bias correction of Adam and the decay of Adagrad go by the updates of the row.

    The learning rate is `gamma`, `alpha` or `eta` (of lion). `lambda` is an L2 penalty, which is
    added to the gradient; in `adamw` and `lion` it is decoupled weight decay.

    Example:
    >>> Optimizer("sgd", gamma=0.1, lambda_=0.01)
    Optimizer('sgd', gamma=0.1, lambda=0.01)

    Args:
        name: One of the table.
        schedule: The schedule of the learning rate; `None`: it is constant.
        parameters: The parameters in the table above, as a mapping.
        **more: The same, by name. `lambda` is a word of Python's own: write `lambda_`.

    Raises:
        ValueError: For an unknown name or parameter, or a value that the rule cannot work with.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule | None = None,
        parameters: Mapping[str, float] | None = None,
        **more: float,
    ) -> None:
        names = [
            r.removeprefix(RULE_PREFIX) for r in _core.rule_names() if r.startswith(RULE_PREFIX)
        ]
        check_choice("the name of an optimizer", name, names)
        if schedule is not None and not isinstance(schedule, Schedule):
            raise TypeError(
                f"Expected a sok_embed.kv.Schedule or None. Received: {described(schedule)}."
            )
        self.name = name
        self.schedule = schedule
        self.rule = RULE_PREFIX + name
        given = _checked(f"optimizer '{name}'", parameters, more)
        self._native = _core.Optimizer(
            self.rule,
            list(given.items()),
            *((schedule.name, list(schedule.parameters.items())) if schedule else ()),
        )
        self.parameters = {**dict(_core.rule_defaults(self.rule)), **given}

    def slot_floats(self, dimension: int) -> int:
        """Returns how many float32 the optimizer keeps for a row, beyond the vector."""
        return self._native.slot_floats(
            check_integer("dimension", dimension, 1, MOST_DIMENSION + 1)
        )

    def apply(
        self, row: npt.NDArray[np.float32], gradient: npt.NDArray[np.float32], number: int = 1
    ) -> None:
        """Applies one update to one row, in place.

        Args:
            row: float32 `[dimension + slot_floats(dimension)]`: the vector, then the optimizer's
                state, 0 at first.
            gradient: float32 `[dimension]`.
            number: 1 for the first update of the row.

        Raises:
            TypeError: For another dtype.
            ValueError: For another size, or a row that cannot be written to.
        """
        gradients = check_floats("gradient", gradient, None)
        dimension = gradients.size
        rows = check_floats("row", row, dimension + self.slot_floats(dimension), writable=True)
        self._native.apply(rows, gradients, check_integer("number", number, 1, UINT32))

    def __repr__(self) -> str:
        parameters: dict[str, Any] = dict(self.parameters)
        if self.schedule is not None:
            parameters["schedule"] = self.schedule
        return f"Optimizer({shown_arguments(self.name, parameters)})"


def _checked(
    owner: str,
    parameters: Mapping[str, float] | None,
    more: Mapping[str, float],
    flags: bool = False,
) -> dict[str, float]:
    """Merges the parameters of `owner` into one dict, without the underscore of `lambda_`."""
    given = {**(parameters or {}), **more}
    return {
        name.removesuffix("_"): check_number(f"{owner}: {name.removesuffix('_')}", value, flags)
        for name, value in given.items()
    }
