"""Checks of arguments, and the texts of their errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import check_integer, refuse_url

MOST_DIMENSION = 2**20
UINT32 = 2**32
# The text of messages about floats that were given as ids.
FLOATS_ROUND = (
    "float32 holds ids up to 2**24 exactly, float64 up to 2**53, and NaN is not an id. Read them "
    "as integers; where all are small and none is missing, pass x.astype('int64'), which makes the "
    "key -2**63 of NaN"
)
UINT64 = 2**64
_OF_STRINGS = "Keys of strings are their fingerprints: sok_embed.fingerprint(keys)"


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


def check_type(name: str, value: Any, *types: type[Any]) -> None:
    """Raises TypeError unless the value is of one of this package's types."""
    if not isinstance(value, types):
        known = " or ".join(f"sok_embed.kv.{cls.__name__}" for cls in types)
        raise TypeError(f"Expected {name} to be a {known}. Received: {described(value)}.")


def check_number(name: str, value: Any, flags: bool = False) -> float:
    """Returns the value as a float; takes True and False only with `flags`."""
    is_flag = isinstance(value, bool | np.bool_)
    if isinstance(value, int | float | np.integer | np.floating | np.bool_):
        if flags or not is_flag:
            return float(value)
    raise ValueError(f"Expected {name} to be a number. Received: {value!r}.")


def check_seconds(name: str, time: Any) -> int:
    """Returns a time in whole seconds since 1970."""
    seconds = time.timestamp() if isinstance(time, datetime) else check_number(name, time)
    if not 0 <= seconds < UINT32:
        raise ValueError(f"Expected {name} between 1970 and 2106. Received: {time!r}.")
    return int(seconds)


def check_parameters(
    owner: str,
    parameters: Mapping[str, float] | None,
    more: Mapping[str, float],
    flags: bool = False,
) -> dict[str, float]:
    """Merges the parameters of `owner` into one dict, without the underscore of `lambda_`."""
    given = {**(parameters or {}), **more}
    return {
        name.removesuffix("_"): check_number(f"{owner}: {name.removesuffix('_')}", value, flags)
        for name, value in given.items()
    }


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


def described(value: Any) -> str:
    """Returns a text for a message: the dtype of an array, or the value and its type."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return f"{value!r} of type {type(value).__name__}"


def unknown_name(what: str, known: Any, received: Any) -> ValueError:
    """Returns the error for an unknown name."""
    names = ", ".join(known) or "none"
    return ValueError(f"Expected {what} of {names}. Received: {received!r}.")


def shown_arguments(name: str, parameters: Mapping[str, Any]) -> str:
    """Returns a name and its parameters as in a call, for `repr`."""
    return ", ".join([repr(name), *(f"{key}={value!r}" for key, value in parameters.items())])
