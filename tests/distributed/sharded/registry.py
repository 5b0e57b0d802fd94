"""Collects the scenarios: functions that every worker runs, and whose results tests compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Here:
    """Tells a scenario which worker it runs on.

    Attributes:
        rank: The number of this worker, from 0.
        size: How many workers there are.
    """

    rank: int
    size: int


Scenario = Callable[[Here], dict[str, Any]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Registers a function that every worker runs; the arrays it returns are saved by name."""
    SCENARIOS[function.__name__] = function
    return function
