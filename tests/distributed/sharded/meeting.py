"""Speaks with worker 0 where workers meet, as the module's description has it and no better."""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

from limits import HANG_S

from sok_embed.communicators.rendezvous import all_gather
from sok_embed.communicators.workers import Workers

HOST = "127.0.0.1"
SECRET = bytes(range(32))
GREETING_BYTES, ANSWER_BYTES, PROOF_BYTES = 48, 44, 32


def free_port() -> int:
    with closing(socket.create_server((HOST, 0))) as server:
        return int(server.getsockname()[1])


def worker(
    rank: int,
    size: int,
    port: int,
    launcher: str = "test",
    host: str = HOST,
    local_size: int | None = None,
) -> Workers:
    local_rank = rank if local_size is None else 0
    return Workers(rank, size, local_rank, local_size or size, (host, port), launcher)


def meet(*calls: Callable[[], list[bytes]]) -> list[list[bytes] | BaseException]:
    """Runs each call in a thread, and returns what each returned or raised."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures: list[Future[list[bytes]]] = [threads.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def call(
    rank: int,
    size: int,
    port: int,
    content: bytes = b"",
    timeout: float = HANG_S,
    secret: bytes | None = None,
    **more: object,
) -> Callable[[], list[bytes]]:
    return lambda: all_gather(content, worker(rank, size, port, **more), timeout, secret)  # type: ignore[arg-type]


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """Connects to worker 0, which may not listen yet."""
    for _ in range(100 * 300):
        try:
            connection = socket.create_connection((HOST, port), HANG_S)
            break
        except ConnectionError:  # a reset one, too, where worker 0 has no room
            threading.Event().wait(0.01)
    else:
        # Not an OSError, which callers ignore.
        raise AssertionError(f"nobody listens at port {port}")
    with connection:
        yield connection


def greeting(rank: int, version: int = 2, nonce: bytes = bytes(32)) -> bytes:
    return struct.pack("!8sII32s", b"sok-meet", version, rank, nonce)


def proof(secret: bytes | None, role: bytes, transcript: bytes, signed: bytes = b"") -> bytes:
    if secret is None:
        return bytes(PROOF_BYTES)
    return hmac.new(secret, role + b"\0" + transcript + signed, hashlib.sha256).digest()


def hello(size: int, length: int, wait_ms: int = 2**31, launcher: str = "test") -> bytes:
    fingerprint = hashlib.sha256(f"{size} {launcher}".encode()).digest()[:16]
    return struct.pack("!I16sIQ", size, fingerprint, wait_ms, length)


def read(connection: socket.socket, count: int) -> bytes:
    """Returns so many bytes, or fewer if the connection ends before."""
    received = b""
    try:
        while len(received) < count and (chunk := connection.recv(count - len(received))):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def is_closed(connection: socket.socket) -> bool:
    """Waits until worker 0 sends something or ends the connection. Returns whether it ended."""
    return read(connection, 1) == b""


@dataclass
class Spoken:
    """Holds what went to and fro before a worker says something of the job."""

    transcript: bytes
    proof_of_host: bytes


def greet(connection: socket.socket, sent: bytes) -> Spoken:
    """Sends a greeting and reads the answer."""
    connection.sendall(sent)
    answer = read(connection, ANSWER_BYTES + PROOF_BYTES)
    return Spoken(sent + answer[:ANSWER_BYTES], answer[ANSWER_BYTES:])


def tell(
    connection: socket.socket,
    rank: int,
    size: int,
    content: bytes = b"",
    secret: bytes | None = None,
    version: int = 2,
    length: int | None = None,
    **more: object,
) -> bytes:
    """Says everything that a worker says. Returns the transcript."""
    spoken = greet(connection, greeting(rank, version))
    said = hello(size, len(content) if length is None else length, **more) + content  # type: ignore[arg-type]
    connection.sendall(
        proof(secret, b"another worker", spoken.transcript)
        + said
        + proof(secret, b"content", spoken.transcript, said)
    )
    return spoken.transcript


def reply(
    connection: socket.socket, transcript: bytes = b"", secret: bytes | None = None
) -> tuple[int, str]:
    """Returns the kind of worker 0's next reply, and its text."""
    head = read(connection, 20)
    magic, version, kind, length = struct.unpack("!8sIII", head)
    assert (magic, version) == (b"sok-meet", 2)
    text = read(connection, length)
    assert read(connection, PROOF_BYTES) == proof(secret, b"reply", transcript, head + text)
    return kind, text.decode()


TAKEN_IN = (255, "")
