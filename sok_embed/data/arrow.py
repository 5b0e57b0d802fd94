"""Turns columns of Arrow into tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow
import tensorflow as tf
from pyarrow import types

_TEXTS = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
_REMEDY = (
    "Change it before: within Ray Data as by dataset.map_batches(…, batch_format='pyarrow'), "
    "within Spark as by frame.withColumn or frame.fillna."
)


def spec_of(name: str, kind: Any) -> tf.TypeSpec:
    """Returns the specification of a column's tensors.

    Numbers and truth values are dense `[B]`, text and bytes `tf.string` `[B]`, lists ragged
    `[B, None]` (lists of lists `[B, None, None]`), lists of a fixed size and tensors dense
    `[B, ...]`.

    Args:
        name: The name of the column, for messages.
        kind: The `pyarrow.DataType`.

    Raises:
        ValueError: For a type of which there are no tensors, such as a time.
    """
    depth, shape = 0, list[int]()
    while True:
        if isinstance(kind, pyarrow.BaseExtensionType) and hasattr(kind, "shape"):
            order = getattr(kind, "permutation", None) or sorted(range(len(kind.shape)))
            if None in kind.shape or list(order) != sorted(order):
                raise _no_tensors(name, kind)
            shape += kind.shape  # a tensor of Arrow or of Ray
            kind = kind.storage_type
        elif types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
        elif (types.is_list(kind) or types.is_large_list(kind)) and not shape:
            depth += 1
        elif not types.is_dictionary(kind):
            break
        kind = kind.value_type
    dtype = _dtype(name, kind)
    if depth == 0:
        return tf.TensorSpec([None, *shape], dtype)
    whole = [None] * (depth + 1)
    return tf.RaggedTensorSpec([*whole, *shape], dtype, depth, tf.int64)


def _dtype(name: str, kind: Any) -> tf.DType:
    if any(is_one(kind) for is_one in _TEXTS):
        return tf.string
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return tf.as_dtype(kind.to_pandas_dtype())
    raise _no_tensors(name, kind)


def _no_tensors(name: str, kind: Any) -> ValueError:
    return ValueError(
        "Expected numbers, truth values, text, bytes, or lists or tensors of one shape of them in "
        f"column '{name}'. Received: {kind}. {_REMEDY}"
    )


def tensor_of(name: str, column: Any, spec: tf.TypeSpec) -> Any:
    """Returns the values of a column as the tensor of its specification.

    Args:
        name: The name of the column, for messages.
        column: The `pyarrow.Array` or `pyarrow.ChunkedArray` of length B.
        spec: The specification, of `spec_of`.

    Raises:
        ValueError: If a value is missing, and for values of another type that the specification
            cannot hold, as a later file may have.
    """
    found = spec_of(name, column.type)
    if type(found) is not type(spec) or found.shape.as_list() != spec.shape.as_list():
        raise ValueError(
            f"Expected tensors of {spec} in column '{name}', as its schema says. Received: "
            f"{column.type}. {_REMEDY}"
        )
    array = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if isinstance(spec, tf.RaggedTensorSpec):
        splits = []
        for _ in range(spec.ragged_rank):
            array = _decoded(name, array)
            offsets = array.offsets.to_numpy().astype(np.int64)
            splits.append(offsets - offsets[0])
            array = array.flatten()
        flat = _dense(name, array, spec.shape[spec.ragged_rank + 1 :], spec.dtype)
        return tf.RaggedTensor.from_nested_row_splits(flat, splits, validate=False)
    return _dense(name, array, spec.shape[1:], spec.dtype)


def _dense(name: str, array: Any, shape: tf.TensorShape, dtype: tf.DType) -> np.ndarray:
    rows = len(array)
    array = _decoded(name, array)
    while types.is_nested(array.type):
        array = _decoded(name, array.flatten())
    if _dtype(name, array.type) != dtype:
        try:
            array = array.cast(pyarrow.from_numpy_dtype(dtype.as_numpy_dtype))
        except pyarrow.ArrowException as error:
            raise ValueError(
                f"Expected values of {dtype.name} in column '{name}', as its schema says. "
                f"Received: {array.type}: {error}. {_REMEDY}"
            ) from error
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    if dtype == tf.string:
        values = values.astype(object)
    return values.reshape([rows, *shape])


def _decoded(name: str, array: Any) -> Any:
    """Returns the values of a tensor as lists, and those of a dictionary by themselves."""
    while True:
        if array.null_count:
            raise ValueError(
                f"Expected a value everywhere in column '{name}'. Received: {array.null_count} of "
                f"{len(array)} that are missing. {_REMEDY}"
            )
        if isinstance(array, pyarrow.ExtensionArray):
            array = array.storage
        elif types.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            return array
