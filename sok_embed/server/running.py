"""Runs an application by uvicorn, with connections that cannot be held open for nothing."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import signal
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# The seconds in which a request has to come as a whole.
REQUEST_S = 20.0
# The seconds for which requests that were taken may be answered at the end.
_END_S = 20
# The seconds for which a connection may have no request: gateways keep theirs for a minute.
_IDLE_S = 75
# The most bytes of the head of a request.
_MOST_HEAD_BYTES = 1 << 16
_OFFER = re.compile(rb"\r\n(?:upgrade|http2-settings):[^\r\n]*", re.IGNORECASE)
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
    Connection.most = max(1, min(most, 2**20) - _FREE_DESCRIPTORS)
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
        timeout_keep_alive=_IDLE_S,
        backlog=4096,
    )


class Connection(HttpToolsProtocol):
    """A connection that is closed when a request does not come as a whole in time.

    It is closed, too, when answers are not read. When there are too many connections, the oldest
    that waits for a request is closed.

    Attributes:
        most: The most connections.
    """

    most = 2**20
    # In the order in which they began to wait.
    _all_waiting: dict[Connection, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(_Transport(transport))  # type: ignore[arg-type]
        self._head_bytes: int | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Takes a part of a request."""
        is_body = self.cycle is not None and self.cycle.more_body
        if not is_body and b"h2c" in data:
            # Clients that offer HTTP/2 mean a plain request, but httptools stops at the offer.
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _OFFER.sub(b"", head) + end + rest
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self._give_up()
        elif (
            (self.cycle is None or self.cycle.response_complete)
            and self.timeout_keep_alive_task is None
            and self not in self._all_waiting
        ):
            self._wait()  # for bytes that end no request, and begin none

    def on_message_begin(self) -> None:
        """Waits for the rest of a request."""
        super().on_message_begin()
        self._head_bytes = 0
        if self not in self._all_waiting:
            self._wait()

    def on_headers_complete(self) -> None:
        """Ends the head of a request."""
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Ends to wait: the request is there."""
        self._wait_no_more()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Sends an answer that has no body, and watches that answers are read."""
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends to wait: the connection is gone."""
        self._wait_no_more()
        if self._watching is not None:
            self._watching.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Watches that answers are read."""
        super().pause_writing()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection that has no new request, once its answers have been read."""
        if self.transport.get_write_buffer_size():  # `_watch` ends it if this does not shrink
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def _watch(self) -> None:
        """Gives up if the client reads nothing of its answers for a while."""
        size = self.transport.get_write_buffer_size()
        if size and self._watching is None:
            self._watching = self.loop.call_later(REQUEST_S, self._look, size)

    def _look(self, before: int) -> None:
        self._watching = None
        if self.transport.get_write_buffer_size() < before:
            self._watch()
        else:
            self._give_up()

    def _wait(self) -> None:
        self._all_waiting[self] = self.loop.call_later(REQUEST_S, self._give_up)
        if len(self.connections) > self.most:
            oldest = next(iter(self._all_waiting))
            if oldest is self:  # all others are idle, or are answered
                others: set[Any] = self.connections
                idle = (each for each in others if each.timeout_keep_alive_task is not None)
                oldest = next(idle, self)
            oldest._give_up()

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
