"""Turns columns of Arrow into arrays that tensors are cut out of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import tensorflow as tf
from pyarrow import types

from sok_embed.arguments import described

_TEXTS = (
    *(types.is_string, types.is_large_string, types.is_string_view, types.is_fixed_size_binary),
    *(types.is_binary, types.is_large_binary, types.is_binary_view),
)
_REMEDY = (
    "Change or leave out the column before: in pandas as by frame.assign, in Arrow by "
    "pyarrow.compute, in Ray Data by dataset.map_batches(…, batch_format='pyarrow'), in Spark by "
    "frame.withColumn or frame.fillna."
)
_NOTHING = object()  # stands for a value that was not given

Missing = Mapping[str | type, Any]


@dataclass(frozen=True)
class Column:
    """A column of a batch: its name, its tensors, and what stands for missing values.

    Attributes:
        name: The name.
        spec: The specification of the tensors.
        missing: The value of a missing number, truth value, text or bytes.
        empty: True if a missing list is an empty one.
    """

    name: str
    spec: tf.TypeSpec
    missing: Any = _NOTHING
    empty: bool = False

    @property
    def depth(self) -> int:
        """The number of ragged axes."""
        return self.spec.ragged_rank if isinstance(self.spec, tf.RaggedTensorSpec) else 0

    @property
    def lengths(self) -> list[int]:
        """The lengths of the axes behind the ragged ones."""
        return self.spec.shape.as_list()[self.depth + 1 :]


def columns_of(
    schema: Any,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    weight: str | None = None,
    missing: Missing | None = None,
) -> tuple[Any, ...]:
    """Returns the parts of a batch, `(features, label, weight)` without those that are `None`.

    Args:
        schema: The `pyarrow.Schema`, or one of Ray Data.
        features: A column, or several as a dictionary. `None`: all but the label and the weight.
        label: A column, or several as a dictionary.
        weight: A column.
        missing: A dictionary of the values that stand for missing ones, by the names of columns,
            and for features also by the types `str`, `int`, `float`, `bool` and `list`. `None`:
            none are given, and floats have no NaN by themselves.

    Raises:
        ValueError: For columns that are not there, are there twice or have no tensors, or are
            features and labels; for a value of `missing` that a column cannot hold.
    """
    names = list(schema.names)
    parts = [part for part in (label, weight) if part is not None]
    if weight is not None and label is None:
        raise ValueError(
            f"Expected a label beside the weight. Received: the weight {weight!r} alone."
        )
    others = [name for part in parts for name in _listed(part)]
    x = features
    if x is None:
        x = [name for name in names if name not in others]
    known = {str, int, float, bool, list, *names}
    wrong = [name for name in (*_listed(x), *others) if names.count(name) != 1]
    if wrong or not x:
        raise ValueError(
            f"Expected columns among {names}, each there once. Received: "
            f"{wrong or 'no feature column'}."
        )
    if both := [name for name in _listed(x) if label is not None and name in _listed(label)]:
        raise ValueError(
            f"Expected features that are not the label. Received: {both} as both. Leave the label "
            "out of features=."
        )
    if unknown := [name for name in missing or () if name not in known]:
        raise ValueError(
            "Expected columns or the types str, int, float, bool and list as keys of missing=. "
            f"Received: {unknown}; the columns are {names}."
        )

    def column(name: str, given: Missing | None) -> Column:
        spec = spec_of(name, schema.types[names.index(name)])
        if given is None:
            return Column(name, spec)
        is_list = isinstance(spec, tf.RaggedTensorSpec)
        own = given.get(name, _NOTHING)
        lists = own if isinstance(own, list) else given.get(list)
        value = given.get(_python_type(spec.dtype), _NOTHING)
        value = value if own is _NOTHING or isinstance(own, list) else own
        found = Column(name, spec, value, is_list and lists == [])
        if value is not _NOTHING and value == value:
            is_string = spec.dtype == tf.string
            numpy_type = spec.dtype.as_numpy_dtype
            _scalar(
                found, pyarrow.large_binary() if is_string else pyarrow.from_numpy_dtype(numpy_type)
            )
        return found

    def part(of: str | Sequence[str], given: Missing | None) -> Any:
        return (
            column(of, given) if isinstance(of, str) else {each: column(each, given) for each in of}
        )

    if missing is None:
        return (part(x, None), *(part(each, None) for each in parts))
    named: Missing = {name: value for name, value in missing.items() if isinstance(name, str)}
    return (part(x, {float: math.nan, **missing}), *(part(each, named) for each in parts))


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _python_type(dtype: tf.DType) -> type:
    if dtype == tf.string:
        return str
    return bool if dtype == tf.bool else int if dtype.is_integer else float


def spec_of(name: str, kind: Any) -> tf.TypeSpec:
    """Returns the specification of a column's tensors.

    Numbers and truth values are dense `[B]`, text and bytes `tf.string` `[B]`, lists ragged
    `[B, None]` (lists of lists `[B, None, None]`), lists of a fixed size and tensors dense
    `[B, ...]`. Decimals are int64 if they have no places, else float64.

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
        elif types.is_fixed_size_list(kind) and kind.list_size:
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


def is_text(kind: Any) -> bool:
    """Returns whether a `pyarrow.DataType` is one of text or bytes."""
    return any(is_one(kind) for is_one in _TEXTS)


def _dtype(name: str, kind: Any) -> tf.DType:
    if is_text(kind):
        return tf.string
    if types.is_decimal(kind):
        return tf.float64 if kind.scale > 0 else tf.int64
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return tf.as_dtype(kind.to_pandas_dtype())
    raise _no_tensors(name, kind)


def _no_tensors(name: str, kind: Any) -> ValueError:
    return ValueError(
        "Expected numbers, truth values, text, bytes, or lists or tensors of one shape of them in "
        f"column '{name}'. Received: {kind}. {_REMEDY}"
    )


def check_missing(column: Column, count: int, rows: int, in_lists: bool = False) -> None:
    """Raises if values of a column are missing for which nothing stands.

    Args:
        column: The column.
        count: The number of values that are missing.
        rows: The values that there are, with those.
        in_lists: True if these are values in lists, and not lists.
    """
    is_list = column.depth > 0 and not in_lists
    if count == 0 or (column.empty if is_list else column.missing is not _NOTHING):
        return
    raise ValueError(
        f"Expected a value everywhere in column '{column.name}'. Received: {count} of {rows} that "
        f"are missing. Say what stands for them, as by missing={{'{column.name}': "
        f"{'[]' if is_list else repr(_python_type(column.spec.dtype)())}}} of sok_embed.data. "
        f"{_REMEDY}"
    )


# --- arrays of a column ---------------------------------------------------------------------


def signature_of(column: Column) -> list[tf.TensorSpec]:
    """Returns the specifications of `arrays_of`."""
    ends = tf.TensorSpec([None], tf.int64)
    splits = [ends] * column.depth
    if column.spec.dtype == tf.string:
        return [*splits, tf.TensorSpec([], tf.string), ends]
    return [*splits, tf.TensorSpec([None, *column.lengths], column.spec.dtype)]


def arrays_of(column: Column, values: Any) -> list[npt.NDArray[Any]]:
    """Returns the values of a column as arrays, which share Arrow's memory where they can.

    These are the row splits of lists, from the outside in, int64 `[n + 1]`; then numbers
    `[n, ...]`, or all texts as one, `[]`, and where each begins and ends in it, int64 `[n + 1]`.

    Args:
        column: The column.
        values: The `pyarrow.Array` or `pyarrow.ChunkedArray`.

    Raises:
        ValueError: If a value is missing for which nothing stands, and for values of another type
            that the specification cannot hold, as a later file may have.
    """
    name, spec = column.name, column.spec
    found = spec_of(name, values.type)
    if type(found) is not type(spec) or found.shape.as_list() != spec.shape.as_list():
        raise ValueError(
            f"Expected tensors of {spec} in column '{name}', as its schema says. Received: "
            f"{values.type}. {_REMEDY}"
        )
    if isinstance(values, pyarrow.ChunkedArray):  # each with a dictionary of its own
        chunks = [_plain(each) for each in values.chunks] or [pyarrow.array([], values.type)]
        array = chunks[0] if len(chunks) == 1 else pyarrow.concat_arrays(chunks)
    else:
        array = values
    splits = []
    for _ in range(column.depth):
        array = _plain(array)
        check_missing(column, array.null_count, len(array))
        if array.null_count:
            lengths = array.value_lengths().fill_null(0).to_numpy()
            splits.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
        else:
            offsets = array.offsets.to_numpy().astype(np.int64)
            splits.append(offsets - offsets[:1])
        array = array.flatten()
    array = _plain(array)
    while types.is_fixed_size_list(array.type):
        array = _plain(_elements(array))
    return [*splits, *_flat(column, array)]


def _plain(array: Any) -> Any:
    """Returns the values of a tensor as lists, and those of a dictionary by themselves."""
    while True:
        if isinstance(array, pyarrow.ExtensionArray):
            array = array.storage
        elif types.is_dictionary(array.type):
            values, indices = array.dictionary, array.indices
            array = (values.cast(pyarrow.large_binary()) if is_text(values.type) else values).take(
                indices
            )
        else:
            return array


def widened(values: Any) -> Any:
    """Returns a column of a table that may have more than 2**31 bytes of text in a chunk."""

    def wide(kind: Any) -> Any:
        if types.is_list(kind) or types.is_large_list(kind):
            return pyarrow.large_list(wide(kind.value_type))
        if types.is_fixed_size_list(kind):
            return pyarrow.list_(wide(kind.value_type), kind.list_size)
        return pyarrow.large_binary() if is_text(kind) else kind

    if types.is_dictionary(values.type):
        kind = wide(values.type.value_type)
        values = pyarrow.chunked_array([_plain(each).cast(kind) for each in values.chunks], kind)
    return values.cast(wide(values.type))


def _elements(array: Any) -> Any:
    """Returns the elements of lists of a fixed size, of a missing list as many missing ones."""
    if not array.null_count:
        return array.flatten()
    size = array.type.list_size
    places = np.arange(len(array) * size) + array.offset * size
    # Values under missing lists have no meaning.
    missing = np.repeat(array.is_null().to_numpy(zero_copy_only=False), size)
    values = array.values
    values = values.cast(pyarrow.large_binary()) if is_text(values.type) else values
    return values.take(pyarrow.array(places, mask=missing))


def _flat(column: Column, array: Any) -> list[npt.NDArray[Any]]:
    """Returns numbers `[n, ...]`, or all texts as one and where each of them begins and ends."""
    name, spec, missing = column.name, column.spec, column.missing
    is_text = spec.dtype == tf.string
    kind = (
        pyarrow.large_binary() if is_text else pyarrow.from_numpy_dtype(spec.dtype.as_numpy_dtype)
    )
    try:
        array = array.cast(kind)
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"Expected values of {spec.dtype.name} in column '{name}', as its schema says. "
            f"Received: {array.type}: {error}. {_REMEDY}"
        ) from error
    check_missing(column, array.null_count, len(array), in_lists=True)
    if array.null_count:
        array = array.fill_null(_scalar(column, kind))
    if is_text:
        _, offsets, texts = array.buffers()
        if not len(array):
            return [np.array(b"", object), np.zeros(1, np.int64)]
        ends = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1]
        whole = texts.slice(ends[0], ends[-1] - ends[0]).to_pybytes() if texts else b""
        return [np.array(whole, object), ends - ends[0]]
    values = array.to_numpy(zero_copy_only=False)
    if spec.dtype.is_floating and missing is not _NOTHING and missing == missing:
        value = values.dtype.type(_scalar(column, kind).as_py())
        values = np.where(np.isnan(values), value, values)
    return [values.reshape([len(values) // math.prod(column.lengths), *column.lengths])]


def _scalar(column: Column, kind: Any) -> Any:
    """Returns what stands for a missing value, as a scalar of Arrow."""
    given = column.missing
    try:
        scalar = pyarrow.scalar(given, kind)
        fits = not types.is_integer(kind) or scalar.as_py() == given
    except (pyarrow.ArrowException, OverflowError, TypeError):
        fits = False
    if not fits or not scalar.is_valid:
        raise ValueError(
            f"Expected missing= of column '{column.name}' to be a value of its type {kind}. "
            f"Received: {described(given)}. Give this column its own, by its name."
        )
    return scalar
