"""The scenarios, by name, and where a worker stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Here:
    """This worker among the workers."""

    rank: int
    size: int


Scenario = Callable[[Here], dict[str, Any]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Has every worker run the function. What it returns is saved, an array a name."""
    SCENARIOS[function.__name__] = function
    return function
