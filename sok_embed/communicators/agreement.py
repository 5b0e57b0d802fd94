"""Agreement of workers on numbers and on errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from sok_embed.binding import _core
from sok_embed.communicators import Communicator

_Result = TypeVar("_Result")
_Number = TypeVar("_Number", int, float)

# Numbers travel as int64.
LARGEST = 2**63 - 1

# Seconds between signs of life of a worker for which the others wait.
SECONDS_BETWEEN_SIGNS = 2.0


class Agreement:
    """Makes all workers do the same work, and an error of one an error of all.

    Every method is collective.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size

    def gather_lists(self, numbers: Sequence[int], purpose: str) -> list[list[int]]:
        """Returns the int64 numbers of all workers in their order, a list for each.

        Args:
            numbers: The numbers of this worker; each worker may have any number of them.
            purpose: The purpose of the exchange, which is its name: numbers of workers that are at
                different places are never mixed up.
        """
        if self.size == 1:
            return [list(numbers)]
        name = f"sok_embed.agreement.{purpose.replace(' ', '_')}"
        of_all, counts = self._communicator.all_gather(tf.constant(numbers, tf.int64), name)
        ends = np.cumsum(counts.numpy())[:-1]
        return [each.tolist() for each in np.split(of_all.numpy(), ends)]

    def gather(self, number: int, purpose: str) -> list[int]:
        """Returns a number of each worker, with arguments as for `gather_lists`."""
        return [each for (each,) in self.gather_lists([number], purpose)]

    def sums(self, numbers: Sequence[int], purpose: str) -> list[int]:
        """Returns sums over all workers of lists of one length; arguments as `gather_lists`."""
        return add_lists(self.gather_lists(numbers, purpose))

    def together(
        self, what: str, work: Callable[[], _Result], undo: Callable[[], object] | None = None
    ) -> _Result:
        """Does something on this worker while the others do; see `gather_together`.

        Returns:
            The result of the work.
        """
        return self.gather_together(what, work, lambda _: (), undo)[0]

    def gather_together(
        self,
        what: str,
        work: Callable[[], _Result],
        numbers: Callable[[_Result], Sequence[int]],
        undo: Callable[[], object] | None = None,
    ) -> tuple[_Result, list[list[int]]]:
        """Does something on this worker while the others do, and gathers numbers of the results.

        Args:
            what: The work as an infinitive, for the message and the name of the exchange.
            work: The function that does it, which must not communicate with workers.
            numbers: A function that takes the result of the work and returns numbers for the other
                workers.
            undo: A function that is called if the work has failed on a worker, once all have ended
                it. It is not called if a worker is lost, since others may still be working.

        Returns:
            The result of the work, and the numbers of each worker.

        Raises:
            Exception: The error of `work` or `numbers`.
            RuntimeError: If they have failed only on other workers.
        """
        error: Exception | None = None
        result: _Result | None = None
        own: Sequence[int] = ()
        try:
            result = work()
            own = numbers(result)
        except Exception as raised:
            error = raised
        told = self.gather_lists([int(error is not None), *own], what)
        failed = [each[0] for each in told]
        if any(failed) and undo is not None:
            with contextlib.suppress(OSError):
                undo()
        if error is not None:
            raise error
        if any(failed):
            other = next(worker for worker, each in enumerate(failed) if each)
            raise RuntimeError(
                f"Expected all workers to {what}. Received: an error on worker {other}, whose own "
                "message says more."
            )
        return result, [each[1:] for each in told]  # type: ignore[return-value]

    def first_alone(self, what: str, work: Callable[[], _Result]) -> _Result | None:
        """Does something that may take long on worker 0, while the others wait for it.

        Worker 0 sends a sign of life every few seconds, so that the others do not count it as lost.

        Args:
            what: The work as an infinitive, for the message and the name of the exchange.
            work: The function that does it, which must not communicate with workers.

        Returns:
            The result of the work; `None` on other workers.

        Raises:
            Exception: The error of `work`, on worker 0.
            RuntimeError: On the other workers, if it has failed.
        """
        if self.rank:
            while any(self.gather(0, f"sign: {what}")):
                pass
            return self.together(what, lambda: None)

        def signed() -> _Result:
            with self._signs(f"sign: {what}"):
                return work()

        return self.together(what, signed)

    def together_for_long(self, what: str, work: Callable[[], _Result]) -> _Result:
        """Does something that may take long, as `together` does, with signs of life meanwhile."""

        def signed() -> _Result:
            with self._signs(f"sign: {what}"):
                return work()

        return self.together(what, signed)

    @contextlib.contextmanager
    def _signs(self, purpose: str) -> Iterator[None]:
        """Gathers ones while a block runs, then zeros until the blocks of all have ended."""
        if self.size == 1:
            yield
            return
        ended = threading.Event()
        failures: list[Exception] = []

        def give() -> None:
            try:
                while any(self.gather(int(not ended.wait(SECONDS_BETWEEN_SIGNS)), purpose)):
                    pass
            except Exception as error:  # a worker is lost: the next exchange raises it too
                failures.append(error)

        thread = threading.Thread(target=give, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failures:
            raise failures[0]


def bits_of(floats: Sequence[float]) -> list[int]:
    """Returns the bits of float64 numbers as int64, in which they travel exactly."""
    return np.array(floats, np.float64).view(np.int64).tolist()


def floats_of(bits: Sequence[int]) -> list[float]:
    """Returns the float64 numbers of `bits_of`."""
    return np.array(bits, np.int64).view(np.float64).tolist()


def add_lists(lists: Sequence[Sequence[_Number]]) -> list[_Number]:
    """Returns the sums of the first numbers of all lists, of the second ones, and so on."""
    return [sum(column) for column in zip(*lists, strict=True)]


def number_of_text(text: str) -> int:
    """Returns a number of a text; two different texts almost surely have different numbers."""
    return _core.checksum(np.frombuffer(text.encode(), np.uint8), 0) & LARGEST


def check_same(what: str, numbers: Sequence[int], remedy: str, texts: bool = False) -> None:
    """Raises ValueError unless all workers have one number.

    With `texts` the numbers stand for texts, and messages do not show them.
    """
    if min(numbers) != max(numbers):
        other = next(i for i, each in enumerate(numbers) if each != numbers[0])
        shown = ("one", "another") if texts else (numbers[0], numbers[other])
        raise ValueError(
            f"Expected all workers to have the same {what}. Received: {shown[0]} on worker 0 and "
            f"{shown[1]} on worker {other}. {remedy}"
        )
