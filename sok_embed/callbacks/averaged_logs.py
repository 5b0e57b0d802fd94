"""Averages logs over all workers, so that callbacks decide alike on each of them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from sok_embed import communicators
from sok_embed.communicators.agreement import (
    Agreement,
    bits_of,
    check_same,
    floats_of,
    number_of_text,
)


class AverageMetrics(keras.callbacks.Callback):
    """Averages the figures in the logs over all workers, at the end of epochs and evaluations.

    Each worker has the metrics of its own examples. Callbacks that come after this one see the
    averages: `History`, the progress bar at the end of an epoch, `ReduceLROnPlateau`, which then
    sets the same learning rate on all workers, `CSVLogger` and `TensorBoard`. So it must be the
    first in the list, on all workers. Figures that other callbacks add later stay those of the
    worker.

    Each worker has the same weight, however many examples it had. The average of a metric that is
    not a mean over examples, such as AUC, is near the metric of all examples, but not equal.
    Figures within an epoch, and the result of `evaluate`, which Keras makes before callbacks run,
    are those of the worker alone.

    Example:
    >>> callbacks = [AverageMetrics(), keras.callbacks.ReduceLROnPlateau("val_loss")]

    Raises:
        ValueError: From `fit` and `evaluate`, on all workers, if they have other names in their
            logs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fitting = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes that validations are now parts of epochs, whose averages include them."""
        self._fitting = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages the figures of the epoch, including those of its validation."""
        if logs:
            logs.update(averaged_logs(logs))

    def on_train_end(self, logs: Any = None) -> None:
        """Notes that from now on an evaluation is not part of an epoch."""
        self._fitting = False

    def on_test_end(self, logs: Any = None) -> None:
        """Averages the figures of an evaluation that is not part of an epoch."""
        if logs and not self._fitting:
            logs.update(averaged_logs(logs))


def averaged_logs(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns logs whose numbers are the averages over all workers, the same bits on each.

    Collective. Values that are not numbers stay as they are.

    Args:
        logs: The logs of an epoch or a batch on this worker.

    Raises:
        ValueError: On all workers, if they have other names in their logs.
    """
    own = dict(logs or {})
    communicator = communicators.current()
    if communicator.size == 1:
        return own
    agreement = Agreement(communicator)
    scalars = {name: float(own[name]) for name in sorted(own) if is_number(own[name])}
    # Sums of floats may depend on their order, so workers exchange their bits.
    bits = bits_of(list(scalars.values()))
    told = agreement.gather_lists([number_of_text(repr(list(scalars))), *bits], "logs")
    remedy = "Give all of them the same metrics, and data to validate on."
    check_same("numbers in the logs", [each[0] for each in told], remedy, texts=True)
    columns = zip(*(floats_of(each[1:]) for each in told), strict=True)
    for name, column in zip(scalars, columns, strict=True):
        own[name] = _average(column)
    return own


def is_number(value: Any) -> bool:
    """Returns whether a value of logs is a number, or a tensor that holds one."""
    is_scalar = isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()
    return is_scalar and not isinstance(value, (str, bytes))


def _average(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):
        return float(np.sum(values) / len(values))  # fsum raises for infinities of both signs
    return math.fsum(values) / len(values)
