"""Listens for other workers."""

from __future__ import annotations

import errno
import logging
import socket

from sok_embed.communicators import rendezvous_wire as wire
from sok_embed.communicators.secret import HOW_TO_SET
from sok_embed.communicators.workers import Workers

# The system answers with these errors for an address that this host does not have.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
# The least number of connections that the system keeps until a worker accepts them.
BACKLOG = 1024

_log = logging.getLogger("sok_embed")


def listen(
    workers: Workers, address: tuple[str, int], deadline: wire.Deadline, has_secret: bool
) -> socket.socket:
    """Returns a socket that listens for the other workers.

    It listens only on the loopback interface if all workers are on this host. If it listens on
    others, and the job has no secret, it warns.

    Raises:
        OSError: If this host cannot listen there.
        TimeoutError: If the host of the address cannot be resolved.
    """
    host, port = address
    if workers.on_one_host and not wire.is_loopback(address):
        found = [(socket.AF_INET, (wire.LOOPBACK, port))]
    else:
        found = wire.look_up(address, deadline, "worker 0", wire.ANOTHER_PORT)
        # An address that is not this host's may be translated to it on the way.
        if not any(wire.is_loopback(place) for _, place in found):
            found += [(family, (wire.ANY[family], port)) for family, _ in found]
    problem: OSError | None = None
    for family, place in found:
        try:
            listener = bound(family, place, max(BACKLOG, workers.size))
        except OSError as error:
            problem = error
            if error.errno not in _NOT_HERE:
                break
        else:
            if not has_secret and not wire.is_loopback(place):
                _warn(address)
            return listener
    if problem is not None and problem.errno == errno.EADDRINUSE:
        raise OSError(
            f"Expected port {port} of {host} to be free, for worker 0 to listen at. Received: "
            f"another process that listens there. {wire.ANOTHER_PORT}"
        )
    raise OSError(
        f"Expected worker 0 to listen at {wire.shown(address)}. Received: {problem}. "
        f"{wire.ANOTHER_PORT}"
    )


def bound(
    family: socket.AddressFamily, place: tuple[object, ...] | str, backlog: int
) -> socket.socket:
    """Returns a socket that listens at a place, and does not block.

    Raises:
        OSError: If this host cannot listen there.
    """
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # The port can be used although connections of an earlier job are still closing. Linux
        # refuses two listeners at one port all the same.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _warn(address: tuple[str, int]) -> None:
    _log.warning(
        "Workers meet at %s without a secret: until all have come, any process that reaches that "
        "port can take a worker's place, see and change what is trained, or keep the job from "
        "starting. %s",
        *(wire.shown(address), HOW_TO_SET),
    )
