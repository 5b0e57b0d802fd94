"""The logs of all workers, for callbacks that decide by them: all decide alike."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from sok_embed import communicators
from sok_embed.checkpoint.agreement import Agreement


def averaged_logs(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns logs whose numbers are the averages over all workers, the same bits on each.

    Collective. What is no number stays as it is.

    Args:
        logs: Of an epoch or a batch on this worker.

    Raises:
        ValueError: On all workers, if they have other names in their logs.
    """
    own = dict(logs or {})
    communicator = communicators.current()
    if communicator.size == 1:
        return own
    agreement = Agreement(communicator)
    scalars = {name: float(own[name]) for name in sorted(own) if _is_number(own[name])}
    agreement.check_same_text(
        "numbers in the logs",
        repr(list(scalars)),
        "Give all of them the same metrics, and data to validate on.",
    )
    # Sums of floats may depend on their order, so workers tell each other their bits.
    bits = np.zeros((agreement.size, len(scalars)), np.int64)
    bits[agreement.rank] = np.array(list(scalars.values()), np.float64).view(np.int64)
    of_all = np.array(agreement.sums(bits.ravel().tolist(), "logs"), np.int64)
    values = of_all.view(np.float64).reshape(bits.shape)
    for name, column in zip(scalars, values.T.tolist(), strict=True):
        own[name] = _average(column)
    return own


def _is_number(value: Any) -> bool:
    is_scalar = isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()
    return is_scalar and not isinstance(value, (str, bytes))


def _average(values: list[float]) -> float:
    if not all(map(math.isfinite, values)):
        return float(np.sum(values) / len(values))  # fsum raises for infinities of both signs
    return math.fsum(values) / len(values)
