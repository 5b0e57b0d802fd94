"""What worker 0 and the others share when they meet: the messages, times and addresses."""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from typing import Any

from sok_embed.communicators.launchers import Workers

MAGIC = b"sok-meet"
VERSION = 1
HELLO = struct.Struct("!8sIII16sIQ")  # magic, version, rank, size, fingerprint, patience, length
REPLY = struct.Struct("!8sIII")  # magic, version, kind, contents or bytes of text
LENGTH = struct.Struct("!Q")
MAX_CONTENT = 16 << 20  # bytes
MAX_TEXT = 64 << 10  # bytes
CHUNK = 64 << 10  # bytes; nobody makes us allocate more than was sent
# The kinds of replies, after 0 for contents.
ERRORS: tuple[type[Exception], ...] = (TimeoutError, ConnectionError, ValueError)
ANOTHER_PORT = (
    "Set MASTER_ADDR and MASTER_PORT, alike for all workers, to the host of worker 0 and a free "
    "port there."
)
# Seconds between two tries to reach worker 0: the first wait, and the longest.
FIRST_WAIT, LONGEST_WAIT = 0.02, 0.5


class Deadline:
    """A time until which something has to be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns how many seconds are left, from 0 on."""
        return max(0.0, self._end - time.monotonic())

    def shorten(self, seconds: float) -> None:
        """Takes as many seconds from now for the end, if that comes earlier."""
        self._end = min(self._end, time.monotonic() + seconds)

    def patience(self) -> float:
        """Returns the same for a socket, for which 0 seconds would mean to wait for nothing."""
        return max(0.001, self.left())


def fingerprint(workers: Workers) -> bytes:
    """Returns what the workers of a job have in common, 16 bytes."""
    return hashlib.sha256(f"{workers.size} {workers.launcher}".encode()).digest()[:16]


# Whoever listens at one of these hears all interfaces.
ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


def look_up(
    address: tuple[str, int], deadline: Deadline
) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Returns the numbers of a host, whose name may take its time to be known."""
    wait = FIRST_WAIT
    while True:
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
            return [(family, place) for family, *_, place in found if family in ANY]
        except (OSError, UnicodeError) as error:
            if not deadline.left():
                raise TimeoutError(
                    f"Expected {address[0]!r} to be the host of worker 0. Received: {error}. "
                    f"{ANOTHER_PORT}"
                ) from None
        time.sleep(min(wait, deadline.left()))
        wait = min(2 * wait, LONGEST_WAIT)


def is_loopback(place: tuple[Any, ...]) -> bool:
    """Returns whether only this host reaches an address."""
    return place[0] == "::1" or str(place[0]).startswith("127.")


def shown(address: tuple[Any, ...]) -> str:
    """Returns an address for messages."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
