"""Cuts rows into batches, in the same way on every worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "test"]


class InputError(ValueError):
    """A file or an option that the example cannot use; the message says what to do."""


@dataclass(frozen=True)
class Batch:
    """One worker's rows of one global batch.

    `global_rows` counts the rows of the batch over all workers. Uneven shares still train like one
    batch when each row weighs `size / global_rows`, see `weights`.
    """

    dense: NDArray[np.float32]  # (rows, dense_width)
    keys: NDArray[np.int64]  # (rows, fields)
    labels: NDArray[np.float32]  # (rows,)
    global_rows: int

    def __len__(self) -> int:
        return len(self.labels)

    def weights(self, size: int) -> NDArray[np.float32]:
        """Returns row weights: summed losses, averaged over workers, become the batch's mean."""
        return np.full(len(self), size / self.global_rows, np.float32)


class Source(Protocol):
    """A training and a test set that can be read again and again, in a fixed order per epoch."""

    name: str
    fields: int
    dense_width: int

    def rows(self, split: Split) -> int:
        """Returns the rows of a split over all workers."""

    def batches(
        self, split: Split, batch_size: int, rank: int = 0, size: int = 1, epoch: int = 0
    ) -> Iterator[Batch]:
        """Yields `steps(rows(split), batch_size)` batches on every worker.

        `batch_size` is global. A worker's share of the last batch may be empty; it is never left
        out, because a lookup in a table of several workers is a call that all of them must make.
        """


def steps(rows: int, batch_size: int) -> int:
    """Returns the number of global batches that `rows` rows make."""
    return -(-rows // batch_size)


def share(rows: int, rank: int, size: int) -> slice:
    """Returns the part of `rows` rows that worker `rank` of `size` takes; sizes differ by 1."""
    return slice(rows * rank // size, rows * (rank + 1) // size)


def take(batch: Batch, rank: int, size: int) -> Batch:
    """Cuts worker `rank`'s share out of a batch that holds the rows of all workers."""
    part = share(len(batch), rank, size)
    return Batch(batch.dense[part], batch.keys[part], batch.labels[part], batch.global_rows)


def rebatch(chunks: Iterable[Batch], batch_size: int) -> Iterator[Batch]:
    """Re-cuts chunks of any size into batches of `batch_size` rows, the last one shorter."""
    held: list[Batch] = []
    waiting = 0
    for chunk in chunks:
        held.append(chunk)
        waiting += len(chunk)
        if waiting < batch_size:
            continue
        rows = _concatenate(held)
        whole = waiting - waiting % batch_size
        for start in range(0, whole, batch_size):
            yield _rows(rows, slice(start, start + batch_size))
        held = [_rows(rows, slice(whole, waiting))]
        waiting -= whole
    if waiting:
        yield _concatenate(held)


def _rows(batch: Batch, part: slice) -> Batch:
    labels = batch.labels[part]
    return Batch(batch.dense[part], batch.keys[part], labels, len(labels))


def _concatenate(batches: list[Batch]) -> Batch:
    labels = np.concatenate([b.labels for b in batches])
    return Batch(
        np.concatenate([b.dense for b in batches]),
        np.concatenate([b.keys for b in batches]),
        labels,
        len(labels),
    )
