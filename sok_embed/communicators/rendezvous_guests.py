"""The connections to a worker that listens, any of which may come from strangers."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sok_embed.communicators import rendezvous_wire as wire

# Seconds for a guest to identify itself. A worker does so at once.
HALF_SECONDS = 10.0
# The most guests at a time that have not identified themselves, not counting one for each worker.
SLOTS = 64
# The most lines that are logged for one reason, each for another host.
_LOGGED_HOSTS = 16

_log = logging.getLogger("sok_embed")


class Refused(Exception):
    """The reason why the connection of a guest is ended.

    Its text, one of a few, says what the guest did.
    """


class Ended(Exception):
    """Signals that a guest has ended its connection, or sends bytes that were not asked for."""


@dataclass(eq=False)
class Guest:
    """A connection to a worker that listens, from a worker or a stranger.

    Attributes:
        connection: The socket, which does not block.
        place: The address of the guest.
        step: The function that is called with the bytes once all of them are there.
        wanted: The number of bytes to read.
        begins: The bytes with which they have to begin.
        received: The bytes that have come.
        deadline: The time until which the guest must take its next step or, once it has sent its
            content, until which it waits.
        version: The version of the protocol that the guest speaks.
        rank: The rank that the guest claims.
        transcript: The greeting and the answer.
        hello: The guest's description of the job.
        is_proven: True once the guest has proved that it knows the secret of the job.
        content: The content that the guest sends to the other workers; `None` until all of it is
            there.
    """

    connection: socket.socket
    place: tuple[Any, ...]
    step: Callable[[Guest, bytes], None]
    wanted: int = wire.GREETING.size
    begins: bytes = wire.MAGIC
    received: bytearray = field(default_factory=bytearray)
    deadline: wire.Deadline = field(default_factory=lambda: wire.Deadline(HALF_SECONDS))
    version: int = 0
    rank: int = 0
    transcript: bytes = b""
    hello: bytes = b""
    is_proven: bool = False
    content: bytes | None = None

    @property
    def where(self) -> str:
        """Returns the address for messages."""
        return wire.shown(self.place)

    @property
    def host(self) -> str:
        """Returns the host that the guest comes from."""
        return str(self.place[0])

    @property
    def is_half(self) -> bool:
        """True if the guest may be a stranger, and has not sent everything yet."""
        return not self.is_proven and self.content is None

    def wait_for(self, count: int, step: Callable[[Guest, bytes], None]) -> None:
        """Sets the step that is taken once `count` more bytes have come."""
        self.wanted, self.step, self.begins = count, step, b""

    def listen(self) -> None:
        """Reads bytes that have come, and takes the next step if all bytes for it are there.

        Raises:
            Refused: If they are not bytes that a worker would send.
            Ended: If the guest has ended.
        """
        missing = self.wanted - len(self.received)
        try:
            chunk = self.connection.recv(min(wire.CHUNK, max(1, missing)))
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk or missing <= 0:
            raise Ended
        self.received += chunk
        if not self.begins.startswith(self.received[: len(self.begins)]):
            raise Refused("what it sent is not the greeting of a worker")
        if len(self.received) == self.wanted:
            whole, self.received = bytes(self.received), bytearray()
            self.step(self, whole)

    def send(self, message: bytes) -> None:
        """Sends a message that fits into the system's buffer of a connection.

        Raises:
            Ended: If the guest has ended, or does not read.
        """
        try:
            if self.connection.send(message) == len(message):
                return
        except OSError:
            pass
        raise Ended


def dispensable(guests: list[Guest]) -> Guest | None:
    """Returns the guest whose slot another may take: the oldest of the host with the most slots.

    Thus a flood from one host does not push out guests from other hosts.

    Args:
        guests: The guests that are connected, the oldest first.
    """
    half = [guest for guest in guests if guest.is_half]
    if not half:
        return None
    counts = Counter(guest.host for guest in half)
    # This does not use most_common, which imports a module: there may be no free descriptors.
    host = max(counts, key=counts.__getitem__)
    return next(guest for guest in half if guest.host == host)


class Refusals:
    """Counts why a worker has ended connections, and logs a few of them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, set[str]] = {}

    def note(self, host: str, where: str, reason: str, more: str = "") -> None:
        """Counts a connection; logs it if it is the first of a host that ends for this reason."""
        self._counts[reason] += 1
        hosts = self._logged.setdefault(reason, set())
        if host in hosts or len(hosts) == _LOGGED_HOSTS:
            return
        hosts.add(host)
        _log.warning(
            "Worker %d waits for the other workers, and has ended a connection from %s: %s.%s "
            "Further ones from that host are counted and not logged.",
            *(self._rank, where, reason, f" {more}" if more else ""),
        )

    def summary(self) -> str:
        """Returns a sentence on all ended connections; an empty text if there were none."""
        if not self._counts:
            return ""
        counts = "; ".join(
            f"{count} time{'s'[: count > 1]}: {reason}"
            for reason, count in self._counts.most_common()
        )
        return f"Connections that worker {self._rank} has ended: {counts}. "
