"""Connects workers of a job, each two or those of two levels, once they know all addresses.

A worker listens at a port, and for workers of its own system at a local socket too, which moves
rows two to three times as fast as the loopback interface. It calls the workers of lower rank, and
is called by those of higher rank. Both sides prove who they are as at the meeting with worker 0,
see `rendezvous`, where the secret is made of the secret of the job and of a token of the worker
that is called. Without a secret of the job, a process that knows a worker's address can be another
worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import Sequence
from typing import NamedTuple

from sok_embed.communicators import rendezvous_wire as wire
from sok_embed.communicators.rendezvous_guests import Guest
from sok_embed.communicators.rendezvous_host import Reception
from sok_embed.communicators.rendezvous_listener import BACKLOG, bound
from sok_embed.communicators.rendezvous_visitor import Visitor
from sok_embed.communicators.secret import derived
from sok_embed.communicators.workers import Workers

_ADVICE = (
    "See what the other workers printed last. Where they do not reach a worker by its name or "
    "number, set SOK_EMBED_HOST on that worker to one by which they do."
)
_NO_SYSTEM = "-"


class Address(NamedTuple):
    """The address of a worker, which others must know to call it.

    Attributes:
        host: A name or number, without spaces.
        port: The port.
        token: 32 random hexadecimal digits.
        system: A text that two workers have in common if one can reach the other's local socket.
        levels: The number of levels of its exchanges.
    """

    host: str
    port: int
    token: str
    system: str
    levels: int = 1

    def to_bytes(self) -> bytes:
        """Returns the address as workers exchange it."""
        return " ".join(map(str, self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Address:
        """Returns what `to_bytes` made bytes of."""
        words = content.decode(errors="replace").split()
        try:
            host, port, token, system, levels = words
            return cls(host, int(port), token, system, int(levels))
        except ValueError:
            raise ValueError(
                f"Expected the address of a worker. Received: {content!r}. Start all workers with "
                "one version of sok_embed."
            ) from None


def hosts_of(addresses: Sequence[Address]) -> list[list[int]]:
    """Returns the ranks of the workers of each host, for two levels.

    A host is a running system, or a container with a network of its own.

    Returns:
        The ranks, as many for each host. Nothing where two levels are one: all workers are on one,
        or each is on a host of its own.

    Raises:
        ValueError: For hosts with different numbers of workers, on all workers.
    """
    hosts: dict[str, list[int]] = {}
    for rank, each in enumerate(addresses):
        hosts.setdefault(each.host if each.system == _NO_SYSTEM else each.system, []).append(rank)
    if len(hosts) in (1, len(addresses)):
        return []
    fewest, most = (find(hosts.values(), key=len) for find in (min, max))
    if len(fewest) < len(most):
        raise ValueError(
            f"Expected equally many workers on each host, for levels=2. Received: {len(fewest)} on "
            f"the host of worker {fewest[0]} ({addresses[fewest[0]].host}), and {len(most)} on "
            f"that of worker {most[0]} ({addresses[most[0]].host}). Start as many on each, or "
            "leave levels at 1."
        )
    return list(hosts.values())


def others_of(rank: int, hosts: Sequence[Sequence[int]], size: int) -> list[int]:
    """Returns the ranks of the workers to which a worker has connections.

    With `hosts` these are those of its host, and those with its place on the other hosts.
    """
    for own in hosts:
        if rank in own:
            place = own.index(rank)
            return sorted({*own, *(host[place] for host in hosts)} - {rank})
    return [other for other in range(size) if other != rank]


class Listening(contextlib.ExitStack):
    """The sockets at which a worker waits for others; leaving the context closes them.

    Args:
        host: The name or number by which other workers reach this one.
        levels: The number of levels of its exchanges.

    Raises:
        ConnectionError: If this host cannot listen there.
    """

    def __init__(self, workers: Workers, host: str, levels: int = 1) -> None:
        super().__init__()
        backlog, token, system = max(BACKLOG, workers.size), secrets.token_hex(16), _system()
        try:
            family, place = _listens_at(host)
            port = self.enter_context(bound(family, place, backlog))
            self.sockets = [port]
            try:
                self.sockets.append(
                    self.enter_context(bound(socket.AF_UNIX, _local_name(token), backlog))
                )
            except OSError:
                system = _NO_SYSTEM  # the other workers call the port
            self.address = Address(host, port.getsockname()[1], token, system, levels)
        except OSError as error:
            self.close()
            raise ConnectionError(
                f"Expected to listen for the other workers at {host}. Received: {error}. Set "
                "SOK_EMBED_HOST to the name or number by which they reach this host."
            ) from None


def connect_all(
    workers: Workers,
    addresses: list[Address],
    listening: Listening,
    timeout: float,
    secret: bytes | None,
    hosts: Sequence[Sequence[int]] = (),
) -> list[socket.socket | None]:
    """Connects this worker to the others, with `hosts` to some of them. Collective.

    Args:
        workers: This process among the workers.
        addresses: The addresses of all, by rank.
        listening: The sockets of this worker.
        timeout: The most seconds that this takes.
        secret: The secret of the job, or `None`.
        hosts: The ranks of the workers of each host, for two levels.

    Returns:
        The connections by rank, `None` for this worker itself and where there is none.

    Raises:
        TimeoutError: If a worker does not come or answer in time.
        ConnectionError: If a worker has ended.
        ValueError: For a timeout that is not above 0.
    """
    deadline = wire.deadline_in(timeout)
    rank, own = workers.rank, addresses[workers.rank]
    others = others_of(rank, hosts, workers.size)
    connections: list[socket.socket | None] = [None] * workers.size
    with contextlib.ExitStack() as made:
        for other in [each for each in others if each < rank]:
            key = _key(secret, addresses[other])
            call = _Call(workers, own, addresses[other], other, deadline, key)
            connections[other] = made.enter_context(call.call()[0].connection)
        awaited = [each for each in others if each > rank]
        desk = _Desk(workers, awaited, own, deadline, _key(secret, own))
        for other, connection in desk.receive(listening).items():
            connections[other] = made.enter_context(connection)
        made.pop_all()
    return connections


class _Call(Visitor):
    """A call of another worker, which listens already."""

    def __init__(
        self,
        workers: Workers,
        own: Address,
        at: Address,
        other: int,
        deadline: wire.Deadline,
        key: bytes,
    ) -> None:
        super().__init__(
            *(b"", workers, (at.host, at.port), deadline, key),
            other=other,
            advice=_ADVICE,
            starts_later=False,
        )
        self._is_near = at.system == own.system != _NO_SYSTEM
        self._local_name = _local_name(at.token)

    def _connect(self) -> socket.socket:
        if self._is_near:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(self._deadline.patience())
                connection.connect(self._local_name)
                return connection
            except OSError:
                connection.close()
        return super()._connect()


class _Desk(Reception):
    """A worker that is called by those workers of higher rank that it has connections to."""

    def __init__(
        self,
        workers: Workers,
        awaited: Sequence[int],
        own: Address,
        deadline: wire.Deadline,
        key: bytes,
    ) -> None:
        where = wire.shown((own.host, own.port))
        super().__init__(workers, awaited, where, _ADVICE, deadline, key)

    def receive(self, listening: Listening) -> dict[int, socket.socket]:
        """Returns the connections of the workers of higher rank, by rank."""
        try:
            self._receive(listening.sockets)
            return {rank: self._taken(guest) for rank, guest in self._told.items()}
        finally:
            for connection in self._guests:
                connection.close()

    def _taken(self, guest: Guest) -> socket.socket:
        del self._guests[guest.connection]
        return guest.connection

    def _admit(self, guest: Guest, told: bytes) -> None:
        super()._admit(guest, told)
        guest.deadline = self._deadline  # it does not wait for the others here

    def _read_from(self, guest: Guest) -> None:
        if guest.content is None:
            super()._read_from(guest)
        elif _has_ended(guest.connection):
            raise self._has_gone(guest)
        else:
            self._selector.unregister(guest.connection)  # rows have come, which exchanges read


def _key(secret: bytes | None, address: Address) -> bytes:
    """Returns the key by which a worker and the one that calls it recognize each other."""
    return derived(secret or b"", b"mesh " + address.token.encode())


def _has_ended(connection: socket.socket) -> bool:
    """Returns whether a connection that can be read has nothing more, and takes nothing from it."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _listens_at(host: str) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    """Returns the address at which to listen, by the name or number of this host."""
    family, *_, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    # The name of a host may resolve, on the host itself, to its loopback interface, which other
    # hosts cannot reach. Elsewhere the network decides by which interface other workers come.
    return family, place if wire.is_loopback((host,)) else (wire.ANY[family], 0)


def _local_name(token: str) -> str:
    """Returns the name of the local socket of the worker that has a token.

    It is not a file, and goes when the process ends. Anybody can list such names, so it has a
    digest, from which nobody can compute the token.
    """
    return f"\0sok-embed.{hashlib.sha256(token.encode()).hexdigest()[:16]}"


def _system() -> str:
    """Returns a text that processes have in common that can reach each other's local sockets.

    It names the running system, and the network namespace, of which a container has its own.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read()
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        return _NO_SYSTEM
    return hashlib.sha256((boot + namespace).encode()).hexdigest()[:16]
