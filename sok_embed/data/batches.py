"""Makes datasets of batches of tables of Arrow."""

from __future__ import annotations

import atexit
import gc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import tensorflow as tf

from sok_embed.data.arrow import Column, arrays_of, signature_of, widened

ROWS = 65_536  # Python hands over at most so many at once, but at least a batch


def dataset_of(
    parts: Any,
    tables: Callable[..., Iterable[Any]],
    batch_size: int | None = None,
    draws: tf.data.Dataset | None = None,
) -> tf.data.Dataset:
    """Makes a dataset of tables of Arrow.

    Python hands over whole tables; TensorFlow cuts batches out of them.

    Args:
        parts: A nest of `Column`s, the structure of a batch.
        tables: A function that begins a pass, and returns its tables. Each must have a multiple of
            `batch_size` rows, but for the last of the pass.
        batch_size: The rows of a batch. `None`: a batch is a whole table.
        draws: A dataset of a number for each pass, with which `tables` is called.

    Returns:
        Batches, whose errors are those of TensorFlow with the words of Python's.
    """
    columns = tf.nest.flatten(parts)
    signatures = [signature_of(column) for column in columns]

    def arrays(*draw: Any) -> Iterator[Any]:
        for table in filter(len, tables(*draw)):
            found = [arrays_of(column, table[column.name]) for column in columns]
            yield (len(table), *(_own(array) for of_column in found for array in of_column))

    def begun(*draw: tf.Tensor) -> tf.data.Dataset:
        flat = (tf.TensorSpec([], tf.int64), *(spec for each in signatures for spec in each))
        return tf.data.Dataset.from_generator(arrays, output_signature=flat, args=draw)

    def batches(rows: tf.Tensor, *flat: tf.Tensor) -> tf.data.Dataset:
        rest = iter(flat)
        of_columns = [[next(rest) for _ in each] for each in signatures]
        size = rows if batch_size is None else tf.constant(batch_size, tf.int64)

        def batch(first: tf.Tensor) -> Any:
            last = tf.minimum(first + size, rows)
            found = [
                _tensor(column, arrays, first, last)
                for column, arrays in zip(columns, of_columns, strict=True)
            ]
            return tf.nest.pack_sequence_as(parts, found)

        return tf.data.Dataset.range(0, rows, size).map(batch)

    whole = begun() if draws is None else draws.flat_map(begun)
    found = whole.prefetch(1).flat_map(batches)
    if batch_size is not None:
        found._batch_size = tf.constant(batch_size)  # as `batch` leaves it, for who counts examples
    return found


def _own(array: Any) -> Any:
    """Returns numbers in memory of their own.

    TensorFlow takes the memory of an array as it is, and an op may write its result into it once no
    other tensor refers to it: that must not be the memory of a frame or a table.
    """
    return array.copy() if isinstance(array, np.ndarray) and array.dtype != object else array


@atexit.register
def _let_go() -> None:
    """Ends the iterators that are left when the process ends.

    The end of a generator's iterator calls Python on a thread of TensorFlow, which would be waited
    for without end once Python is finalized.
    """
    for each in gc.get_objects():
        if issubclass(type(each), tf.data.Iterator):  # isinstance may call code of the object
            vars(each).clear()


def _tensor(column: Column, arrays: Sequence[tf.Tensor], first: tf.Tensor, last: tf.Tensor) -> Any:
    """Returns the tensor of the rows `[first, last)` of a column, from `arrays_of`."""
    splits = []
    for ends in arrays[: column.depth]:
        of_rows = ends[first : last + 1]
        first, last = of_rows[0], of_rows[-1]
        splits.append(of_rows - first)
    rows = last - first
    if column.spec.dtype == tf.string:
        texts, ends = arrays[column.depth :]
        size = math.prod(column.lengths)
        of_values = tf.slice(ends, [first * size], [rows * size + 1])
        flat = tf.strings.substr(texts, of_values[:-1], of_values[1:] - of_values[:-1])
        flat = tf.reshape(flat, [rows, *column.lengths]) if column.lengths else flat
    else:
        zeros = [0] * len(column.lengths)
        flat = tf.slice(arrays[column.depth], [first, *zeros], [rows, *column.lengths])
    flat.set_shape([None, *column.lengths])
    return tf.RaggedTensor.from_nested_row_splits(flat, splits, validate=False) if splits else flat


def shuffled(
    tables: Iterable[Any], buffer: int, random: np.random.Generator, names: list[str]
) -> Iterator[Any]:
    """Yields tables of rows, each of which is drawn from about `buffer` of them."""
    held: list[Any] = []
    for table in itertools.chain(tables, [None]):
        rows = sum(map(len, held))
        if table is not None:
            held.append(pyarrow.table({name: widened(table[name]) for name in names}))
            rows += len(table)
        if held and (table is None or rows >= buffer):
            whole = pyarrow.concat_tables(held).combine_chunks()
            order = _drawn(rows, buffer, random)
            kept = buffer // 2 if table is not None else 0
            for place in range(0, rows - kept, ROWS):
                yield whole.take(order[place : min(place + ROWS, rows - kept)])
            held = [whole.take(order[rows - kept :])] if kept else []


def _drawn(rows: int, buffer: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Returns the places of rows in an order of draws among about `buffer` rows each.

    Half of those that wait are drawn before as many come to the rest.
    """
    order = np.arange(rows)
    half = max(1, buffer // 2)
    if buffer > 1:
        for place in range(0, max(0, rows - buffer) + half, half):
            order[place : place + buffer] = random.permutation(order[place : place + buffer])
    return order


def whole_batches(
    tables: Iterable[Any], batch_size: int, total: int | None, drop_remainder: bool
) -> Iterator[Any]:
    """Yields the first `total` rows in tables of whole batches, and then those that remain."""
    rest = None
    for table in tables:
        if rest is not None and len(rest):
            table = pyarrow.concat_tables([rest, table])
        rows = len(table) // batch_size * batch_size
        if total is not None:
            rows = min(rows, total)
            total -= rows
        if rows:
            yield table.slice(0, rows)
        rest = table.slice(rows)
        if total == 0:
            return
    if rest is not None and len(rest) and not drop_remainder:
        yield rest
