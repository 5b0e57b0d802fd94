"""Agreement of workers that write or read one checkpoint."""

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

# Numbers travel as int64.
LARGEST = 2**63 - 1

# Seconds between the signs of a worker, which the others wait for, that it is still at work.
SECONDS_BETWEEN_SIGNS = 2.0


class Agreement:
    """All workers do the same, and an error of one is an error of all.

    Every method is collective.

    Args:
        communicator: The communicator of the workers.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size

    def gather(self, number: int, purpose: str) -> list[int]:
        """Returns the numbers of all workers, each in `[0, LARGEST]`, in their order.

        Args:
            number: The number of this worker.
            purpose: The purpose of the exchange, which is its name: numbers of workers that are at
                different places are never mixed up.
        """
        own = [number if worker == self.rank else 0 for worker in range(self.size)]
        return self.sums(own, purpose)

    def sums(self, numbers: Sequence[int], purpose: str) -> list[int]:
        """Returns the sums over all workers of each number; `purpose` as for `gather`."""
        if self.size == 1 or not numbers:
            return list(numbers)
        name = f"sok_embed.checkpoint.{purpose.replace(' ', '_')}"
        sums = self._communicator.all_reduce(tf.constant(numbers, tf.int64), name)
        return [int(each) for each in sums.numpy()]

    def check_same(self, what: str, number: int, remedy: str) -> None:
        """Raises ValueError on all workers unless their numbers are one.

        Args:
            what: The name of the thing that the numbers stand for, for the message.
            number: The number of this worker.
            remedy: The last sentence of the message.
        """
        numbers = self.gather(number, f"same {what}")
        self._refuse_others(what, numbers, numbers, remedy)

    def check_same_text(self, what: str, text: str, remedy: str) -> None:
        """Raises as `check_same` does, for texts; messages do not show them."""
        numbers = self.gather(
            _core.checksum(np.frombuffer(text.encode(), np.uint8), 0) & LARGEST, f"same {what}"
        )
        self._refuse_others(what, numbers, ["one"] + ["another"] * (self.size - 1), remedy)

    def _refuse_others(
        self, what: str, numbers: Sequence[int], shown: Sequence[object], remedy: str
    ) -> None:
        if min(numbers) != max(numbers):
            other = next(i for i, each in enumerate(numbers) if each != numbers[0])
            raise ValueError(
                f"Expected all workers to have the same {what}. Received: {shown[0]} on worker "
                f"0 and {shown[other]} on worker {other}. {remedy}"
            )

    def together(
        self, what: str, work: Callable[[], _Result], undo: Callable[[], object] | None = None
    ) -> _Result:
        """Does something on this worker while the others do, and waits for them.

        Args:
            what: The work as an infinitive, for the message and the name of the exchange.
            work: The function that does it, which must not communicate with workers.
            undo: The function that is called if the work has failed on one of them, once all have
                ended it. It is not called if a worker is lost: the others may be at work still.

        Raises:
            Exception: That of `work`.
            RuntimeError: If `work` has failed on another worker alone.
        """
        error: Exception | None = None
        result: _Result | None = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        failed = self.gather(int(error is not None), what)
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
        return result  # type: ignore[return-value]

    def first_alone(self, what: str, work: Callable[[], _Result]) -> _Result | None:
        """Does something that may take long on worker 0, while the others wait for it.

        Worker 0 gives a sign every few seconds, so that the others do not take it for lost.

        Args:
            what: The work as an infinitive, for the message and the name of the exchange.
            work: The function that does it, which must not communicate with workers.

        Returns:
            The result of the work; `None` on the others.

        Raises:
            Exception: That of `work`, on worker 0.
            RuntimeError: On the others, if it has failed.
        """
        if self.rank:
            while any(self.gather(0, f"sign: {what}")):
                pass
            return self.together(what, lambda: None)

        def signed() -> _Result:
            with self._signs(f"sign: {what}"):
                return work()

        return self.together(what, signed)

    @contextlib.contextmanager
    def _signs(self, purpose: str) -> Iterator[None]:
        """Gathers ones while a block runs, and a zero when it has ended."""
        if self.size == 1:
            yield
            return
        ended = threading.Event()
        failures: list[Exception] = []

        def give() -> None:
            try:
                while self.gather(int(not ended.wait(SECONDS_BETWEEN_SIGNS)), purpose)[0]:
                    pass
            except Exception as error:  # a worker is lost, which the next exchange says too
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
