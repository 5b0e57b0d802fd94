"""Synthetic measurements give back the parameters that they were made of."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from _cost_fit import Timed, fitted, fitted_line

from sok_embed.planning import Hardware

HARDWARE = Hardware(bandwidth=3e9, latency=80e-6, memory_bandwidth=2.5e9)
FIXED_SECONDS = 4e-4
SENT = [0, 16e3, 1e6, 8e6]
TOUCHED = [1e6, 4e6, 3e7]


def exchange_seconds(sent):
    return HARDWARE.latency + sent / HARDWARE.bandwidth


def local_seconds(touched):
    return FIXED_SECONDS + touched / HARDWARE.memory_bandwidth


def measured(error=0.0, seed=0):
    """Exchanges and steps whose times are wrong by up to a share of them."""
    rng = np.random.default_rng(seed)
    return [
        [Timed(amount, seconds(amount) * (1 + rng.uniform(-error, error))) for amount in amounts]
        for seconds, amounts in ((exchange_seconds, SENT), (local_seconds, TOUCHED))
    ]


def test_exact_times_give_the_parameters_back():
    fit = fitted(*measured())
    assert fit.hardware.bandwidth == pytest.approx(HARDWARE.bandwidth, rel=1e-9)
    assert fit.hardware.latency == pytest.approx(HARDWARE.latency, rel=1e-9)
    assert fit.hardware.memory_bandwidth == pytest.approx(HARDWARE.memory_bandwidth, rel=1e-9)
    assert fit.fixed_seconds == pytest.approx(FIXED_SECONDS, rel=1e-9)


def test_a_step_of_the_fit_is_three_exchanges_and_a_local_part():
    fit = fitted(*measured())
    # The step sends 2 MB in three messages, and receives less.
    expected = sum(exchange_seconds(sent) for sent in (1e6, 4e5, 6e5)) + local_seconds(5e6)
    assert fit.step_seconds(2e6, 1e6, 5e6) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_errors_of_a_twentieth_move_parameters_by_no_more_than_a_fifth(seed):
    fit = fitted(*measured(error=0.05, seed=seed))
    assert fit.hardware.bandwidth == pytest.approx(HARDWARE.bandwidth, rel=0.2)
    # The shortest exchange is nothing but latency, however long the others take.
    assert fit.hardware.latency == pytest.approx(HARDWARE.latency, rel=0.2)
    assert fit.hardware.memory_bandwidth == pytest.approx(HARDWARE.memory_bandwidth, rel=0.2)


def test_a_constant_is_never_below_0():
    # A line through both points would start at -1.
    line = fitted_line([Timed(2, 1), Timed(4, 3)])
    # With x the seconds of each: the minimum of (2x - 1)^2 + (4x / 3 - 1)^2.
    assert line == (0.0, pytest.approx((2 + 4 / 3) / (4 + 16 / 9)))


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], "at least two different amounts"),
        ([Timed(5, 1.0), Timed(5, 2.0)], "at least two different amounts"),
        ([Timed(1, 0.0), Timed(5, 2.0)], "times above 0"),
        ([Timed(1, 2.0), Timed(5, 1.0)], "times that grow with the amount"),
    ],
)
def test_measurements_of_no_line_are_refused(points, expected):
    with pytest.raises(ValueError, match=expected):
        fitted_line(points)
