"""Constraints of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from sok_embed.keras_bridge.keras_arguments import function_of_rows

Constraint = Callable[[tf.Tensor], Any]

_BY_AXIS = (
    keras.constraints.MaxNorm,
    keras.constraints.MinMaxNorm,
    keras.constraints.UnitNorm,
)


def get(identifier: Any) -> Any:
    """Returns the constraint of an argument as a function of rows `[n, dim]`, or `None`.

    Args:
        identifier: A Keras constraint, its name or config, a function of rows, or `None`.

    Raises:
        ValueError: For anything else, and for a constraint that needs more than one row.
    """
    constraint = function_of_rows("Constraint", keras.constraints.get, identifier)
    name = type(constraint).__name__
    if isinstance(constraint, _BY_AXIS) and not _is_of_rows(constraint.axis):
        raise ValueError(
            "Expected a constraint that acts on each row by itself. Received: "
            f"{name}(axis={constraint.axis!r}), which needs all rows of the table. Give the axis "
            f"of a row: keras.constraints.{name}(axis=1)."
        )
    return constraint


def _is_of_rows(axis: Any) -> bool:
    axes = list(axis) if isinstance(axis, Sequence) else [axis]
    return axes in ([1], [-1])
