"""Fits the parameters of the cost model of a plan to measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sok_embed.planning import Hardware


class Timed(NamedTuple):
    """The time of some work.

    Attributes:
        amount: The amount of the work: bytes, or messages.
        seconds: The time of all of the work.
    """

    amount: float
    seconds: float


class Line(NamedTuple):
    """Seconds as a function of an amount: `constant + each * amount`."""

    constant: float
    each: float


class Fit(NamedTuple):
    """The cost model of a plan, and the fixed time that it leaves out.

    Attributes:
        hardware: The hardware with the fitted parameters.
        fixed_seconds: The time of the local part of a step that has no rows. No plan has it.
    """

    hardware: Hardware
    fixed_seconds: float

    def step_seconds(self, sent: float, received: float, touched: float) -> float:
        """Returns the model's seconds of a step, and the fixed ones."""
        return float(self.hardware.step_seconds(sent, received, touched)) + self.fixed_seconds


def fitted_line(points: Sequence[Timed]) -> Line:
    """Returns the line of the least relative errors, squared, whose constant is not below 0.

    Raises:
        ValueError: For fewer than two different amounts, for times that are not above 0, and for
            times that do not grow with the amount.
    """
    amounts, seconds = np.array(points, np.float64).reshape(-1, 2).T
    if len(np.unique(amounts)) < 2 or np.any(seconds <= 0):
        raise ValueError(
            "Expected times above 0 of at least two different amounts. Received: "
            f"{[tuple(point) for point in points]}. Measure more amounts."
        )
    # An error of a tenth counts alike in a short time and in a long one.
    equations = np.stack([1 / seconds, amounts / seconds], 1)
    (constant, each), *_ = np.linalg.lstsq(equations, np.ones(len(seconds)), rcond=None)
    if constant < 0:
        constant, ratios = 0.0, equations[:, 1]
        each = ratios.sum() / (ratios @ ratios)
    if each <= 0:
        raise ValueError(
            "Expected times that grow with the amount. Received: "
            f"{[tuple(point) for point in points]}. Measure amounts further apart, or on a machine "
            "that does nothing else."
        )
    return Line(float(constant), float(each))


def fitted(exchanges: Sequence[Timed], steps: Sequence[Timed]) -> Fit:
    """Fits the cost model.

    Args:
        exchanges: The bytes that a worker sends, while it receives as many, and the time of one
            exchange.
        steps: Bytes of rows that a worker touches in a step, and the time of the local part of the
            step.

    Raises:
        ValueError: The errors of `fitted_line`.
    """
    network, memory = fitted_line(exchanges), fitted_line(steps)
    hardware = Hardware(
        bandwidth=1 / network.each, latency=network.constant, memory_bandwidth=1 / memory.each
    )
    return Fit(hardware, memory.constant)
