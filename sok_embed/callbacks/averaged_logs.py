"""The logs of all workers, for callbacks that decide by them: all decide alike."""

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
    averages: `History`, the progress bar at the end of an epoch, `ReduceLROnPlateau`, which has all
    workers take the same learning rate then, `CSVLogger` and `TensorBoard`. So it is the first in
    the list, on all workers. Figures that other callbacks add later stay those of the worker.

    Workers count alike, however many examples each of them had. The average of a metric that is not
    a mean over examples, as AUC, is near that of all examples, not the same. Figures in the midst
    of an epoch, and what `evaluate` returns, which Keras takes before callbacks are asked, are
    those of the worker.

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
        """Notes that validations are parts of epochs, which average them."""
        self._fitting = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages the figures of the epoch, those of its validation among them."""
        if logs:
            logs.update(averaged_logs(logs))

    def on_train_end(self, logs: Any = None) -> None:
        """Notes that an evaluation is one by itself from now on."""
        self._fitting = False

    def on_test_end(self, logs: Any = None) -> None:
        """Averages the figures of an evaluation by itself."""
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
