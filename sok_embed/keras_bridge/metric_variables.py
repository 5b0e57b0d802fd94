"""Puts variables of metrics of all workers together."""

from __future__ import annotations

from typing import Any

import numpy as np


def put_together(variable: Any, of_each: np.ndarray) -> np.ndarray:
    """Returns the values of a variable of a metric over all workers.

    Args:
        variable: The `keras.Variable`, which says how by its `aggregation`: `"sum"` or `"mean"`. Of
            one of another kind, the value is that of worker 0.
        of_each: The values of each worker, `[workers, ...]`.
    """
    if variable.aggregation == "sum":
        return np.asarray(of_each.sum(0))
    return np.asarray(of_each.mean(0) if variable.aggregation == "mean" else of_each[0])
