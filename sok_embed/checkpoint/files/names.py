"""The names of the files of a checkpoint."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from sok_embed.kv import CorruptionError

# Files that saves write. All have the number of the attempt in their names.
OWN_NAME = re.compile(
    r"(?:(?:rows|data)-\d{5,}-of-\d{5,}|dense|manifest)-(?P<attempt>[0-9a-f]{16})[.\w-]*"
)
ROWS_NAME = re.compile(
    r"rows-(?P<worker>\d{5,})-of-(?P<workers>\d{5,})-(?P<attempt>[0-9a-f]{16})\.sok"
)
# `tf.train.Checkpoint` appends these to the prefix of a worker's own files. Records have
# this order.
DATA_ENDINGS = (".index", ".data-00000-of-00001")


def rows_name(worker: int, workers: int, attempt: int) -> str:
    """Returns the name of a worker's file of rows."""
    return f"rows-{worker + 1:05d}-of-{workers:05d}-{attempt:016x}.sok"


def dense_prefix(attempt: int) -> str:
    """Returns the beginning of the names of the files of dense weights."""
    return f"dense-{attempt:016x}"


def data_prefix(worker: int, workers: int, attempt: int) -> str:
    """Returns the prefix of the names of a worker's own files."""
    return f"data-{worker + 1:05d}-of-{workers:05d}-{attempt:016x}"


def data_names(workers: int, attempt: int) -> list[str]:
    """Returns the names of the own files of all workers, by worker."""
    return [
        f"{data_prefix(worker, workers, attempt)}{ending}"
        for worker in range(workers)
        for ending in DATA_ENDINGS
    ]


@contextlib.contextmanager
def nothing_restored() -> Iterator[None]:
    """Adds to a CorruptionError of the block that nothing was restored."""
    try:
        yield
    except CorruptionError as error:
        raise CorruptionError(f"{error} Nothing was restored.") from error
