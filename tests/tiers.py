"""Chooses the cases of a parametrised test that `make test` runs; `make test-all` runs all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

STRENGTHS = {"values": 1, "pairs": 2}

Combination = frozenset[tuple[str, int]]


def chosen_of(cases: Iterable[Mapping[str, object]], strength: str | int) -> list[int]:
    """Returns the numbers of a few cases, which are the same in each process.

    Args:
        cases: Parameters of each case, by name. Values are told apart by their identity: they may
            be functions or arrays.
        strength: Which combinations that all cases have the few have too: `"values"`, each one, or
            `"pairs"` of values. Or how many cases, of which the first is one; the others lie as far
            from one another as can be.
    """
    if isinstance(strength, int):
        count = len(list(cases))
        return sorted({number * count // strength for number in range(strength)})
    combinations = [_combinations(case, STRENGTHS[strength]) for case in cases]
    missing = set().union(*combinations)
    chosen: list[int] = []
    while missing:
        # The first one of those that add most: each process makes the same choice.
        number = max(range(len(combinations)), key=lambda each: len(combinations[each] & missing))
        missing -= combinations[number]
        chosen.append(number)
    return sorted(chosen)


def _combinations(case: Mapping[str, object], count: int) -> set[Combination]:
    values = sorted((name, id(value)) for name, value in case.items())
    return {frozenset(each) for each in itertools.combinations(values, min(count, len(values)))}


def long(*values: Any) -> Any:
    """Returns a case of a parametrised test that `make test-all` alone runs."""
    return pytest.param(*values, marks=pytest.mark.long)


def few_or_many(few: int, many: int) -> list[Any]:
    """Returns the numbers of rounds of a test in `make test` and, besides, in `make test-all`.

    `SOK_TEST_MANY` has another number for the second one, of the tests that are run.
    """
    return [few, long(int(os.environ.get("SOK_TEST_MANY", many)))]


def rounds(few: int, many: int, variable: str = "") -> int:
    """Returns how often a loop goes round in `make test`, in `make test-all`, or by a variable."""
    given = many if os.environ.get("SOK_TEST_LONG") else few
    return int(os.environ.get(variable, given))
