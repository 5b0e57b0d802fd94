"""Makes logs those of all workers, so that callbacks decide alike on each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sok_embed import communicators
from sok_embed.callbacks.fit_or_evaluate import FitOrEvaluate
from sok_embed.callbacks.metric_states import MetricStates, is_number
from sok_embed.communicators.agreement import (
    Agreement,
    bits_of,
    check_same,
    floats_of,
    number_of_text,
)


class FiguresOfAll(FitOrEvaluate):
    """Makes the figures of all workers of those in the logs of one: a base of callbacks."""

    _trained: MetricStates | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes that nothing has been validated in this epoch."""
        super().on_epoch_begin(epoch, logs)
        self._trained = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Keeps what metrics have counted in training, before the validation resets them."""
        super().on_test_begin(logs)
        if self._fitting and communicators.size() > 1:
            self._trained = MetricStates(self.model)

    def figures_of_all(self, logs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns logs whose numbers are those of all workers, as `averaged_logs`. Collective."""
        if communicators.size() == 1:
            return dict(logs or {})
        if self._trained is None:
            return averaged_logs(logs, [MetricStates(self.model)])
        return averaged_logs(logs, [self._trained, MetricStates(self.model, "val_")])


class AverageMetrics(FiguresOfAll):
    """Makes the figures in the logs those of all workers, at the end of epochs and evaluations.

    Each worker has the metrics of its own examples. Callbacks that come after this one see those of
    the examples of all workers: `History`, the progress bar at the end of an epoch,
    `ReduceLROnPlateau`, which then sets the same learning rate on all workers, `CSVLogger` and
    `TensorBoard`. So it must be the first in the list, on all workers. Figures that other callbacks
    add later stay those of the worker.

    The loss and other means count every example alike, however many each worker had. Any metric of
    Keras, AUC too, is that of one worker with all examples: what the workers' metrics have counted
    is added up. Numbers that are not metrics of the model, such as those that a `train_step` of
    your own returns, are averaged, each worker with the same weight; so are metrics whose variables
    do not say how they are put together (`aggregation` of `keras.Variable`). Figures within an
    epoch, and the result of `evaluate`, which Keras makes before callbacks run, are those of the
    worker alone.

    Example:
    >>> import keras
    >>> callbacks = [AverageMetrics(), keras.callbacks.ReduceLROnPlateau("val_loss")]

    Raises:
        ValueError: From `fit` and `evaluate`, on all workers, if they have other names in their
            logs.
    """

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replaces the figures of the epoch, including those of its validation."""
        if logs:
            logs.update(self.figures_of_all(logs))

    def on_test_end(self, logs: Any = None) -> None:
        """Replaces the figures of an evaluation that is not part of an epoch."""
        if logs and not self._fitting:
            self._trained = None
            logs.update(self.figures_of_all(logs))


def averaged_logs(
    logs: Mapping[str, Any] | None, states: Sequence[MetricStates] = ()
) -> dict[str, Any]:
    """Returns logs whose numbers are those of all workers, the same bits on each.

    Collective. Values that are not numbers stay as they are. A number that is a metric on every
    worker is the metric of all examples; any other is the average over the workers.

    Raises:
        ValueError: On all workers, if they have other names in their logs.
    """
    own = dict(logs or {})
    communicator = communicators.current()
    if communicator.size == 1:
        return own
    agreement = Agreement(communicator)
    scalars = {name: float(own[name]) for name in sorted(own) if is_number(own[name])}
    metrics = {name for each in states for name in each.agreeing(scalars)}
    # Sums of floats may depend on their order, so workers exchange their bits.
    parts = [np.array(list(scalars.values())), *(each.values for each in states)]
    ends = np.cumsum([2 + len(scalars), *map(len, parts)])
    told = agreement.gather_lists(
        [
            number_of_text(repr(list(scalars))),
            number_of_text(repr([each.layout for each in states])),
            *(int(name in metrics) for name in scalars),
            *bits_of(np.concatenate(parts).tolist()),
        ],
        "logs",
    )
    remedy = "Give all of them the same metrics, and data to validate on."
    check_same("numbers in the logs", [each[0] for each in told], remedy, texts=True)
    columns = zip(*(floats_of(each[ends[0] :][: len(scalars)]) for each in told), strict=True)
    averages = dict(zip(scalars, map(_average, columns), strict=True))
    if len({each[1] for each in told}) == 1:
        everywhere = np.min([each[2 : ends[0]] for each in told], axis=0)
        metrics = {name for name, each in zip(scalars, everywhere, strict=True) if each}
        for begin, end, state in zip(ends[1:], ends[2:], states, strict=False):
            of_all = state.of_all([np.array(floats_of(each[begin:end])) for each in told])
            averages |= {name: of_all[name] for name in of_all if name in metrics}
        # Processors may round the results otherwise, and callbacks compare them.
        first = agreement.gather_lists(bits_of(list(averages.values())), "figures")[0]
        averages = dict(zip(averages, floats_of(first), strict=True))
    return own | averages


def _average(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):
        return float(np.sum(values) / len(values))  # fsum raises for infinities of both signs
    return math.fsum(values) / len(values)
