"""Runs an application by uvicorn, with connections that cannot be held open for nothing."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# The seconds in which a request has to come as a whole.
REQUEST_S = 20.0
# The seconds for which requests that were taken may be answered at the end.
_END_S = 30
# The descriptors that are left for files, and for requests that are answered.
_FREE_DESCRIPTORS = 512


def run(app: ASGIApp, host: str, port: int) -> None:
    """Serves an application over HTTP until SIGTERM or SIGINT, and then answers what it has taken.

    Args:
        app: The application.
        host: The address to listen on.
        port: The port; 0: a free one, which is logged.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Connection.most_waiting = max(1, min(most, 2**20) - _FREE_DESCRIPTORS)
    # uvicorn sends itself the signal again at its end, which should be the end of a program that
    # has done what it was to do.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)
    # Anybody could fill the log by sending what is not HTTP.
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.levelno != logging.WARNING)
    uvicorn.run(
        app,
        host=host,
        port=port,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_END_S,
        backlog=4096,
    )


class Connection(HttpToolsProtocol):
    """A connection that is closed when a request does not come as a whole in time.

    When there are too many connections that wait for requests, the oldest of them is closed.

    Attributes:
        most_waiting: The most connections that wait for the rest of a request.
    """

    most_waiting = 2**20
    # In the order in which they began to wait.
    _all_waiting: dict[Connection, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(_Transport(transport))  # type: ignore[arg-type]
        self._wait()

    def on_message_begin(self) -> None:
        """Waits for the rest of a request."""
        super().on_message_begin()
        if self not in self._all_waiting:
            self._wait()

    def on_message_complete(self) -> None:
        """Ends to wait: the request is there."""
        self._wait_no_more()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Sends an answer that has no body."""
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends to wait: the connection is gone."""
        self._wait_no_more()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection that has no new request, also one that has not read its answer."""
        self.transport.abort()

    def _wait(self) -> None:
        self._all_waiting[self] = self.loop.call_later(REQUEST_S, self._give_up)
        if len(self._all_waiting) > self.most_waiting:
            next(iter(self._all_waiting))._give_up()

    def _wait_no_more(self) -> None:
        timer = self._all_waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self) -> None:
        self._wait_no_more()
        self.transport.abort()


class _Transport:
    """Writes the head of an answer together with its body: a system call, and not two."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes data, but keeps the head of an answer until more comes, or its end."""
        is_head = data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n")
        if is_head and not self._head and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = b""

    def flush(self) -> None:
        """Writes the head of an answer that has no body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Closes the connection, once all is written."""
        self.flush()
        self._transport.close()
