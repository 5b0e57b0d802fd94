"""Conversions between Python and ops: keys to tensors, and errors of ops to Python's exceptions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from sok_embed import kv
from sok_embed.arguments import FLOATS_ROUND, is_integer
from sok_embed.fingerprints import keys_of_strings

_Method = TypeVar("_Method", bound=Callable[..., Any])


def eager(method: _Method) -> _Method:
    """Makes a method of a table raise, with advice, while TensorFlow traces a function.

    In a traced function there are no values that it could return as numbers or NumPy arrays.
    """

    @functools.wraps(method)
    def checked(table: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"Table '{table.name}': expected a call outside of tf.function, since "
                f"{method.__name__} returns numbers or NumPy arrays. Received: a call that is "
                "traced. Within a model call the layer; elsewhere put the call into "
                "tf.py_function."
            )
        return method(table, *args, **kwargs)

    return checked  # type: ignore[return-value]


def as_keys(keys: Any, *, hashes_strings: bool = False) -> tf.Tensor:
    """Converts integers to a tensor of keys. Python integers and lists become int64.

    With `hashes_strings` strings are taken too, whose keys are their fingerprints.
    """
    if hashes_strings and not (tf.is_tensor(keys) and keys.dtype != tf.string):
        keys = keys_of_strings(keys)
    if not tf.is_tensor(keys) and not isinstance(keys, np.ndarray):
        array = np.asarray(keys)
        if array.size == 0:
            array = array.astype(np.int64)
        elif not np.issubdtype(array.dtype, np.integer):
            _refuse_mixed_integers(keys)
        else:
            _refuse_flags(keys)
        keys = array
    if isinstance(keys, (tf.RaggedTensor, tf.SparseTensor)):
        raise ValueError(
            f"Expected a dense tensor of keys. Received: a {type(keys).__name__}. Pass its values, "
            "or make it dense first with `to_tensor()` or `tf.sparse.to_dense`."
        )
    tensor = tf.convert_to_tensor(keys)
    if tensor.dtype == tf.uint64:
        return tf.bitcast(tensor, tf.int64)
    if not tensor.dtype.is_integer:
        remedy = (
            f". {FLOATS_ROUND}."
            if tensor.dtype.is_floating
            else ". Pass integers, or make keys of strings first, with sok_embed.fingerprint."
        )
        raise ValueError(
            "Expected integer keys (int32, int64 or uint64). "
            f"Received: dtype {tensor.dtype.name}{remedy}"
        )
    return tf.cast(tensor, tf.int64)


def _refuse_flags(keys: Any) -> None:
    """Raises for True and False among Python integers, which NumPy turns into 1 and 0."""
    if not isinstance(keys, list | tuple):
        return
    for key in np.asarray(keys, dtype=object).ravel().tolist():
        if isinstance(key, bool | np.bool_):
            raise ValueError(
                f"Expected integer keys. Received: {key} among integers, which would be the key "
                f"{int(key)}. Pass integers."
            )


def _refuse_mixed_integers(keys: Any) -> None:
    """Raises for integers that NumPy turns into floats or objects."""
    values = np.asarray(keys, dtype=object).ravel().tolist()
    if all(map(is_integer, values)):
        raise ValueError(
            f"Expected integer keys of int64 or of uint64. Received: {min(values)} and "
            f"{max(values)}, which have no common 64-bit type. Pass a NumPy array of one dtype; "
            "the uint64 key k + 2**64 is the int64 key k."
        )


# Maps exceptions of ops to the exceptions that callers get instead.
_EXCEPTIONS: dict[type[Exception], type[Exception]] = {
    tf.errors.InvalidArgumentError: ValueError,
    tf.errors.ResourceExhaustedError: ValueError,
    tf.errors.FailedPreconditionError: RuntimeError,
    tf.errors.NotFoundError: FileNotFoundError,
    tf.errors.PermissionDeniedError: PermissionError,
    tf.errors.UnavailableError: kv.StorageLockedError,
    tf.errors.DataLossError: kv.CorruptionError,
}


def as_errors(call: Any) -> Any:
    """Runs an eager op and raises its refusals as Python's exceptions: ValueError for most."""
    try:
        return call()
    except tf.errors.OpError as error:
        exception = _EXCEPTIONS.get(type(error))
        if exception is None:
            raise
        # TensorFlow puts the op around the message.
        message = re.sub(
            r"^\{\{function_node \S+\}\} | \[Op:\S+\](?: name: .*)?$", "", error.message
        )
        raise exception(message) from None
