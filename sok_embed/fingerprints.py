"""Keys of strings: one function for datasets, models and NumPy."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed.arguments import described, is_integer
from sok_embed.keras_bridge.layer_calls import LayerOfIds

_REMEDY_OF_FLOATS = (
    "A column of integers with missing values comes out of pandas as floats, which round: read it "
    "with dtype='Int64', or as strings"
)


def fingerprint(values: Any) -> Any:
    """Returns a 64-bit key for each string: the same in a dataset, in a model and in NumPy.

    The key is FarmHash's Fingerprint64 of the bytes, all 64 bits of it as int64. It depends on
    nothing else, neither on the machine nor on the version, so that it may be kept.
    `tf.strings.to_hash_bucket_fast(s, n)` is the same number, as uint64, modulo n. Among n
    different strings two have one key with a probability of about n**2 / 2**65: 3e-6 for ten
    million, 3e-2 for a billion.

    Strings are not parsed: hex digits, such as Criteo's `68fd1e64`, are hashed as they are written,
    and `68FD1E64` is another string. Integers are hashed by their decimal digits, so that 7 and "7"
    have one key. Missing values (None, NaN, `pandas.NA` and `pandas.NaT`) are hashed as the empty
    string, since readers of `tf.data` turn them into "". Its key is a key like any other;
    `padding_value=""` and `mask_zero=True` of a layer leave it out. In models it is the layer
    `sok_embed.fingerprints.Fingerprint`.

    Example:
    >>> fingerprint(np.array(["cat", "dog", None], object))
    array([-3328278619729588520, -1588832979462137504, -7286425919675154353])
    >>> fingerprint(tf.constant(["cat"])).numpy()
    array([-3328278619729588520])
    >>> fingerprint(keras.Input((1,), dtype="string")).dtype
    'int64'

    Args:
        values: Strings, bytes or integers of any shape: a tensor, dense, ragged or sparse; a
            symbolic tensor of Keras; a NumPy array, a column, index or frame of pandas, a list, or
            one string. Text is encoded in UTF-8.

    Returns:
        int64 of the shape of the values: a tensor for tensors, a symbolic one for symbolic ones,
        else a NumPy array.

    Raises:
        ValueError: For floats, bools and all other types.
    """
    if isinstance(values, keras.KerasTensor):
        return Fingerprint()(values)
    if tf.is_tensor(values):
        return _of_tensor(values)
    return _of_tensor(tf.constant(_strings(values))).numpy()


def flat_strings(values: Any) -> tf.Tensor:
    """Returns the strings that `fingerprint` hashes, `[n]`: integers as their decimal digits.

    Args:
        values: The strings or integers, in the forms that `fingerprint` takes, but no symbolic
            tensors.

    Raises:
        ValueError: As `fingerprint`.
    """
    if isinstance(values, tf.RaggedTensor):
        values = values.flat_values
    elif isinstance(values, tf.SparseTensor):
        values = values.values
    elif not tf.is_tensor(values):
        values = tf.constant(_strings(values), tf.string)
    _check_type(values.dtype)
    return tf.reshape(values if values.dtype == tf.string else tf.strings.as_string(values), [-1])


def keys_of_strings(ids: Any) -> Any:
    """Returns the keys of ids that are strings, int64 in the same form; all other ids unchanged.

    Args:
        ids: A tensor, dense, ragged or sparse; a symbolic tensor of Keras; an array or a list.
    """
    if not (tf.is_tensor(ids) or isinstance(ids, keras.KerasTensor)):
        array = np.asarray(ids)
        if array.dtype.kind == "O":
            others = [each for each in array.ravel() if not isinstance(each, (str, bytes))]
            if others and len(others) < array.size:
                raise ValueError(
                    f"Expected strings alone. Received: {described(others[0])} among them. Where "
                    'values are missing, give sok_embed.fingerprint(ids), which takes them as "", '
                    "or a dataset of sok_embed.data.from_pandas."
                )
            return ids if others or not array.size else fingerprint(array)
        return fingerprint(array) if array.dtype.kind in "US" else ids
    return fingerprint(ids) if ids.dtype == "string" else ids


@keras.saving.register_keras_serializable(package="sok_embed")
class Fingerprint(LayerOfIds):
    """Computes `fingerprint` of symbolic tensors, in a model that can be saved."""

    _takes_ids = False  # but strings too

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Hashes strings and integers, dense, ragged or sparse."""
        return fingerprint(inputs)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Returns the shape and the form of the input, with int64."""
        _check_type(inputs.dtype)
        return keras.KerasTensor(
            inputs.shape,
            dtype="int64",
            sparse=inputs.sparse,
            ragged=inputs.ragged,
            ragged_rank=inputs.ragged_rank,
        )


def _of_tensor(values: Any) -> Any:
    if isinstance(values, tf.RaggedTensor):
        return values.with_flat_values(_of_tensor(values.flat_values))
    if isinstance(values, tf.SparseTensor):
        return values.with_values(_of_tensor(values.values))
    # The op makes eight bytes from each string, the lowest first.
    keys = tf.bitcast(tf.fingerprint(flat_strings(values)), tf.int64)
    keys = tf.reshape(keys, tf.shape(values))
    keys.set_shape(values.shape)
    return keys


def _check_type(dtype: Any) -> None:
    dtype = tf.as_dtype(dtype)
    if dtype != tf.string and not dtype.is_integer:
        remedy = f". {_REMEDY_OF_FLOATS}" if dtype.is_floating else ""
        raise ValueError(f"Expected strings or integers. Received: {dtype.name}{remedy}.")


def _strings(values: Any) -> npt.NDArray[Any]:
    """Returns strings of values that are not tensors, as an array that TensorFlow takes."""
    # NumPy would convert all elements of a list to one type, such as numbers to text, and pandas'
    # integers beside missing ones to floats.
    has_type = isinstance(getattr(values, "dtype", None), np.dtype)
    array = np.asarray(values) if has_type else np.asarray(values, object)
    if array.dtype.kind in "US":
        return array
    if array.dtype.kind in "iu":
        return array.astype(str)
    flat = array.astype(object).ravel()
    return np.array([_string(value) for value in flat], object).reshape(array.shape)


def _string(value: Any) -> str | bytes:
    if isinstance(value, (str, bytes)):
        return value
    if is_integer(value):
        return str(value)
    pandas = sys.modules.get("pandas")
    if value is None or (pandas is not None and (value is pandas.NA or value is pandas.NaT)):
        return ""
    is_float = isinstance(value, (float, np.floating))
    if is_float and value != value:
        return ""
    remedy = f". {_REMEDY_OF_FLOATS}" if is_float else ""
    raise ValueError(f"Expected strings or integers. Received: {described(value)}{remedy}.")
