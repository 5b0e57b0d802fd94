"""Checks JSON from outside: its size, its types, and the ranges of its numbers.

A check is a function of a value that returns nothing, or raises `Misfit` with the field that does
not fit. Checks are composed of other checks, so that a format is declared once, by its fields.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sok_embed.files.records import CHECKPOINT, damaged

Check = Callable[[Any, str], None]  # gets the value and the name of its field

# A text of so many bytes and values takes less than 150 MiB in memory, whatever its content.
MOST_BYTES = 16 << 20
MOST_VALUES = 1 << 19

MOST_DIM = 1 << 20
MOST_SLOT_FLOATS = 1 << 23
MOST = 2**63 - 1  # the greatest number that fits into int64

_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxother, _SHOWN.maxlong = 2, 60, 60, 40


class Misfit(ValueError):
    """A field that does not fit its format.

    Attributes:
        field: The name of the field, as in `tables[2].dim`; empty: the whole text.
        expected: The value that it must have.
        received: The value, shortened.
    """

    def __init__(self, field: str, expected: str, received: str) -> None:
        super().__init__(f"Expected {expected} as {field or 'a whole'}. Received: {received}.")
        self.field, self.expected, self.received = field, expected, received


def brief(value: Any) -> str:
    """Returns a value as messages show it, shortened if it is long."""
    return _SHOWN.repr(value)


def parsed(path: str, data: bytes, most_values: int = MOST_VALUES, of: str = CHECKPOINT) -> Any:
    """Reads JSON without NaN and infinity, and with a bounded number of values.

    Args:
        path: The name of the file, for messages.
        data: The text; the caller has bounded its length.
        most_values: The most values that it may have. Commas in strings may count as values too.
        of: `CHECKPOINT`, `DELTA` or `EXPORT`.

    Raises:
        CorruptionError: For anything else.
    """
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if values > most_values:
        raise damaged(path, f"JSON of at most {most_values} values", f"{values}", of)
    try:
        return json.loads(data, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise damaged(path, "JSON", "lists in lists that are too many to read", of) from None
    except ValueError as error:
        raise damaged(path, "JSON", str(error), of) from None


def _refuse(text: str) -> Any:
    raise ValueError(f"Expected a finite number. Received: {text}.")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def checked(path: str, value: Any, check: Check, field: str = "", of: str = CHECKPOINT) -> None:
    """Raises CorruptionError with the name of the file for a value that does not fit."""
    try:
        check(value, field)
    except Misfit as misfit:
        place = f" as '{misfit.field}'" if misfit.field else ""
        raise damaged(path, f"{misfit.expected}{place}", misfit.received, of) from None


def integer(least: int = 0, most: int = MOST) -> Check:
    """Returns a check for an integer in [least, most]; a bool does not pass."""

    def check(value: Any, field: str) -> None:
        if type(value) is not int or not least <= value <= most:
            raise Misfit(field, f"an integer in [{least}, {most}]", brief(value))

    return check


def number(value: Any, field: str) -> None:
    """Checks for a finite number; a bool does not pass."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise Misfit(field, "a finite number", brief(value))


def flag(value: Any, field: str) -> None:
    """Checks for a bool."""
    if type(value) is not bool:
        raise Misfit(field, "true or false", brief(value))


def text(value: Any, field: str) -> None:
    """Checks for a string that UTF-8 can encode."""
    if type(value) is str:
        try:
            value.encode()
            return
        except UnicodeEncodeError:
            pass
    raise Misfit(field, "a text", brief(value))


def text_like(fits: Callable[[str], object], expected: str) -> Check:
    """Returns a check for a string for which a function returns true."""

    def check(value: Any, field: str) -> None:
        if type(value) is not str or not fits(value):
            raise Misfit(field, expected, brief(value))

    return check


hexadecimal = text_like(re.compile(r"[0-9a-f]{16}").fullmatch, "16 hexadecimal digits")


def exactly(expected: Any) -> Check:
    """Returns a check for exactly one value."""

    def check(value: Any, field: str) -> None:
        if type(value) is not type(expected) or value != expected:
            raise Misfit(field, brief(expected), brief(value))

    return check


def nothing_or(check: Check) -> Check:
    """Returns a check that passes null, and values that another check passes."""

    def checks(value: Any, field: str) -> None:
        if value is not None:
            check(value, field)

    return checks


def list_of(check: Check, most: int = MOST_VALUES) -> Check:
    """Returns a check for a list of at most so many elements, which another check passes."""

    def checks(value: Any, field: str) -> None:
        if type(value) is not list or len(value) > most:
            raise Misfit(field, f"a list of at most {most} values", brief(value))
        for i, each in enumerate(value):
            check(each, f"{field}[{i}]")

    return checks


def tuple_of(*checks: Check) -> Check:
    """Returns a check for a list with one element for each of the given checks."""

    def check(value: Any, field: str) -> None:
        if type(value) is not list or len(value) != len(checks):
            raise Misfit(field, f"a list of {len(checks)} values", brief(value))
        for i, (each, of_each) in enumerate(zip(value, checks, strict=True)):
            of_each(each, f"{field}[{i}]")

    return check


def record(fields: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Returns a check for an object; fields that it does not know may have any value."""
    more = optional or {}

    def check(value: Any, field: str) -> None:
        if type(value) is not dict:
            raise Misfit(field, "an object", brief(value))
        for name, of_field in fields.items():
            inner = f"{field}.{name}" if field else name
            if name not in value:
                raise Misfit(inner, "a value", "none")
            of_field(value[name], inner)
        for name, of_field in more.items():
            if name in value:
                of_field(value[name], f"{field}.{name}" if field else name)

    return check
