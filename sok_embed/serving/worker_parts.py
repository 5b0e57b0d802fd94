"""Rows of tables that several workers have written into a folder that all of them share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sok_embed.kv import CorruptionError
from sok_embed.serving import rows as rows_files
from sok_embed.serving.delta_files import Batches
from sok_embed.serving.held_rows import HeldRows
from sok_embed.tables.base_table import Part
from sok_embed.tables.row_batches import Batch


class WorkerParts:
    """The folder in which workers put their rows.

    Args:
        folder: The folder.
        workers: The number of workers.
    """

    def __init__(self, folder: str, workers: int) -> None:
        self._folder = folder
        self._workers = workers

    def path(self, name: str, worker: int) -> str:
        """Returns the path of a file of a worker."""
        return os.path.join(self._folder, f"{name}-of-worker-{worker}.safetensors")

    def write(self, name: str, worker: int, dim: int, batches: Batches) -> int:
        """Writes rows of a worker as float32, or no file if there are none. Returns their number.

        Raises:
            FileNotFoundError: If the folder, which worker 0 makes, is missing.
        """
        if not os.path.isdir(self._folder):
            raise FileNotFoundError(
                f"Expected the folder '{self._folder}', which worker 0 has made. Received: nothing "
                "there. Use a folder that all workers share."
            )
        path = self.path(name, worker)
        written = rows_files.write(path, batches, dim=dim)
        if not written.rows:
            os.remove(path)
        return written.rows

    def batches(self, name: str, counts: Sequence[int]) -> Iterator[Batch]:
        """Yields the rows that all workers have written under a name.

        Args:
            name: The name.
            counts: The number of rows that each worker has written.

        Raises:
            FileNotFoundError: For a file that is not there.
            sok_embed.kv.CorruptionError: For a file of another number of rows.
        """
        for worker, count in enumerate(counts):
            if not count:
                continue
            path = self.path(name, worker)
            with rows_files.open(path) as file:
                if len(file) != count:
                    raise CorruptionError(
                        f"Expected {count} rows of worker {worker} in '{path}'. Received: "
                        f"{len(file)}. Do all workers share the folder?"
                    )
                for keys, vectors in file.batches():
                    yield keys.view(np.int64), vectors


class PartWriter:
    """Writes the part of a delta that one of several workers has, as `DeltaWriter` writes all.

    Args:
        files: The files of all workers.
        worker: The number of this worker.
        dims: The length of the rows of each table.

    Attributes:
        counts: The number of rows of each table, and after it the number of its removed keys.
    """

    def __init__(self, files: WorkerParts, worker: int, dims: Sequence[int]) -> None:
        self._files = files
        self._worker = worker
        self._dims = dims
        self.counts = [0] * (2 * len(dims))

    def put_rows(self, table: int, batches: Batches) -> None:
        """Writes rows of a table."""
        name, dim = f"rows-{table}", self._dims[table]
        self.counts[2 * table] = self._files.write(name, self._worker, dim, batches)

    def put_gone(self, table: int, keys: npt.NDArray[np.uint64]) -> None:
        """Writes keys of a table that have no row any more."""
        batches = iter([(keys, np.zeros([len(keys), 1], np.float32))])
        name = f"gone-{table}"
        self.counts[2 * table + 1] = self._files.write(name, self._worker, 1, batches)


class WorkerRows(HeldRows):
    """The rows of one part of a table that all workers have written.

    Args:
        part: The part, of this worker.
        files: The files of all workers.
        name: The name under which they have written the rows.
        written: The number of rows that each worker has written.
        count: The number of rows of all workers, including those that are left out.
        min_count: The least number of updates; other rows have been left out.
        taken: A function that is called with the number of rows that were taken since the call
            before.
    """

    def __init__(
        self,
        part: Part,
        files: WorkerParts,
        name: str,
        written: Sequence[int],
        count: int,
        min_count: int = 0,
        taken: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(part, min_count, taken)
        self._files = files
        self._name = name
        self._written = written
        self._count = count

    @property
    def count(self) -> int:
        """The number of rows, including those that are left out."""
        return self._count

    def batches(self) -> Iterator[Batch]:
        """See `HeldRows.batches`."""
        for keys, vectors in self._files.batches(self._name, self._written):
            self._taken(len(keys))
            yield keys, vectors


class WrittenTables:
    """The tables of a model whose rows all workers have written.

    Args:
        files: The files of all workers.
        parts: The parts of all tables, on this worker, in the order of all workers.
        told: The numbers that `write_own_rows` has returned on each worker.
    """

    def __init__(
        self, files: WorkerParts, parts: Sequence[Part], told: Sequence[Sequence[int]]
    ) -> None:
        self._files = files
        self._told = told
        counts = self._counts = [sum(each) for each in zip(*told, strict=True)][::2]
        self._numbers = {(id(part.table), part.name): i for i, part in enumerate(parts)}
        self._rows = sum(
            count for part, count in zip(parts, counts, strict=True) if part.name != "static"
        )

    def size(self) -> int:
        """Returns the number of rows of all tables that belong to one key."""
        return self._rows

    def rows(
        self, part: Part, min_count: int = 0, taken: Callable[[int], None] | None = None
    ) -> WorkerRows:
        """Returns the rows of a part; the arguments are those of `HeldRows`."""
        number = self._numbers.get((id(part.table), part.name))
        if number is None:
            raise ValueError(
                f"Table '{part.table.name}': expected a table that the model reaches by "
                "attributes, whose rows all workers have written. Received: a table that Keras "
                "found elsewhere. Make its layer an attribute of the model or of one of its "
                "layers."
            )
        written = [each[2 * number + 1] for each in self._told]
        count = self._counts[number]
        return WorkerRows(part, self._files, f"rows-{number}", written, count, min_count, taken)


def write_own_rows(
    files: WorkerParts, parts: Sequence[Part], worker: int, min_count: int
) -> list[int]:
    """Writes the rows that a worker has of each part of tables.

    Args:
        files: The files of all workers.
        parts: The parts of all tables, on this worker.
        worker: The number of this worker.
        min_count: The least number of updates; other rows are left out, except static rows.

    Returns:
        The number of rows of each part on this worker, and after it the number that was written.
    """
    numbers = []
    for number, part in enumerate(parts):
        if part.shared and worker:
            numbers += [0, 0]  # worker 0 has the same rows
            continue
        held = HeldRows(part, 0 if part.name == "static" else min_count)
        written = files.write(f"rows-{number}", worker, held.dim, held.batches())
        numbers += [held.count, written]
    return numbers
