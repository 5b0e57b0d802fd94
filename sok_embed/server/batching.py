"""Answers the requests that come at the same time by one call of the model."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from prometheus_client import Gauge, Histogram

from sok_embed.server.requests import Examples, Parts, Signature
from sok_embed.server.values import InvalidRequest
from sok_embed.serving import Version
from sok_embed.serving.loaded_export import Snapshot

# The seconds that a batch waits for more requests, after a batch that had several. With 8 clients
# a third more requests are answered by it; a client alone never waits.
_TOGETHER_S = 0.001
# The most bytes of the inputs of a batch of several requests, and of all that wait.
_BATCH_BYTES = 4 << 20
_MOST_BYTES = 256 << 20
_SECONDS = Histogram(
    "sok_embed_batch_seconds",
    "Seconds of a call of the model.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
_EXAMPLES = Histogram(
    "sok_embed_batch_examples",
    "Examples of a call of the model.",
    buckets=[2**power for power in range(13)],
)
_WAITING = Gauge("sok_embed_waiting_examples", "Examples that wait for a call of the model.")


class Overloaded(Exception):
    """A request that cannot be taken now."""


class Answer(NamedTuple):
    """The outputs of the model for a request.

    Attributes:
        outputs: An array for each output of the signature, by its name.
        version: The version that they are from.
    """

    outputs: Parts
    version: Version


class _Waiting(NamedTuple):
    """A request that waits for its answer."""

    examples: Examples
    shapes: tuple[Any, ...]
    size: int  # in bytes
    answer: asyncio.Future[Answer]


class Batcher:
    """Gathers requests, and has the model answer them in batches.

    A request is answered at once while a thread is free. While all threads are busy, requests
    gather, and the next batch has as many of them as it may. A batch has dense inputs of the same
    shapes, and is answered by one version.

    Args:
        signature: The inputs and outputs of the model.
        snapshot: A function that returns the version to answer from.
        most: The most examples of a batch.
        queue: The most examples that wait.
        threads: The number of batches that the model works on at a time.
    """

    def __init__(
        self,
        signature: Signature,
        snapshot: Callable[[], Snapshot],
        most: int,
        queue: int,
        threads: int,
    ) -> None:
        self._signature, self._snapshot = signature, snapshot
        self._most, self._room, self._free = most, queue, threads
        self._waiting: deque[_Waiting] = deque()
        self._examples = self._bytes = 0
        self._pool = ThreadPoolExecutor(threads, "sok_embed.server")
        self._running: set[asyncio.Task[None]] = set()

    async def answer(self, examples: Examples) -> Answer:
        """Returns the answer to examples.

        Raises:
            InvalidRequest: If the model refuses a value of this request.
            Overloaded: If too many examples wait.
        """
        size = sum(each.nbytes for each in examples.parts.values())
        is_full = self._bytes + size > _MOST_BYTES or self._examples + examples.size > self._room
        if self._waiting and is_full:
            raise Overloaded(f"{self._examples} examples wait for an answer. Ask again later.")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        shapes = self._signature.shapes(examples)
        self._waiting.append(_Waiting(examples, shapes, size, answer))
        self._count(examples.size, size)
        if self._free:
            self._free -= 1
            task = asyncio.create_task(self._run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await answer

    def close(self) -> None:
        """Ends the threads once they have answered what they work on."""
        self._pool.shutdown(wait=False)

    async def _run(self) -> None:
        """Answers batches until no request waits."""
        try:
            batch: list[_Waiting] = []
            while self._waiting:
                if len(batch) > 1:  # clients that were answered together ask again together
                    await asyncio.sleep(_TOGETHER_S)
                if not self._waiting:  # another thread has taken all
                    return
                batch = self._take()
                await self._answer(batch)
        finally:
            self._free += 1

    def _take(self) -> list[_Waiting]:
        """Returns the first requests that wait and may be one batch."""
        batch = [self._waiting.popleft()]
        examples, size = batch[0].examples.size, batch[0].size
        while self._waiting and self._waiting[0].shapes == batch[0].shapes:
            examples += self._waiting[0].examples.size
            size += self._waiting[0].size
            if examples > self._most or size > _BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
        self._count(-sum(each.examples.size for each in batch), -sum(each.size for each in batch))
        # The client may have gone.
        return [each for each in batch if not each.answer.done()]

    def _count(self, examples: int, size: int) -> None:
        self._examples += examples
        self._bytes += size
        _WAITING.set(self._examples)

    async def _answer(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        requests = [each.examples for each in batch]
        try:
            answers = await loop.run_in_executor(self._pool, self._predict, requests)
        except Exception as error:
            if len(batch) > 1:  # one request is wrong, and the others are right
                half = len(batch) // 2
                await self._answer(batch[:half])
                await self._answer(batch[half:])
            elif batch and not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for each, answer in zip(batch, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answer)

    def _predict(self, requests: list[Examples]) -> list[Answer]:
        """Returns the answers to the requests of a batch."""
        if not requests:
            return []
        snapshot = self._snapshot()
        counts = [each.size for each in requests]
        begun = time.perf_counter()
        try:
            found = snapshot(**self._signature.joined(requests))
        except tf.errors.InvalidArgumentError as error:
            raise InvalidRequest(_reason(error.message)) from error
        outputs = {name: np.asarray(each) for name, each in found.items()}
        _SECONDS.observe(time.perf_counter() - begun)
        _EXAMPLES.observe(sum(counts))
        return [Answer(each, snapshot.version) for each in self._signature.split(outputs, counts)]


def _reason(message: str) -> str:
    """Returns the line of a message of TensorFlow that says what a value should have been."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = [line for line in lines if "xpected" in line or "failed" in line]
    return (said or lines or ["The model refuses a value."])[-1].split(" [[{{node")[0][:200]
