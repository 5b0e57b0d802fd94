"""Runs workers as the tasks of a barrier stage of Spark, and starts all again when one is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sok_embed.arguments import check_integer, described
from sok_embed.files.scratch import ScratchFolder

if TYPE_CHECKING:
    import tensorflow as tf
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField

__all__ = ["run"]

_log = logging.getLogger("sok_embed")
_RESULT = "rank int, result binary"
# Types of Spark, and those of Arrow.
_ARROW = {
    **{"boolean": "bool", "byte": "int8", "short": "int16", "integer": "int32", "long": "int64"},
    **{"float": "float32", "double": "float64", "string": "string", "binary": "binary"},
}


def run(
    function: Callable[..., Any],
    workers: int | None = None,
    *,
    data: DataFrame | None = None,
    max_failures: int = 3,
) -> list[Any]:
    """Runs a function on each of several workers of Spark, joined by `sok_embed.init`.

    The workers are the tasks of a barrier stage, which Spark starts at the same time. When one of
    them fails, Spark ends the others, and this function submits the stage again, until there were
    more than `max_failures` failures. The function is then called anew on all workers: with
    `sok_embed.checkpoint.fit` it goes on from its last checkpoint. Each failure is logged as a
    warning with the worker's own words.

    With `data`, each worker stores its rows on the local disk of its executor and gives the
    function a dataset of them, which may be read any number of times. With `workers`, the values of
    a row alone decide which worker has it and at which place, so that each start of the stage finds
    the same datasets, in whatever order Spark has computed the rows. Workers have about equally
    many rows, unless many rows are equal; `sok_embed.data.join` makes up for the difference.
    Without `workers`, each worker has one partition of `data` in its own order, and it is for the
    caller to give the rows an order that is the same each time Spark computes them.

    Example:
    >>> def train(rows):
    ...     batches = rows.batch(512).map(lambda row: (row["item"], row["rating"]))
    ...     sok_embed.checkpoint.fit(model(), sok_embed.data.join(batches), directory="/shared/run",
    ...                              epochs=3, position="count")
    >>> run(train, 4, data=session.read.parquet("/shared/ratings"))        # doctest: +SKIP

    Args:
        function: The function. It is called without arguments, or with the dataset of this
            worker's rows if there is `data`. The function and what it returns are pickled by
            cloudpickle.
        workers: The number of workers. `None`: as many as `data` has partitions.
        data: The DataFrame. Its columns are numbers, booleans, strings, binaries, or arrays of
            these, without nulls. Each element of a worker's dataset is a row, a dict with a scalar
            for each column, of the same type, and for an array a ragged tensor `[length]`, which
            `batch` makes `[B, length]`.
        max_failures: The number of failures after which the stage is submitted again.

    Returns:
        The list of what the function has returned on each worker, by rank.

    Raises:
        ImportError: If pyspark or pyarrow is not installed.
        TypeError: For a function that cannot be called.
        ValueError: For arguments that do not fit, and for columns of other types.
        RuntimeError: If the workers have failed more than `max_failures` times, with the words of
            the last failure.
    """
    session, errors = _spark()
    if not callable(function):
        raise TypeError(f"Expected a function to run. Received: {described(function)}.")
    check_integer("max_failures", max_failures, 0)
    if workers is not None:
        workers = check_integer("workers", workers, 1)
    schema = None
    if data is not None:
        schema = _schema_of(data)
        frame = data if workers is None else _dealt(data, workers)
    elif workers is not None:
        frame = session.builder.getOrCreate().range(0, workers, 1, workers)
    else:
        raise ValueError("Expected workers, data or both. Received: neither.")

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        return _work(function, schema, batches)

    failures = 0
    while True:
        # Spark itself does not start a stage of results again. A plan that has failed stays failed.
        tasks = frame.mapInArrow(task, _RESULT, barrier=True)
        try:
            results = {row.rank: bytes(row.result) for row in tasks.collect()}
        except errors as error:
            failures += 1
            times, words = f"failure {failures} of {max_failures + 1}", _words_of(error)
            if failures > max_failures:
                raise RuntimeError(
                    f"Expected all workers of Spark to end well. Received: {times}, {words}\n"
                    "The logs of the executors have what each worker has printed."
                ) from error
            _log.warning("Workers of Spark are started again after %s: %s", times, words)
        else:
            return [_unpickled(results[rank]) for rank in sorted(results)]


def _spark() -> tuple[Any, tuple[type[Exception], ...]]:
    """Returns the class of Spark's sessions, and the errors by which a driver hears of failures."""
    try:
        import pyarrow  # noqa: F401
        from py4j.protocol import Py4JJavaError
        from pyspark.errors.exceptions.base import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(
            f"Expected pyspark and pyarrow. Received: {error}. Run pip install 'sok-embed[spark]'."
        ) from error
    return SparkSession, (Py4JJavaError, PySparkException)


def _schema_of(data: DataFrame) -> Any:
    """Returns the schema of Arrow, or raises for columns of which there are no tensors."""
    import pyarrow

    from sok_embed.data.arrow import columns_of

    schema = pyarrow.schema([(each.name, _arrow_of(each, each.dataType)) for each in data.schema])
    columns_of(schema)
    return schema


def _arrow_of(column: StructField, kind: DataType) -> Any:
    """Returns the type of Arrow that Spark gives to values of a type."""
    import pyarrow

    if kind.typeName() == "array":
        return pyarrow.list_(_arrow_of(column, kind.elementType))
    if kind.typeName() not in _ARROW:
        raise ValueError(
            "Expected numbers, booleans, strings, binaries, or arrays of them in column "
            f"'{column.name}'. Received: {column.dataType.simpleString()}. Cast or drop the column."
        )
    return pyarrow.type_for_alias(_ARROW[kind.typeName()])


def _dealt(data: DataFrame, workers: int) -> DataFrame:
    """Returns the rows in one partition for each worker, in an order by their own values."""
    from pyspark.sql.functions import xxhash64

    # A shuffle of Spark brings the rows of a partition in the order in which they arrive.
    dealt = data.repartition(workers, *data.columns)
    return dealt.sortWithinPartitions(xxhash64(*data.columns))


def _words_of(error: Exception) -> str:
    """Returns what the error says before it lists the calls within Spark."""
    return str(error).partition("\n\tat ")[0].strip()


def _unpickled(result: bytes) -> Any:
    from pyspark import cloudpickle

    return cloudpickle.loads(result)


# --- in a task ------------------------------------------------------------------------------


def _work(function: Callable[..., Any], schema: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Calls the function as a worker. Yields its rank and result, as Arrow."""
    import keras
    import pyarrow
    from pyspark import BarrierTaskContext, SparkFiles, cloudpickle

    from sok_embed.communicators import init

    # Spark may give the task a process that has run another one.
    keras.utils.clear_session()
    folder = ScratchFolder("sok-embed-rows", SparkFiles.getRootDirectory())
    try:
        rows = _stored(batches, f"{folder.path}/rows.arrow")
        given = schema is not None
        arguments = (_dataset(f"{folder.path}/rows.arrow", rows, schema),) if given else ()
        init()
        result = cloudpickle.dumps(function(*arguments))
    finally:
        folder.end()
    rank = pyarrow.array([BarrierTaskContext.get().partitionId()], pyarrow.int32())
    yield pyarrow.record_batch([rank, pyarrow.array([result])], ["rank", "result"])


def _stored(batches: Iterator[Any], path: str) -> int:
    """Writes the rows of this task to a file, unless there are none. Returns their number."""
    import pyarrow

    rows, writer = 0, None
    for batch in batches:
        writer = writer or pyarrow.ipc.new_file(path, batch.schema)
        writer.write_batch(batch)
        rows += len(batch)
    if writer is not None:
        writer.close()
    return rows


def _dataset(path: str, rows: int, schema: Any) -> tf.data.Dataset:
    """Returns the rows of a file as dicts."""
    import pyarrow
    import tensorflow as tf

    from sok_embed.data.arrow import columns_of
    from sok_embed.data.batches import dataset_of

    def stored() -> Iterator[Any]:
        if rows:
            with pyarrow.memory_map(path) as file, pyarrow.ipc.open_file(file) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    (columns,) = columns_of(schema)
    dataset = dataset_of(columns, stored).unbatch()
    return dataset.apply(tf.data.experimental.assert_cardinality(rows))
