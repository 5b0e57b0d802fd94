"""Answers concurrent requests in batches, by one call of the model."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fields import InvalidRequest
from metrics import Metrics
from served import Served


class Overloaded(Exception):
    """A request that the service cannot take now."""


@dataclass(eq=False)
class Waiting:
    """A request that waits for its answer.

    Attributes:
        served: The version that has read the examples, and answers.
        examples: The examples.
        shapes: The shapes of the examples.
        answer: The answers or the error.
    """

    served: Served
    examples: Sequence[Any]
    shapes: tuple[Any, ...]
    answer: asyncio.Future[list[Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Gathers requests, and has the model answer them in batches.

    A batch is begun when a thread is free, and runs once `most` examples wait, or after `wait_s`.
    It has requests for one version, with dense inputs of the same shapes. While all threads are
    busy, requests gather by themselves.

    Args:
        metrics: The metrics that the batcher updates.
        most: The most examples of a batch, and of a request.
        wait_s: The seconds that a request waits for other requests while a thread is free.
        threads: The number of batches that the model works on at a time.
        queue: The most examples that wait.
    """

    def __init__(
        self, metrics: Metrics, most: int, wait_s: float, threads: int, queue: int
    ) -> None:
        self._metrics, self._most, self._wait_s = metrics, most, wait_s
        self._room = queue
        self._waiting: list[Waiting] = []
        self._examples = 0
        self._arrived = asyncio.Event()
        self._free = asyncio.Semaphore(threads)
        self._pool = ThreadPoolExecutor(threads, "predict")
        self._running: set[asyncio.Task[None]] = set()
        self._gathering = asyncio.create_task(self._gather())

    async def answer(self, served: Served, examples: Sequence[Any]) -> list[Any]:
        """Returns the answers to examples, in their order.

        Raises:
            InvalidRequest: If the model refuses a value of this request.
            Overloaded: If too many examples wait.
        """
        if self._examples + len(examples) > self._room:
            raise Overloaded("Too many examples wait. Ask again later.")
        shapes = tuple(sorted({served.shapes(example) for example in examples}))
        if len(shapes) > 1:  # each request is a batch of its own
            parts = await asyncio.gather(*(self.answer(served, [each]) for each in examples))
            return [answer for (answer,) in parts]
        waiting = Waiting(served, examples, shapes)
        self._waiting.append(waiting)
        self._count(len(examples))
        self._arrived.set()
        try:
            return await waiting.answer
        finally:
            if waiting in self._waiting:  # the client went
                self._waiting.remove(waiting)
                self._count(-len(examples))

    async def close(self) -> None:
        """Ends when all waiting requests have been answered."""
        while self._waiting or self._running:
            await asyncio.sleep(0.01)
        self._gathering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._gathering
        self._pool.shutdown()

    def _count(self, more: int) -> None:
        self._examples += more
        self._metrics.waiting.set(self._examples)

    async def _gather(self) -> None:
        while True:
            await self._free.acquire()
            batch: list[Waiting] = []
            while not batch:
                await self._arrived.wait()
                await self._fill()
                batch = self._take()
            task = asyncio.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _fill(self) -> None:
        """Waits until there is a whole batch, or for as long as a request may wait."""
        end = time.monotonic() + self._wait_s
        while self._waiting and self._examples < self._most:
            left = end - time.monotonic()
            if left <= 0:
                return
            self._arrived.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)
            self._arrived.set()

    def _take(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size = 0
        while self._waiting:
            first = self._waiting[0]
            alike = not batch or (first.served, first.shapes) == (batch[0].served, batch[0].shapes)
            if not alike or (batch and size + len(first.examples) > self._most):
                break
            batch.append(self._waiting.pop(0))
            size += len(first.examples)
        self._count(-size)
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _run(self, batch: list[Waiting]) -> None:
        try:
            await self._answer(batch)
        finally:
            self._free.release()

    async def _answer(self, batch: list[Waiting]) -> None:
        examples = [example for each in batch for example in each.examples]
        loop = asyncio.get_running_loop()
        begun = time.perf_counter()
        try:
            answers = await loop.run_in_executor(self._pool, batch[0].served.predict, examples)
        except InvalidRequest as error:
            if len(batch) == 1:
                _set(batch[0], error=error)
            else:  # one request has a value that the model refuses, and the others are right
                for each in batch:
                    await self._answer([each])
            return
        except Exception as error:
            for each in batch:
                _set(each, error=error)
            return
        self._metrics.predict_seconds.observe(time.perf_counter() - begun)
        self._metrics.batch_examples.observe(len(examples))
        for each in batch:
            _set(each, answers[: len(each.examples)])
            answers = answers[len(each.examples) :]


def _set(waiting: Waiting, answers: Any = None, error: Exception | None = None) -> None:
    if waiting.answer.done():  # the client went
        return
    if error is None:
        waiting.answer.set_result(answers)
    else:
        waiting.answer.set_exception(error)
