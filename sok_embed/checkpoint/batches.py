"""The batches that a run trains on, and where it stands among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import tensorflow as tf

Position = Literal["iterator", "count"]


class Batches:
    """Passes through a dataset, one after the other.

    Args:
        dataset: The dataset of batches.
        position: The way in which its place is found again: `"iterator"`, by the state of the
            iterator, which the owner of this object saves and restores; `"count"`, by the number of
            batches taken.

    Attributes:
        iterator: The iterator of the pass; `None` before the first.
        following: The iterator of the next pass, of which nothing was taken. An iterator that is
            restored also sets how often shuffles have drawn an order, but not rightly if it was at
            its end; one at its beginning that is restored after it sets that right. `None`: nothing
            is shuffled.
        passes: The number of passes that have begun.
        taken: The batches taken from the last one.
        in_a_pass: The batches of a pass; `None` if that is not known or there is no end.
        endless: True if there is no end.
    """

    def __init__(self, dataset: tf.data.Dataset, position: Position) -> None:
        if position == "count":
            _check_order_is_known(dataset)
        self._dataset = dataset
        cardinality = int(dataset.cardinality())
        self.endless = cardinality == tf.data.INFINITE_CARDINALITY
        self.in_a_pass = cardinality if cardinality >= 0 else None
        self.iterator: Any = None
        self.following: Any = None
        shuffles = any(_seeds_of(each) for each in _chain(dataset))
        self._looks_ahead = position == "iterator" and shuffles and not self.endless
        self.passes = 0
        self.taken = 0

    @property
    def element_spec(self) -> Any:
        """The specification of a batch."""
        return self._dataset.element_spec

    @property
    def at_end(self) -> bool:
        """True if the pass is known to have ended."""
        return self.in_a_pass is not None and self.taken >= self.in_a_pass

    def begin_pass(self) -> None:
        """Goes to the beginning of the dataset."""
        self.iterator = self.following or iter(self._dataset)
        self.following = iter(self._dataset) if self._looks_ahead else None
        self.passes += 1
        self.taken = 0

    def note_restored(self, passes: int, taken: int) -> None:
        """Takes over the counts of a run whose iterator was restored."""
        self.passes, self.taken = passes, taken

    def skip_to(self, passes: int, taken: int) -> None:
        """Goes to a place by counts alone: the pass of that number, after so many batches."""
        for _ in range(passes - 1):
            iter(self._dataset)  # a shuffle draws the order of a pass when its iterator is made
        self.iterator = iter(self._dataset.skip(taken)) if passes else None
        self.passes, self.taken = passes, taken

    def seeds(self) -> list[list[int]]:
        """Returns the seeds of everything that draws from the dataset at random."""
        return [_seeds_of(each) for each in _chain(self._dataset) if _seeds_of(each)]

    def shuffles_a_shard(self) -> bool:
        """Returns true if a worker's part is shuffled: batches depend on the number of workers."""
        shuffles = [each for each in _chain(self._dataset) if _shuffles(each)]
        below = itertools.chain.from_iterable(_chain(each) for each in shuffles)
        return any(type(each).__name__ == "_ShardDataset" for each in below)

    def batch_size(self) -> int | None:
        """Returns the examples of a batch, the last of a pass apart; `None`: unknown."""
        for each in _chain(self._dataset):
            size = tf.get_static_value(getattr(each, "_batch_size", None))
            if size is not None:
                return int(size)
        first = next(iter(tf.nest.flatten(self.element_spec)), None)
        shape = getattr(first, "shape", tf.TensorShape(None))
        return shape[0] if shape.rank else None


def _check_order_is_known(dataset: tf.data.Dataset) -> None:
    """Raises for a dataset whose batches come in another order in every process.

    Raises:
        ValueError: For a shuffle without a seed, and `deterministic=False`. Datasets within
            functions, as those of `interleave`, are not looked at.
    """
    received = None
    if dataset.options().deterministic is False:
        received = "one with deterministic=False"
    for each in _chain(dataset):
        if _seeds_of(each) == [0, 0]:
            received = f"{type(each).__name__.strip('_')} without a seed"
        if getattr(each, "_deterministic", None) == "false":
            received = f"{type(each).__name__.strip('_')} with deterministic=False"
    if received is not None:
        raise ValueError(
            "Expected a dataset that has the same batches in every process, with "
            f"position='count'. Received: {received}. Give it a seed or its order, or save its "
            "iterator, position='iterator'."
        )


def _chain(dataset: Any) -> Iterator[Any]:
    """Yields the dataset and those that it is made of, from the last to the first."""
    yield dataset
    inputs = getattr(dataset, "_inputs", None)
    for each in inputs() if inputs is not None else ():
        yield from _chain(each)


def _seeds_of(dataset: Any) -> list[int]:
    """Returns the two seeds of a dataset that draws at random; for others none."""
    seeds = [tf.get_static_value(getattr(dataset, name, None)) for name in ("_seed", "_seed2")]
    return [] if None in seeds else [int(seed) for seed in seeds]


def _shuffles(dataset: Any) -> bool:
    return "Shuffle" in type(dataset).__name__
