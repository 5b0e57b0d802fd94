"""The batches of a run, and the run's place among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import tensorflow as tf

Position = Literal["iterator", "count"]


class Batches:
    """Makes passes through a dataset, one after the other.

    At the position `"iterator"` the owner of this object saves and restores the state of the
    iterator; at `"count"` the place is found again by the number of batches taken.

    Attributes:
        iterator: The iterator of the pass; `None` before the first.
        following: The iterator of the next pass, from which no batch was taken. Restoring an
            iterator also restores how often shuffles have drawn an order, but wrongly if it was at
            its end. Restoring an iterator at its beginning afterwards corrects that. `None`:
            nothing is shuffled.
        passes: The number of passes that have begun.
        taken: The batches taken from the last pass.
        in_a_pass: The number of batches of a pass; `None` if it is not known or endless.
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

    def skip_to(self, passes: int, taken: int) -> None:
        """Goes to a place by counts: to the pass of that number, after so many batches."""
        for _ in range(passes - 1):
            iter(self._dataset)  # a shuffle draws the order of a pass when its iterator is made
        self.iterator = iter(self._dataset.skip(taken)) if passes else None
        self.passes, self.taken = passes, taken

    def seeds(self) -> list[list[int]]:
        """Returns the seeds of everything in the dataset that draws at random."""
        return [_seeds_of(each) for each in _chain(self._dataset) if _seeds_of(each)]

    def shuffles_a_shard(self) -> bool:
        """Returns true if parts of workers are shuffled: they depend on the number of workers."""
        shuffles = [each for each in _chain(self._dataset) if "Shuffle" in type(each).__name__]
        below = itertools.chain.from_iterable(_chain(each) for each in shuffles)
        return any(type(each).__name__ == "_ShardDataset" for each in below)

    def batch_size(self) -> int | None:
        """Returns the examples of a batch, which the last of a pass may lack; `None`: unknown."""
        for each in _chain(self._dataset):
            size = tf.get_static_value(getattr(each, "_batch_size", None))
            if size is not None:
                return int(size)
        first = next(iter(tf.nest.flatten(self.element_spec)), None)
        shape = getattr(first, "shape", tf.TensorShape(None))
        return shape[0] if shape.rank else None


def _check_order_is_known(dataset: tf.data.Dataset) -> None:
    """Raises for a dataset whose batches come in a different order in each process.

    Datasets within functions, as in `interleave`, are not checked.
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
    """Yields the dataset and the datasets that it is made of, from the last to the first."""
    yield dataset
    inputs = getattr(dataset, "_inputs", None)
    for each in inputs() if inputs is not None else ():
        yield from _chain(each)


def _seeds_of(dataset: Any) -> list[int]:
    """Returns the two seeds of a dataset that draws at random, and nothing for others."""
    seeds = [tf.get_static_value(getattr(dataset, name, None)) for name in ("_seed", "_seed2")]
    return [] if None in seeds else [int(seed) for seed in seeds]
