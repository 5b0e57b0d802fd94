"""Makes datasets of batches of frames, tables of Arrow, Parquet files and Hugging Face datasets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from sok_embed.arguments import check_flag, check_integer, described, takes_options

_BYTES = 2**26  # about so many are read at once, but at least a batch
_STREAMED = 4096  # so many rows of a stream, of whose bytes nothing is known


@dataclass(frozen=True, kw_only=True)
class Options:
    """Holds what all functions of this module take; `from_arrow` says what it means."""

    features: str | Sequence[str] | None = None
    label: str | Sequence[str] | None = None
    weight: str | None = None
    missing: Mapping[str | type, Any] | None = None
    shuffle: int | None = None
    seed: int | None = None
    num_shards: int = 1
    index: int = 0
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        check_integer("num_shards", self.num_shards, 1)
        check_integer("index", self.index, 0, self.num_shards)
        check_flag("drop_remainder", self.drop_remainder)
        if self.shuffle is not None:
            check_integer("shuffle", self.shuffle, 1)
        elif self.seed is not None:
            raise ValueError(
                f"Expected seed with shuffle. Received: seed={self.seed} alone. Say by shuffle= "
                "how many rows wait to be drawn from."
            )


@takes_options(Options)
def from_arrow(source: Any, batch_size: int, **options: Any) -> tf.data.Dataset:
    """Makes a dataset of the rows of a table of Arrow, a frame of Polars or a relation of DuckDB.

    Numbers and truth values become tensors `[B]` of the column's dtype, text, bytes and categories
    `tf.string` `[B]`, lists ragged `[B, None]`, lists of lists `[B, None, None]`, lists of a fixed
    size n and tensors dense `[B, n]`. Decimals become int64 if they have no places, else float64.
    Times, structs and maps are errors. Numbers are copied once, some at a time.

    Example:
    >>> import pyarrow
    >>> clicks = pyarrow.table({"user": ["ann", None], "tags": [[1, 2], []], "click": [1.0, 0.0]})
    >>> ((features, label),) = from_arrow(clicks, 2, label="click", missing={str: ""})
    >>> features["user"].numpy(), features["tags"].to_list(), label.numpy()
    (array([b'ann', b''], dtype=object), [[1, 2], []], array([1., 0.]))

    Args:
        source: A `pyarrow.Table`, or an object with `__arrow_c_stream__`, which is read at once.
        batch_size: The rows of a batch.
        **options: The arguments that all these functions take.

            - `features`: The columns of the features: one as a tensor, or several as a dictionary.
              `None`: all but the label and the weight.
            - `label`: The column of the labels, or several as a dictionary. `None`: there are none.
            - `weight`: The column of the weights of examples. `None`: they weigh the same.
            - `missing`: A dictionary of what stands for missing values: by the names of columns,
              and for features also by the types `str`, `int`, `float`, `bool` and `list`. `[]`
              stands for a list that is missing. What is given for floats stands for NaN, too. Not
              given: a missing float of a feature is NaN, and other missing values are errors.
            - `shuffle`: How many rows wait to be drawn from, as in `tf.data.Dataset.shuffle`; with
              all rows each order is as likely. Each pass has an order of its own. `None`: the rows'
              own order.
            - `seed`: The seed of the shuffle. `None`: what `keras.utils.set_random_seed` has set.
            - `num_shards`, `index`: The number of parts, such as one for each worker, and the part
              that is read. Part i of n has the rows `[i * rows // n, (i + 1) * rows // n)`.
            - `drop_remainder`: True if a last, shorter batch is left out. All parts then have the
              same number of batches; else these numbers differ by one at most.

    Returns:
        Batches `(features,)`, `(features, label)` or `(features, label, weight)`, for `fit`,
        `evaluate` and `predict`. Their number is known.

    Raises:
        ImportError: If pyarrow is not installed.
        TypeError: For another source.
        ValueError: For columns that are not there or of which there are no tensors; for missing
            values, with the column and their number; for arguments that do not fit.
        tf.errors.OpError: While it is read, for a missing value within lists.
    """
    pyarrow = _pyarrow()
    if not isinstance(source, pyarrow.Table):
        if not hasattr(source, "__arrow_c_stream__") or hasattr(source, "iloc"):  # pandas
            raise TypeError(
                "Expected a table of Arrow or an object with __arrow_c_stream__, such as a frame "
                f"of Polars. Received: {described(source)}. For pandas there is from_pandas, for "
                "files from_parquet."
            )
        source = pyarrow.table(source)

    def nulls(name: str) -> tuple[int, int]:
        return source[name].null_count, len(source)

    try:
        row_bytes = source.nbytes / max(1, len(source))
    except pyarrow.ArrowException:  # views of text have none in earlier versions
        row_bytes = source.get_total_buffer_size() / max(1, len(source))
    return _sliced(source.schema, len(source), source.slice, row_bytes, batch_size, options, nulls)


@takes_options(Options)
def from_pandas(frame: Any, batch_size: int, **options: Any) -> tf.data.Dataset:
    """Makes a dataset of the rows of a frame of pandas, as `from_arrow` does.

    Strings need no conversion: a column of them is a feature `tf.string` `[B]`. Columns of lists
    or arrays are ragged. The index is left out. NaN, None and NA are missing values. Numbers lie in
    the frame's memory; do not change the frame while the dataset is in use.

    Example:
    >>> import pandas
    >>> frame = pandas.DataFrame({"user": ["ann", "bob", "ann"], "click": [1.0, 0.0, 1.0]})
    >>> dataset = from_pandas(frame, 2, label="click", shuffle=len(frame), seed=1)
    >>> dataset.element_spec[0]
    {'user': TensorSpec(shape=(None,), dtype=tf.string, name=None)}

    Args:
        frame: The `pandas.DataFrame`.
        batch_size: The rows of a batch.
        **options: The other arguments of `from_arrow`.

    Returns:
        Batches, as those of `from_arrow`.

    Raises:
        ImportError, TypeError, ValueError: As `from_arrow`; also for a column of several types.
    """
    pyarrow = _pyarrow()
    if not hasattr(frame, "iloc") or getattr(frame, "ndim", 0) != 2:
        raise TypeError(
            f"Expected a DataFrame of pandas. Received: {described(frame)}. A Series becomes one "
            "by its method to_frame."
        )
    names = list(frame.columns)
    if wrong := [each for each in names if not isinstance(each, str) or names.count(each) > 1]:
        raise ValueError(
            f"Expected columns whose names are strings, each there once. Received: {wrong}. "
            "Name them anew, as by frame.set_axis(names, axis=1)."
        )
    named = _named(options)
    try:
        columns = None if named is None else [each for each in frame if each in named]
        table = pyarrow.Table.from_pandas(frame, columns=columns, preserve_index=False)
    except pyarrow.ArrowException as error:
        words = "; ".join(map(str, error.args))
        raise ValueError(
            f"Expected columns whose values have one type. Received: {words}. "
            "Convert the column, as by frame.astype({'name': str}), or leave it out by features=."
        ) from error
    return from_arrow(table, batch_size, **options)


@takes_options(Options)
def from_parquet(source: Any, batch_size: int, **options: Any) -> tf.data.Dataset:
    """Makes a dataset of the rows of Parquet files, as `from_arrow` does, without reading all.

    Only the row groups of this part are read, and of them only the columns that are asked for. A
    shuffle also draws the order of the row groups.

    Example:
    >>> import pyarrow.parquet
    >>> clicks = pyarrow.table({"user": ["ann", "bob"], "click": [1.0, 0.0]})
    >>> pyarrow.parquet.write_table(clicks, "clicks.parquet")
    >>> int(from_parquet("clicks.parquet", 1, label="click").cardinality())
    2

    Args:
        source: A path or URL of a file or of a folder, whose files are sorted by name; or a list of
            paths of files, in their order; or a `pyarrow.dataset.Dataset` of Parquet files, which
            may have partitions and a file system of its own. Below a folder, names of folders such
            as `day=5` are values of a column `day`. They become numbers if all of them are, so
            that names with leading zeros, such as `zip=007`, are errors.
        batch_size: The rows of a batch.
        **options: The other arguments of `from_arrow`.

    Returns:
        Batches, as those of `from_arrow`.

    Raises:
        ImportError, TypeError, ValueError: As `from_arrow`; also for a column that not all files
            have, or that has another type in the first file, unless its type widens without loss;
            for a column of a file that is in the names of its folders, too; for a dataset with a
            filter.
        OSError: If there is no such file.
        tf.errors.OpError: While it is read, for missing values that no statistics of the file told.
    """
    pyarrow = _pyarrow()
    from pyarrow import dataset as arrow

    from sok_embed.data import parquet

    dataset = parquet.opened(source)
    files = parquet.files_of(dataset, whole=options.get("features") is None)
    groups = [each for file in files for each in file.split_by_row_group()]
    sizes = [each.row_groups[0].num_rows for each in groups]
    ends = list(itertools.accumulate(sizes, initial=0))

    def row_bytes(names: list[str]) -> float:
        return parquet.row_bytes(groups, dataset, names)

    def nulls(name: str) -> tuple[int, int]:
        parquet.check_files(files, dataset.schema, name, inferred=dataset is not source)
        return parquet.nulls(groups, name)

    def read(names: list[str], first: int, last: int, step: int, random: Any) -> Iterator[Any]:
        own = [i for i in range(len(groups)) if ends[i] < last and ends[i + 1] > first]
        own = own if random is None else random.permutation(own).tolist()
        chosen = arrow.FileSystemDataset(
            [groups[i] for i in own], dataset.schema, dataset.format, dataset.filesystem
        )
        # By default it reads ahead so far that memory fills up.
        batches = chosen.to_batches(
            columns=names, batch_size=step, batch_readahead=2, fragment_readahead=1
        )
        for i in own:
            begin = ends[i]
            while begin < ends[i + 1]:
                batch = next(batches)
                low, high = max(first - begin, 0), min(last - begin, len(batch))
                begin += len(batch)
                if low < high:
                    yield pyarrow.Table.from_batches([batch.slice(low, high - low)])

    return _dataset(dataset.schema, ends[-1], read, row_bytes, batch_size, options, nulls)


@takes_options(Options)
def from_huggingface(source: Any, batch_size: int, **options: Any) -> tf.data.Dataset:
    """Makes a dataset of the rows of a Hugging Face dataset, as `from_arrow` does.

    The rows of a `datasets.Dataset` are read from its files as they are needed. Its format and
    transforms are left out. Of an `IterableDataset`, which streams, the number of batches is not
    known.

    Example:
    >>> clicks = datasets.load_dataset("owner/clicks", split="train")          # doctest: +SKIP
    >>> from_huggingface(clicks, 512, label="click", shuffle=100_000, seed=1)  # doctest: +SKIP

    Args:
        source: The `datasets.Dataset` or `datasets.IterableDataset`, one split.
        batch_size: The rows of a batch.
        **options: The other arguments of `from_arrow`.

    Returns:
        Batches, as those of `from_arrow`.

    Raises:
        TypeError: For another source, such as several splits.
        ValueError: As `from_arrow`; also for `num_shards` of an `IterableDataset`.
        tf.errors.OpError: While it is read, for missing values.
    """
    kind = type(source).__name__
    if kind not in ("Dataset", "IterableDataset") or not hasattr(source, "with_format"):
        raise TypeError(
            "Expected a datasets.Dataset or datasets.IterableDataset. Received: "
            f"{described(source)}. Of a DatasetDict take one split, as by source['train']."
        )
    tables = source.with_format("arrow")
    if kind == "Dataset":
        table = source.data
        row_bytes = table.nbytes / max(1, len(table))
        schema = source.features.arrow_schema
        return _sliced(
            schema, len(source), lambda i, n: tables[i : i + n], row_bytes, batch_size, options
        )
    if options.get("num_shards", 1) != 1:
        raise ValueError(
            "Expected num_shards=1 of an IterableDataset, whose rows are not counted. Received: "
            f"{options['num_shards']}. Give the part of this worker, by "
            "datasets.distributed.split_dataset_by_node."
        )

    def read(names: list[str], first: int, last: int, step: int, random: Any) -> Iterator[Any]:
        return tables.iter(batch_size=step)

    schema = next(iter(tables.iter(batch_size=1))).schema
    return _dataset(schema, None, read, _BYTES / _STREAMED, batch_size, options)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            f"Expected pyarrow. Received: {error}. Run pip install 'sok-embed[parquet]'."
        ) from error
    return pyarrow


def _named(options: Mapping[str, Any]) -> set[str] | None:
    """Returns the columns that options name; `None`: all."""
    if options.get("features") is None:
        return None
    parts = [options.get(each) for each in ("features", "label", "weight")]
    return {name for part in parts if part for name in ([part] if isinstance(part, str) else part)}


def _sliced(
    schema: Any,
    rows: int,
    rows_at: Callable[[int, int], Any],
    row_bytes: float,
    batch_size: int,
    options: Mapping[str, Any],
    nulls: Callable[[str], tuple[int, int]] | None = None,
) -> tf.data.Dataset:
    """Makes a dataset of rows that lie in memory or in mapped files: `rows_at(first, rows)`."""

    def read(names: list[str], first: int, last: int, step: int, random: Any) -> Iterator[Any]:
        for place in range(first, last, step):
            yield rows_at(place, min(step, last - place))

    return _dataset(schema, rows, read, row_bytes, batch_size, options, nulls)


def _dataset(
    schema: Any,
    rows: int | None,
    read: Callable[..., Iterator[Any]],
    row_bytes: float | Callable[[list[str]], float],
    batch_size: int,
    options: Mapping[str, Any],
    nulls: Callable[[str], tuple[int, int]] | None = None,
) -> tf.data.Dataset:
    """Makes a dataset of what `read(names, first, last, step, random)` yields in a pass.

    That are tables of the rows `[first, last)`, of at most about `step` rows each. `nulls` tells of
    a column how many values are missing, and of how many rows; `row_bytes`, how many bytes a row of
    columns has.
    """
    from sok_embed.data.arrow import check_missing, columns_of
    from sok_embed.data.batches import ROWS, dataset_of, shuffled, whole_batches

    given = Options(**options)
    check_integer("batch_size", batch_size, 1, 2**31)
    parts = columns_of(schema, given.features, given.label, given.weight, given.missing or {})
    columns = tf.nest.flatten(parts)
    if nulls is not None:
        for column in columns:
            check_missing(column, *nulls(column.name))
    names = list({column.name: None for column in columns})
    of_row = row_bytes(names) if callable(row_bytes) else row_bytes
    step = max(1, int(min(ROWS, _BYTES / max(of_row, 1))) // batch_size) * batch_size
    first, last, total = 0, 0, None
    if rows is not None:
        first, last = (rows * i // given.num_shards for i in (given.index, given.index + 1))
        total = last - first
        if given.drop_remainder:  # as many in each part
            total = rows // given.num_shards // batch_size * batch_size

    def tables(*draw: int) -> Iterator[Any]:
        random = np.random.default_rng(int(draw[0])) if draw else None
        found = read(names, first, last, step, random)
        if random is not None:
            found = shuffled(found, int(given.shuffle or 0), random, names)
        return whole_batches(found, batch_size, total, given.drop_remainder)

    draws = None
    if given.shuffle is not None:
        draws = tf.data.Dataset.random(given.seed, rerandomize_each_iteration=True).take(1)
    found = dataset_of(parts, tables, batch_size, draws)
    if total is not None:
        found = found.apply(tf.data.experimental.assert_cardinality(-(-total // batch_size)))
    return found.prefetch(tf.data.AUTOTUNE)
