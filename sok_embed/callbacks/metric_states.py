"""Metrics over the examples of all workers, from what the metrics of each have counted."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from sok_embed.keras_bridge.metric_variables import put_together

_WAYS = {"sum", "mean", "only_first_replica"}


class MetricStates:
    """Keeps what the metrics of a model have counted on this worker at one time.

    A metric says of each of its variables how those of replicas are put together. A sum of losses
    and a number of examples are summed, so the metric of all workers is that of all examples.
    """

    def __init__(self, model: keras.Model, prefix: str = "") -> None:
        self._metrics: list[tuple[Any, list[np.ndarray]]] = []
        self._results: list[dict[str, float]] = []
        self._prefix = prefix
        for metric in model.metrics if model.compiled else ():
            variables = metric.variables
            ways = {variable.aggregation for variable in variables}
            if not variables or ways - _WAYS:
                continue
            values = [np.asarray(keras.ops.convert_to_numpy(each.value)) for each in variables]
            self._metrics.append((metric, values))
            self._results.append(self._results_of(metric, values))

    def agreeing(self, logs: Mapping[str, Any]) -> set[str]:
        """Returns the names of the logs that are what metrics were then."""
        return {
            name
            for results in self._results
            for name, value in results.items()
            if is_number(logs.get(name))
            and math.isclose(float(logs[name]), value, rel_tol=1e-5, abs_tol=1e-12)
        }

    @property
    def layout(self) -> str:
        """The names of the metrics, with the shapes and dtypes of their variables."""
        return repr(
            [
                (list(results), [(value.shape, value.dtype.str) for value in values])
                for results, (_, values) in zip(self._results, self._metrics, strict=True)
            ]
        )

    @property
    def values(self) -> np.ndarray:
        """All values of the states, float64."""
        flat = [value.astype(np.float64).ravel() for _, values in self._metrics for value in values]
        return np.concatenate([np.zeros(0), *flat])

    def of_all(self, states: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the metrics of all workers, from the `values` of each in the order of ranks."""
        together: dict[str, float] = {}
        at = 0
        for metric, values in self._metrics:
            combined = []
            for variable, value in zip(metric.variables, values, strict=True):
                of_each = np.stack([each[at : at + value.size] for each in states])
                at += value.size
                joined = put_together(variable, of_each)
                combined.append(joined.reshape(value.shape).astype(value.dtype))
            together.update(self._results_of(metric, combined))
        return together

    def _results_of(self, metric: Any, values: Sequence[np.ndarray]) -> dict[str, float]:
        result = metric.stateless_result([keras.ops.convert_to_tensor(each) for each in values])
        named = result if isinstance(result, dict) else {metric.name: result}
        return {self._prefix + name: float(each) for name, each in named.items() if is_number(each)}


def is_number(value: Any) -> bool:
    """Returns whether a value of logs is a number, or a tensor that holds one."""
    is_scalar = isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()
    return is_scalar and not isinstance(value, (str, bytes))
