"""Workers of a job meet once, over TCP, and tell each other a few bytes.

Worker 0 listens, and every other worker sends it one message and gets one back, whose numbers
are big-endian:

- Another worker sends magic, version of the protocol, rank, number of workers, fingerprint of the
  job, the milliseconds that it will wait, length of its content; then the content.
- Worker 0 answers with magic, version, 0, number of contents; then of each its length and itself.
- Or it answers with magic, version, the kind of an error, length of its text; then that in UTF-8.

Nothing is encrypted, and nobody proves who they are: like the meeting places of MPI and torchrun,
this one is for networks whose hosts trust each other. What comes is copied and never executed.
"""

from __future__ import annotations

import socket
import time

from sok_embed.communicators import rendezvous_wire as wire
from sok_embed.communicators.launchers import Workers
from sok_embed.communicators.rendezvous_host import Host

# Seconds for one of several addresses of worker 0, which may be one that swallows what comes.
_LONGEST_TRY = 5.0
# Seconds; the system's calls that wait do not take numbers of any size.
_LONGEST_TIMEOUT = 1e6


def all_gather(content: bytes, workers: Workers, timeout: float) -> list[bytes]:
    """Gives every worker the contents of all. Collective: each worker calls it once.

    Args:
        content: What this worker tells the others, 16 MiB at most.
        workers: This process among the workers, with an address.
        timeout: Seconds that this takes at most, beside the look-up of the address's name. It
            counts from the call of each worker: give workers that start late enough of it.

    Returns:
        The contents, that of worker 0 first.

    Raises:
        ValueError: For a content that is too long and workers without an address; if two workers
            have one rank, or another idea of the job than worker 0.
        TimeoutError: If a worker does not come in time, which is named on those that have come; if
            worker 0 cannot be reached.
        ConnectionError: If a worker ends before all have met.
        OSError: On worker 0, if it cannot listen at the address.
    """
    if len(content) > wire.MAX_CONTENT:
        raise ValueError(
            f"Expected at most {wire.MAX_CONTENT} bytes of each worker. Received: {len(content)}."
        )
    if workers.address is None:
        raise ValueError(
            "Expected workers with an address at which to meet. Received: those of "
            f"{workers.launcher}, without one. {wire.ANOTHER_PORT}"
        )
    if not timeout > 0:
        raise ValueError(f"Expected a timeout above 0 seconds. Received: {timeout}.")
    if workers.size == 1:
        return [content]
    deadline = wire.Deadline(min(timeout, _LONGEST_TIMEOUT))
    if workers.rank == 0:
        return Host(workers, workers.address, deadline).gather(content)
    return _visit(content, workers, workers.address, deadline)


def _visit(
    content: bytes, workers: Workers, address: tuple[str, int], deadline: wire.Deadline
) -> list[bytes]:
    """Tells worker 0 the content, and returns those of all."""
    hello = wire.HELLO.pack(
        *(wire.MAGIC, wire.VERSION, workers.rank, workers.size, wire.fingerprint(workers)),
        *(int(deadline.left() * 1000), len(content)),
    )
    with _connect(address, deadline) as connection:
        try:
            connection.settimeout(deadline.patience())
            connection.sendall(hello + content)
        except OSError:
            pass  # worker 0 says why it has stopped to listen, if it can
        reader = _Reader(connection, address, deadline)
        magic, version, kind, number = wire.REPLY.unpack(reader.read(wire.REPLY.size))
        if magic == wire.MAGIC and version != wire.VERSION:
            raise ValueError(
                "Expected all workers to have one version of sok_embed, whose protocol here is "
                f"{wire.VERSION}. Received: {version} from worker 0 at {wire.shown(address)}."
            )
        if magic == wire.MAGIC and 0 < kind <= len(wire.ERRORS) and number <= wire.MAX_TEXT:
            raise wire.ERRORS[kind - 1](reader.read(number).decode(errors="replace"))
        if magic == wire.MAGIC and kind == 0 and number == workers.size:
            return [reader.read_content() for _ in range(number)]
    raise ConnectionError(
        f"Expected worker 0 at {wire.shown(address)}. Received: the answer of another program. "
        f"{wire.ANOTHER_PORT}"
    )


class _Reader:
    """Reads what worker 0 answers."""

    def __init__(
        self, connection: socket.socket, address: tuple[str, int], deadline: wire.Deadline
    ) -> None:
        self._connection = connection
        self._address = address
        self._deadline = deadline

    def read_content(self) -> bytes:
        (length,) = wire.LENGTH.unpack(self.read(wire.LENGTH.size))
        return self.read(min(length, wire.MAX_CONTENT))

    def read(self, count: int) -> bytes:
        """Returns so many bytes.

        Raises:
            TimeoutError: If they do not come in time.
            ConnectionError: If the connection ends before.
        """
        received = bytearray()
        where = wire.shown(self._address)
        try:
            while len(received) < count:
                self._connection.settimeout(self._deadline.patience())
                chunk = self._connection.recv(min(wire.CHUNK, count - len(received)))
                if not chunk:
                    raise ConnectionError("it was closed")
                received += chunk
        except TimeoutError:
            raise TimeoutError(
                f"Expected an answer of worker 0 at {where} within {self._deadline.seconds:g} "
                "seconds. Received: none, though something listens there. Worker 0 may wait for "
                "others with a longer timeout, which are those to look for; or another program "
                f"has that port. {wire.ANOTHER_PORT}"
            ) from None
        except OSError as error:
            raise ConnectionError(
                f"Expected worker 0 at {where} to go on until all workers have met. Received: the "
                f"end of the connection: {error}. See what worker 0 printed last."
            ) from None
        return bytes(received)


def _connect(address: tuple[str, int], deadline: wire.Deadline) -> socket.socket:
    """Returns a connection to worker 0, which may start later than this worker."""
    wait = wire.FIRST_WAIT
    while True:
        problem: object = "no address"
        for family, place in wire.look_up(address, deadline):
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.settimeout(min(deadline.patience(), _LONGEST_TRY))
                connection.connect(place)
                # Where nobody listens at a port from which connections go out, the system may
                # connect one with itself.
                if connection.getsockname() != connection.getpeername():
                    return connection
                problem = "nobody listens there"
            except OSError as error:
                problem = error
            connection.close()
        if not deadline.left():
            raise TimeoutError(
                f"Expected worker 0 to listen at {wire.shown(address)} within {deadline.seconds:g} "
                f"seconds. Received: {problem}. See what worker 0 printed last, and whether this "
                f"host reaches it there. {wire.ANOTHER_PORT}"
            )
        time.sleep(min(wait, deadline.left()))
        wait = min(2 * wait, wire.LONGEST_WAIT)
