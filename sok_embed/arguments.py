"""Checks of arguments, and the texts of values in messages, for all of the package."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_Choice = TypeVar("_Choice")
_Function = TypeVar("_Function", bound=Callable[..., Any])

MOST_DIMENSION = 2**20
UINT32 = 2**32
UINT64 = 2**64
# The text of messages about floats that were given as ids.
FLOATS_ROUND = (
    "float32 holds ids up to 2**24 exactly, float64 up to 2**53, and NaN is not an id. Read them "
    "as integers; where all are small and none is missing, pass x.astype('int64'), which makes the "
    "key -2**63 of NaN"
)
_OF_STRINGS = "Keys of strings are their fingerprints: sok_embed.fingerprint(keys)"
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
    """
    return _PLAIN.sub(r"\1", repr(value))


def described(value: Any) -> str:
    """Returns a value and its type for a message; of an array only the dtype.

    Example:
    >>> described("adam"), described(np.zeros(3))
    ("'adam' (of type str)", 'an array of float64')
    """
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return f"{shown(value)} (of type {type(value).__name__})"


def shown_arguments(name: str, parameters: Mapping[str, Any]) -> str:
    """Returns a name and its parameters as in a call, for `repr`."""
    return ", ".join([repr(name), *(f"{key}={value!r}" for key, value in parameters.items())])


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer of Python or of NumPy; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number; True, False and arrays are not."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError):  # more than a float holds; NumPy's spans of time
        return False


def difference(lacking: str, more: str) -> str:
    """Returns a clause of a message about a thing "that …": the names that it lacks, and has more.

    Example:
    >>> difference("a, b", "")
    'lacks a, b'
    >>> difference("a", "c")
    'lacks a and has c more'
    """
    parts = [f"lacks {lacking}"] if lacking else []
    parts += [f"has {more} more"] if more else []
    return " and ".join(parts) or "has them in another order"


def check_choice(
    name: str, value: _Choice, choices: Iterable[Any], *, what: str = "", remedy: str = ""
) -> _Choice:
    """Returns one of some names, integers and `None`, or raises ValueError.

    Example:
    >>> check_choice("hash", "md5", ("mixed", "modulo"))
    Traceback (most recent call last):
    ValueError: Expected hash to be one of 'mixed', 'modulo'. Received: 'md5'.

    An array, which `in` cannot compare, is not a choice.
    """
    known = tuple(choices)
    if isinstance(value, str | int | np.integer | None) and value in known:
        return value
    names = ", ".join(map(repr, known)) or "none"
    expected = f"{what}: expected" if what else "Expected"
    raise ValueError(
        f"{expected} {name} to be one of {names}. Received: {shown(value)}. {remedy}".rstrip()
    )


def check_integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Returns an integer of Python or of NumPy as Python's `int`, or raises ValueError.

    Example:
    >>> check_integer("group", 256, 0, 256)
    Traceback (most recent call last):
    ValueError: Expected group to be an integer in [0, 256). Received: 256.

    Args:
        name: The name of the argument, for the message.
        value: The value. True and False do not count as integers.
        low: The least that is allowed. `None`: there is no bound.
        high: The bound that the integer must be below. `None`: there is no bound.
    """
    whole = is_integer(value)
    if whole and (low is None or value >= low) and (high is None or value < high):
        return int(value)
    if low is None:
        expected = "an integer"
    elif low == 1:
        expected = "a positive integer" if high is None else f"a positive integer below {high}"
    else:
        expected = f"an integer of at least {low}"
        expected = expected if high is None else f"an integer in [{low}, {high})"
    received = shown(value) if whole else described(value)
    raise ValueError(f"Expected {name} to be {expected}. Received: {received}.")


def check_flag(name: str, value: Any) -> bool:
    """Returns True or False of Python or of NumPy as Python's, or raises ValueError."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"Expected {name} to be True or False. Received: {shown(value)}.")


def check_number(name: str, value: Any, flags: bool = False) -> float:
    """Returns a number as a float, or raises ValueError; takes True and False only with `flags`."""
    is_flag = isinstance(value, bool | np.bool_)
    if isinstance(value, int | float | np.integer | np.floating | np.bool_):
        if flags or not is_flag:
            return float(value)
    raise ValueError(f"Expected {name} to be a number. Received: {shown(value)}.")


def check_seconds(name: str, time: Any) -> int:
    """Returns a time in whole seconds since 1970."""
    seconds = time.timestamp() if isinstance(time, datetime) else check_number(name, time)
    if not 0 <= seconds < UINT32:
        raise ValueError(f"Expected {name} between 1970 and 2106. Received: {shown(time)}.")
    return int(seconds)


def check_type(name: str, value: Any, *types: type[Any]) -> None:
    """Raises TypeError unless the value is of one of this package's types."""
    if not isinstance(value, types):
        known = " or ".join(f"sok_embed.kv.{cls.__name__}" for cls in types)
        raise TypeError(f"Expected {name} to be a {known}. Received: {described(value)}.")


def check_path(path: str | bytes | os.PathLike[Any]) -> str:
    """Returns the path as a str, with surrogates for bytes that are not UTF-8; refuses URLs."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(f"Expected a path. Received: {described(path)}.")
    decoded = os.fsdecode(path)
    if "\0" in decoded:
        raise ValueError(f"Expected a path without NUL characters. Received: {decoded!r}.")
    try:
        os.fsencode(decoded)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"Expected a path that the file system can have. Received: {decoded!r}, which cannot "
            f"be encoded: {error.reason}."
        ) from None
    refuse_url(decoded)
    return decoded


def refuse_url(path: str) -> None:
    """Raises ValueError for a URL where a path of a file system is needed.

    Python takes `s3://bucket/file` for a path in a folder `s3:`, and may make that folder.
    """
    if _URL.match(path):
        raise ValueError(
            f"Expected a path of a file system that is mounted. Received: {path!r}, a URL. Give a "
            "local path, and copy the files. Object stores take checkpoints, by "
            "sok_embed.checkpoint.Checkpoint and CheckpointManager."
        )


def keys_of(keys: Any) -> npt.NDArray[Any]:
    """Returns keys as an array: an integer, a sequence of integers, or an array as it is.

    Raises:
        TypeError: For strings.
        ValueError: For other objects, True and False among them, and for integers that 64 bits do
            not hold.
    """
    if isinstance(keys, np.ndarray):
        return keys
    if are_strings(keys):
        raise TypeError(f"Expected integer keys. Received: {keys!r}. {_OF_STRINGS}.")
    given = keys if isinstance(keys, list | tuple | range | set | frozenset) else [keys]
    whole = [check_integer("a key", key, -(2**63), UINT64) % UINT64 for key in given]
    return np.array(whole, np.uint64)


def are_strings(keys: Any) -> bool:
    """Returns whether keys are strings or bytes, or have one of them first."""
    if isinstance(keys, np.ndarray):
        first = keys.ravel()[:1].tolist()
        return keys.dtype.kind in "USO" and any(isinstance(each, str | bytes) for each in first)
    several = isinstance(keys, list | tuple | set | frozenset)
    return isinstance(next(iter(keys), None) if several else keys, str | bytes)


def check_keys(keys: Any) -> npt.NDArray[np.uint64]:
    """Returns the keys, of any shape, as uint64 [n]."""
    if not isinstance(keys, np.ndarray) or keys.dtype not in (np.uint64, np.int64):
        floats = isinstance(keys, np.ndarray) and np.issubdtype(keys.dtype, np.floating)
        if are_strings(keys):
            remedy = f". {_OF_STRINGS}."
        else:
            convert = "Convert them: np.asarray(keys, np.uint64)"
            remedy = f". {FLOATS_ROUND if floats else convert}."
        raise TypeError(
            "Expected keys to be a NumPy array of uint64 or int64. "
            f"Received: {described(keys)}{remedy}"
        )
    _check_contiguous("keys", keys)
    return keys.view(np.uint64).reshape(-1)


def check_floats(
    name: str, values: Any, size: int | None, writable: bool = False
) -> npt.NDArray[np.float32]:
    """Returns the values as a view [size]."""
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        raise TypeError(
            f"Expected {name} to be a NumPy array of float32. Received: {described(values)}. "
            "Convert it: np.asarray(values, np.float32)."
        )
    if size is not None and values.size != size:
        raise ValueError(f"Expected {name} of size {size}. Received: size {values.size}.")
    _check_contiguous(name, values)
    if writable and not values.flags.writeable:
        raise ValueError(
            f"Expected {name} that can be written to. Received: a read-only array. Pass a copy."
        )
    return values.reshape(-1)


def _check_contiguous(name: str, values: npt.NDArray[Any]) -> None:
    if not values.flags.c_contiguous:
        raise ValueError(
            f"Expected {name} to be C-contiguous. Received: strides {values.strides} for shape "
            f"{list(values.shape)}. Pass np.ascontiguousarray({name})."
        )


def takes_options(options: type, *without: str) -> Callable[[_Function], _Function]:
    """Shows the fields of a dataclass in the signature of a constructor that takes them by `**`.

    A constructor whose `**` is called `options` takes nothing else by it, and raises a `TypeError`
    for other names. One whose `**` is called `kwargs` has other arguments too, and checks them.
    Fields in `without` are not taken.
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
