"""Worker 0 where workers meet, see `sok_embed.communicators.rendezvous`."""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from sok_embed.communicators import rendezvous_wire as wire
from sok_embed.communicators.launchers import Workers

# What the system says of an address that is none of this host's.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
# How many missing ranks a message names.
_NAMED_RANKS = 16


@dataclass
class _Guest:
    """Somebody who has connected to worker 0.

    Attributes:
        connection: The socket.
        where: Its address, for messages.
        received: What came of the message so far.
        rank: The rank, once the beginning of the message is there and right.
        length: How long the whole message is, as far as it is known.
    """

    connection: socket.socket
    where: str
    received: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    length: int = wire.HELLO.size

    @property
    def has_told(self) -> bool:
        return self.rank is not None and len(self.received) == self.length

    @property
    def content(self) -> bytes:
        return bytes(self.received[wire.HELLO.size :])


class Host:
    """Worker 0, which listens until all others have come, and then tells them everything."""

    def __init__(self, workers: Workers, address: tuple[str, int], deadline: wire.Deadline) -> None:
        self._workers = workers
        self._address = address
        self._deadline = deadline
        self._guests: list[_Guest] = []

    def gather(self, content: bytes) -> list[bytes]:
        """Does on worker 0 what `all_gather` says."""
        try:
            try:
                with selectors.DefaultSelector() as selector, self._listener() as listener:
                    self._receive(selector, listener)
                # Nobody can come from here on: a worker that has its answer and calls again waits
                # until this one listens again.
            except wire.ERRORS as error:
                self._tell_error(error)
                raise
            told = {guest.rank: guest for guest in self._guests if guest.has_told}
            others = [told[rank] for rank in range(1, self._workers.size)]
            contents = [content, *(guest.content for guest in others)]
            self._tell(contents, others)
            return contents
        finally:
            for guest in self._guests:
                guest.connection.close()

    def _listener(self) -> socket.socket:
        host, port = self._address
        found = wire.look_up(self._address, self._deadline)
        # An address that is none of this host's may be translated to one on its way.
        if not any(wire.is_loopback(place) for _, place in found):
            found += [(family, (wire.ANY[family], port)) for family, _ in found]
        problem: OSError | None = None
        for family, place in found:
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                # This allows for connections of an earlier job that wait for their end. Two
                # listeners at one port are refused on Linux all the same.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(place)
                listener.listen(max(128, self._workers.size))
                listener.setblocking(False)
                return listener
            except OSError as error:
                listener.close()
                problem = error
                if error.errno not in _NOT_HERE:
                    break
        if problem is not None and problem.errno == errno.EADDRINUSE:
            raise OSError(
                f"Expected port {port} of {host} to be free, for worker 0 to listen at. Received: "
                f"another process that listens there. {wire.ANOTHER_PORT}"
            )
        raise OSError(
            f"Expected worker 0 to listen at {wire.shown(self._address)}. Received: {problem}. "
            f"{wire.ANOTHER_PORT}"
        )

    def _receive(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        """Waits until all others have told their contents."""
        selector.register(listener, selectors.EVENT_READ)
        while sum(guest.has_told for guest in self._guests) < self._workers.size - 1:
            if not self._deadline.left():
                raise self._missing(listener)
            for key, _ in selector.select(self._deadline.left()):
                if key.data is None:
                    self._welcome(selector, listener)
                elif not self._listen_to(key.data):
                    selector.unregister(key.data.connection)
                    key.data.connection.close()
                    self._guests.remove(key.data)

    def _welcome(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        try:
            connection, place = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # who came has gone again
        connection.setblocking(False)
        guest = _Guest(connection, wire.shown(place))
        self._guests.append(guest)
        selector.register(connection, selectors.EVENT_READ, guest)

    def _listen_to(self, guest: _Guest) -> bool:
        """Takes what has come of a guest. Returns whether the guest is one of the workers, so far.

        Raises:
            ConnectionError: If it was one of the workers and has ended.
            ValueError: If it has another idea of the job.
        """
        try:
            # One who has told everything is silent, until the connection ends.
            chunk = guest.connection.recv(
                min(wire.CHUNK, max(1, guest.length - len(guest.received)))
            )
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        if guest.rank is not None and (not chunk or guest.has_told):
            raise ConnectionError(
                f"Expected all workers to go on until they have met. Received: worker {guest.rank} "
                f"at {guest.where} has ended. See what it printed last."
            )
        guest.received += chunk
        if not chunk or not wire.MAGIC.startswith(guest.received[: len(wire.MAGIC)]):
            return False  # a stranger
        if guest.rank is None and len(guest.received) == wire.HELLO.size:
            self._greet(guest)
        return True

    def _greet(self, guest: _Guest) -> None:
        """Checks the beginning of a guest's message."""
        _, version, rank, size, fingerprint, patience, length = wire.HELLO.unpack(guest.received)
        ours = self._workers
        if version != wire.VERSION:
            raise ValueError(
                f"Expected all workers to have one version of sok_embed, whose protocol here is "
                f"{wire.VERSION}. Received: {version} from the process at {guest.where}."
            )
        if size != ours.size:
            raise ValueError(
                f"Expected all workers to know of {ours.size} workers, as worker 0 does by "
                f"{ours.launcher}. Received: worker {rank} at {guest.where} knows of {size}. If it "
                f"is of another job, that one meets at the same port. {wire.ANOTHER_PORT}"
            )
        if fingerprint != wire.fingerprint(ours):
            raise ValueError(
                f"Expected all workers to be started by {ours.launcher}, as worker 0 was. "
                f"Received: worker {rank} at {guest.where}, which was started otherwise. If it is "
                f"of another job, that one meets at the same port. {wire.ANOTHER_PORT}"
            )
        same = [each.where for each in self._guests if each.rank == rank]
        if rank == 0:
            same = ["this process"]
        if same or rank >= size:
            raise ValueError(
                f"Expected each of {size} workers to have a rank of its own. Received: rank {rank} "
                f"from {' and '.join([*same, guest.where])}. Start the workers with a launcher "
                "that numbers them, such as `sok-embed run`."
            )
        if length > wire.MAX_CONTENT:
            raise ValueError(
                f"Expected at most {wire.MAX_CONTENT} bytes of each worker. Received: {length} of "
                f"worker {rank} at {guest.where}."
            )
        guest.rank = rank
        guest.length += length
        # A worker that has waited for long hears who is missing before it gives up.
        seconds = patience / 1000
        self._deadline.shorten(seconds - min(1.0, seconds / 5))

    def _missing(self, listener: socket.socket) -> TimeoutError:
        here = {guest.rank for guest in self._guests if guest.has_told}
        missing = [rank for rank in range(1, self._workers.size) if rank not in here]
        loopback = wire.is_loopback(listener.getsockname())
        here_only = ", which no other host reaches," if loopback else ""
        return TimeoutError(
            f"Expected all {self._workers.size} workers at {wire.shown(self._address)}{here_only} "
            f"within {self._deadline.seconds:g} seconds. Received: nothing of {_ranks(missing)}. "
            "See what was printed there last, whether the address leads from there to worker 0, "
            f"and whether the timeout is enough for workers that start late. {wire.ANOTHER_PORT}"
        )

    def _tell(self, contents: Sequence[bytes], others: Sequence[_Guest]) -> None:
        parts = [wire.REPLY.pack(wire.MAGIC, wire.VERSION, 0, len(contents))]
        for content in contents:
            parts += [wire.LENGTH.pack(len(content)), content]
        reply = b"".join(parts)
        failed = []
        for rank, guest in enumerate(others, 1):
            try:
                guest.connection.settimeout(self._deadline.patience())
                guest.connection.sendall(reply)
            except OSError:
                failed.append(rank)
        if failed:
            raise ConnectionError(
                "Expected all workers to go on until they have met. Received: "
                f"{_ranks(failed)} took no answer. See what was printed there last."
            )

    def _tell_error(self, error: Exception) -> None:
        """Tells all who have come why there will be no others."""
        kind = next(i for i, known in enumerate(wire.ERRORS, 1) if isinstance(error, known))
        text = str(error).encode()[: wire.MAX_TEXT]
        reply = wire.REPLY.pack(wire.MAGIC, wire.VERSION, kind, len(text)) + text
        for guest in self._guests:
            try:
                # A text so short fits into what the system keeps for the connection.
                guest.connection.sendall(reply)
            except OSError:
                pass  # it has ended itself, maybe for the same reason


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED_RANKS]))
    more = len(ranks) - _NAMED_RANKS
    return f"worker{'s'[: len(ranks) > 1]} {named}" + (f" and {more} more" if more > 0 else "")
