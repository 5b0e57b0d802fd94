"""Checks of integers and flags, and the texts of values in messages, for all of the package."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Matches the repr that Python gives an object whose class has none of its own.
_PLAIN = re.compile(
    r"<(?:function |bound method )?(?:[\w<>]+\.)*(\w+|<lambda>)[^<>]* at 0x[0-9a-f]+>"
)


def shown(value: Any) -> str:
    """Returns a value as messages show it: its `repr`, with names instead of addresses.

    Example:
    >>> shown([3, object()])
    '[3, object]'
    >>> shown("adam")
    "'adam'"

    Args:
        value: Anything.
    """
    return _PLAIN.sub(r"\1", repr(value))


def refuse_url(path: str) -> None:
    """Raises ValueError for a URL where a path of a file system is needed.

    Python takes `s3://bucket/file` for a path in a folder `s3:`, and may make that folder.

    Args:
        path: The path.
    """
    if _URL.match(path):
        raise ValueError(
            f"Expected a path of a file system that is mounted. Received: {path!r}, a URL. Give a "
            "local path, and copy the files. Object stores take checkpoints, by "
            "sok_embed.checkpoint.Checkpoint and CheckpointManager."
        )


def is_among(value: Any, choices: Iterable[str | None]) -> bool:
    """Returns whether a value is one of some names. Arrays, which `in` cannot compare, are not.

    Example:
    >>> is_among("sum", ("sum", None)), is_among(np.zeros(2), ("sum", None))
    (True, False)
    """
    return (value is None or isinstance(value, str)) and value in choices


def check_integer(
    name: str,
    value: Any,
    low: int | None = None,
    high: int | None = None,
    *,
    expected: str | None = None,
    named: bool = False,
) -> int:
    """Returns an integer as Python's `int`, or raises.

    Example:
    >>> check_integer("group", 256, 0, 256)
    Traceback (most recent call last):
    ValueError: Expected group to be an integer in [0, 256). Received: 256.

    Args:
        name: The name of the argument, for the message.
        value: An integer of Python or of NumPy. True and False are none.
        low: The least that is allowed. `None`: there is no bound.
        high: The bound that the integer must be below. `None`: there is no bound.
        expected: The expectation for the message. `None`: an integer within the bounds.
        named: True if the message has the name before the value, as in `group=256`.

    Raises:
        ValueError: For anything else.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and (low is None or value >= low) and (high is None or value < high):
        return int(value)
    given = f"{name}={shown(value)}" if named else shown(value)
    kind = "" if whole else f" (of type {type(value).__name__})"
    raise ValueError(
        f"Expected {name} to be {expected or _within(low, high)}. Received: {given}{kind}."
    )


def check_flag(name: str, value: Any) -> bool:
    """Returns True or False of Python or of NumPy as Python's.

    Raises:
        ValueError: For anything else.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"Expected {name} to be True or False. Received: {name}={shown(value)}.")


def check_positive(name: str, value: Any, limit: int | None = None) -> int:
    """Returns a positive integer, below the limit if there is one. See `check_integer`."""
    below = "" if limit is None else f" below {limit}"
    return check_integer(name, value, 1, limit, expected=f"a positive integer{below}", named=True)


def _within(low: int | None, high: int | None) -> str:
    if low is None:
        return "an integer"
    return f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high})"


def difference(lacking: str, more: str) -> str:
    """Returns a clause of a message about a thing "that …": what it lacks, and what it has more.

    Example:
    >>> difference("a, b", "")
    'lacks a, b'
    >>> difference("a", "c")
    'lacks a and has c more'

    Args:
        lacking: The names of what it lacks; empty if it lacks nothing.
        more: The names of what it has more; likewise.
    """
    parts = [f"lacks {lacking}"] if lacking else []
    parts += [f"has {more} more"] if more else []
    return " and ".join(parts) or "has them in another order"


def takes_options(options: type, *without: str) -> Callable[[_Function], _Function]:
    """Shows the fields of a dataclass in the signature of a constructor that takes them by `**`.

    A constructor whose `**` is called `options` takes nothing else by it, and raises a `TypeError`
    for other names. One whose `**` is called `kwargs` has other arguments too, and checks them.

    Args:
        options: The dataclass.
        *without: The names of fields that the constructor does not take.
    """

    def decorate(constructor: _Function) -> _Function:
        signature = inspect.signature(constructor)
        *before, rest = signature.parameters.values()
        shown = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=field.type,
            )
            for field in dataclasses.fields(options)
            if field.name not in {*without, *signature.parameters}
        ]
        if rest.name == "kwargs":
            shown.append(rest)
        full = signature.replace(parameters=[*before, *shown])

        @functools.wraps(constructor)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                full.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{constructor.__qualname__}(): {error}") from None
            return constructor(*args, **kwargs)

        made: Any = constructor if rest.name == "kwargs" else checked
        made.__signature__ = full
        return made

    return decorate
