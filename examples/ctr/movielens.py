"""Reads MovieLens ratings, `user item rating timestamp`; the label is 4 stars or more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr.batches import Batch, InputError, Split, take
from ctr.keys import field_keys

POSITIVE_RATING = 4
COLUMNS = 4


class MovieLens:
    """Holds all ratings in memory and shuffles the training rows anew in each epoch.

    A file `X.base` has the file `X.test` beside it as the test set. Any other file is split by
    time: the last tenth of its ratings is the test set.
    """

    fields = 2
    dense_width = 0

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.name = f"MovieLens, {path.name}"
        self._seed = seed
        ratings = read_ratings(path)
        if path.suffix == ".base":
            test_path = path.with_suffix(".test")
            if not test_path.is_file():
                raise InputError(
                    f"{path}: expected the test ratings beside it in {test_path.name}. Received: "
                    "no such file. Do put it there, or give u.data, which is split by time."
                )
            train, test = ratings, read_ratings(test_path)
        else:
            ratings = ratings[np.argsort(ratings[:, 3], kind="stable")]
            cut = len(ratings) - len(ratings) // 10
            train, test = ratings[:cut], ratings[cut:]
        if not len(train) or not len(test):
            raise InputError(
                f"{path}: expected ratings to train with and to test with. "
                f"Received: {len(train)} and {len(test)}. Give a larger file."
            )
        self._splits: dict[Split, Batch] = {"train": _batch(train), "test": _batch(test)}

    def rows(self, split: Split) -> int:
        """Returns the rows of a split over all workers."""
        return len(self._splits[split])

    def batches(
        self, split: Split, batch_size: int, rank: int = 0, size: int = 1, epoch: int = 0
    ) -> Iterator[Batch]:
        """Yields batches; the training rows in an order drawn from (seed, epoch)."""
        rows = self._splits[split]
        order = np.arange(len(rows))
        if split == "train":
            order = np.random.default_rng([self._seed, epoch]).permutation(order)
        for start in range(0, len(rows), batch_size):
            part = order[start : start + batch_size]
            whole = Batch(rows.dense[part], rows.keys[part], rows.labels[part], len(part))
            yield take(whole, rank, size)


def read_ratings(path: Path) -> NDArray[np.int64]:
    """Reads `[ratings, 4]`: user, item, rating, timestamp in seconds."""
    ratings: list[list[int]] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            cells = line.split()
            try:
                if len(cells) != COLUMNS:
                    raise ValueError
                ratings.append([int(cell) for cell in cells])
            except ValueError:
                raise InputError(
                    f"{path}, line {number}: expected 4 whole numbers, user, item, rating and "
                    f"timestamp. Received: {line.rstrip()!r}. Do repair or remove the line."
                ) from None
    return np.array(ratings, np.int64).reshape(-1, COLUMNS)


def _batch(ratings: NDArray[np.int64]) -> Batch:
    rows = len(ratings)
    labels = (ratings[:, 2] >= POSITIVE_RATING).astype(np.float32)
    return Batch(np.zeros((rows, 0), np.float32), field_keys(ratings[:, :2]), labels, rows)
