"""Makes arrays of the values of requests, and values for JSON of arrays."""

from __future__ import annotations

import base64
import contextlib
import reprlib
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[Any]

_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxother, _SHOWN.maxlong = 3, 60, 60, 40


class InvalidRequest(ValueError):
    """A request that the client has to change."""


class Values:
    """Makes arrays of lists of JSON's values, or of those of gRPC; no value is changed.

    Args:
        dtype: The dtype of the arrays.
    """

    def __init__(self, dtype: tf.DType) -> None:
        self._dtype = dtype
        self.zero: Any = "" if dtype == tf.string else np.zeros([], dtype.as_numpy_dtype).item()
        self._wanted = np.dtype(object if dtype == tf.string else dtype.as_numpy_dtype)
        self._types: set[type] | None = None if dtype == tf.string else {int, float}
        if dtype.is_bool or dtype.is_integer:
            self._types = {bool} if dtype.is_bool else {int}
        self._make = (
            self._strings
            if dtype == tf.string
            else self._keys
            if dtype in (tf.int64, tf.uint64)
            else self._integers
            if dtype.is_integer
            else self._numbers
        )

    def array(self, values: list[Any], name: str) -> Array:
        """Returns values of an input as an array.

        An integer of 64 bits may be signed or unsigned: the same bits are the same key.

        Raises:
            InvalidRequest: For values that the dtype does not have, NaN and infinity.
        """
        if self._types is None or set(map(type, values)) <= self._types:
            with contextlib.suppress(OverflowError):
                return self._make(values)
        if self._types is None:
            wrong = [each for each in values if _bytes(each) is None]
        else:
            wrong = [each for each in values if type(each) not in self._types] or [values]
        raise InvalidRequest(
            f"'{name}': expected values of {self._dtype.name}. Received: {short(wrong[0])}."
        )

    def _numbers(self, values: list[Any]) -> Array:
        # NumPy makes bfloat16 of small integers alone.
        first = np.float64 if self._wanted.kind == "V" else self._wanted
        with np.errstate(over="ignore"):
            array = np.array(values, first).astype(self._wanted, copy=False)
        if not np.isfinite(array).all():
            raise OverflowError
        return array

    def _integers(self, values: list[Any]) -> Array:
        array = np.array(values, np.int64)
        if not np.array_equal(array.astype(self._wanted), array):
            raise OverflowError
        return array.astype(self._wanted)

    def _keys(self, values: list[Any]) -> Array:
        try:
            return np.array(values, np.int64).view(self._wanted)
        except OverflowError:
            if min(values) < -(2**63) or max(values) >= 2**64:
                raise
            return np.array([each % 2**64 for each in values], np.uint64).view(self._wanted)

    def _strings(self, values: list[Any]) -> Array:
        array = np.empty(len(values), object)
        array[:] = [_bytes(each) for each in values]
        if None in array:
            raise OverflowError
        return array


def listed(name: str, array: Array) -> list[Any]:
    """Returns an array as lists for JSON.

    Bytes that are not UTF-8 become `{"b64": "..."}`, as in TensorFlow Serving.

    Raises:
        FloatingPointError: For NaN and infinity, which JSON does not have.
    """
    if array.dtype == object:
        flat = np.empty(array.size, object)
        flat[:] = [_text(each) for each in array.ravel()]
        array = flat.reshape(array.shape)
    check_finite(name, array)
    lists: list[Any] = array.tolist()
    return lists


def check_finite(name: str, array: Array) -> None:
    """Raises FloatingPointError for an output with NaN or infinity, which JSON does not have."""
    if array.dtype.kind not in "iubO" and not np.isfinite(array).all():
        raise FloatingPointError(
            f"The model answers '{name}' with NaN or infinity, which JSON does not have. Ask for "
            "binary data by the Open Inference Protocol."
        )


def short(value: Any) -> str:
    """Returns a text of a value that has at most about 200 characters."""
    return _SHOWN.repr(value)[:200]


def _bytes(value: Any) -> bytes | None:
    """Returns the bytes of a string, or of `{"b64": ...}`; `None` if the value is neither."""
    try:
        if type(value) is str:
            return value.encode()
        if type(value) is dict and value.keys() == {"b64"}:
            return base64.b64decode(value["b64"], validate=True)
    except (ValueError, TypeError):  # half a surrogate pair, or not base64
        return None
    return value if type(value) is bytes else None


def _text(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
