"""A proxy before an object store that fails as networks and stores do."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import web

# What may happen to a request, in the order in which the handler looks for it.
KINDS = ("500", "503", "dropped", "half_sent", "answer_lost", "cut", "slow")
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class FaultyProxy:
    """Passes requests on to a store, other than those that fail.

    Args:
        target: The URL of the store.
        rates: The probability of each kind of fault, which may be changed at any time.
        seed: The seed of what happens.
        host: The address that it listens at.

    Attributes:
        url: The URL of the proxy.
        down: Whether each connection is closed without an answer.
        slow_seconds: How long a slow request waits.
        asked: How often each method and path was asked for.
        done: How often each kind of fault has happened.
    """

    def __init__(
        self,
        target: str,
        rates: Mapping[str, float] | None = None,
        seed: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self._target, self._host = target, host
        self.rates = dict(rates or {})
        self._random = random.Random(seed)
        self.down, self.slow_seconds = False, 0.5
        self.asked: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()

    def __enter__(self) -> FaultyProxy:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self._wait(self._start())
        self.url = f"http://{self._host}:{self.port}"
        return self

    def __exit__(self, *_: Any) -> None:
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _start(self) -> int:
        self._client = aiohttp.ClientSession(
            auto_decompress=False, connector=aiohttp.TCPConnector(limit=0)
        )
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, 0)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def _end(self) -> None:
        await self._client.close()
        await self._runner.cleanup()
        for each in asyncio.all_tasks() - {asyncio.current_task()}:  # slow ones
            each.cancel()
        await asyncio.sleep(0.1)

    def _fault(self) -> str:
        """Returns what happens to the next request; empty: nothing."""
        chance = self._random.random()
        for kind in KINDS:
            chance -= self.rates.get(kind, 0.0)
            if chance < 0:
                self.done[kind] += 1
                return kind
        return ""

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked[request.method, request.path] += 1
        if "Expect" in request.headers:  # which a client waits for before it sends the body
            assert request.transport is not None
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await request.read()
        kind = "dropped" if self.down else self._fault()
        if kind in ("500", "503"):
            return web.Response(status=int(kind))
        if kind == "half_sent" and body:
            await self._send_half(request, body)
        if kind in ("dropped", "half_sent"):
            return self._dropped(request)
        if kind == "slow":
            await asyncio.sleep(self.slow_seconds)
        async with self._client.request(
            request.method,
            self._target + request.raw_path,
            headers={n: v for n, v in request.headers.items() if n != "Expect"},
            data=body,
            allow_redirects=False,
        ) as found:
            data = await found.read()
            headers = {n: v for n, v in found.headers.items() if n.lower() not in _HOP}
            if kind == "answer_lost":
                return self._dropped(request)
            length = found.headers.get("Content-Length", str(len(data)))
            answer = web.StreamResponse(status=found.status, headers=headers)
            answer.content_length = int(length)
            await answer.prepare(request)
            if request.method == "HEAD":
                return answer
            if kind == "cut":
                await answer.write(data[: len(data) // 2])
                return self._dropped(request)
            await answer.write(data)
            await answer.write_eof()
            return answer

    async def _send_half(self, request: web.BaseRequest, body: bytes) -> None:
        """Begins a request to the store, and breaks off in the middle of its body."""
        host, port = self._target.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"{request.method} {request.raw_path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in request.headers.items() if name != "Expect"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body[: len(body) // 2])
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    def _dropped(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
