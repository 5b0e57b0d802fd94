"""The part of a worker that listens for others: see `sok_embed.communicators.rendezvous`."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Sequence

from sok_embed.communicators import rendezvous_wire as wire
from sok_embed.communicators.rendezvous_guests import (
    SLOTS,
    Ended,
    Guest,
    Refusals,
    Refused,
    dispensable,
)
from sok_embed.communicators.rendezvous_listener import listen
from sok_embed.communicators.secret import SECRET_VARIABLE
from sok_embed.communicators.workers import Workers

# The most missing ranks that a message names.
_NAMED_RANKS = 16
# The most connections that are accepted before existing ones are read from.
_AT_ONCE = 16
# The errors of the system when it has no resources for another connection. Worker 0 then waits so
# many seconds.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_WAIT = 0.05
# The place of a guest that has come by a local socket.
LOCAL = ("this host", 0)


class Reception:
    """A worker that listens until the workers of some ranks have come.

    Only a guest that has proved that it knows the secret can end the meeting. Without a secret no
    guest can: one that does not fit is refused, and the worker goes on until its time is over.
    """

    def __init__(
        self,
        workers: Workers,
        awaited: Sequence[int],
        where: str,
        advice: str,
        deadline: wire.Deadline,
        secret: bytes | None,
    ) -> None:
        self._workers = workers
        self._awaited = awaited
        self._where = where
        self._advice = advice
        self._deadline = deadline
        self._secret = secret
        self._name = f"worker {workers.rank}"
        self._guests: dict[socket.socket, Guest] = {}  # the oldest first
        self._told: dict[int, Guest] = {}  # by rank, the guests that have sent their contents
        self._gave_up: set[int] = (
            set()
        )  # ranks of guests that had come and did not wait long enough
        self._refusals = Refusals(workers.rank)
        self._selector: selectors.BaseSelector

    def _receive(self, listeners: Sequence[socket.socket]) -> None:
        """Waits until all awaited workers have sent their contents.

        Raises:
            OSError: If the system has no room for that.
            TimeoutError: If a worker does not come in time.
            ConnectionError: If a worker of this job has ended.
            ValueError: If a worker of this job describes the job differently.
        """
        with self._new_selector() as self._selector:
            for listener in listeners:
                self._selector.register(listener, selectors.EVENT_READ)
            while len(self._told) < len(self._awaited):
                if not self._deadline.left():
                    raise self._missing()
                waits = [guest.deadline.left() for guest in self._guests.values()]
                ready = {key.fileobj for key, _ in self._selector.select(self._first(waits))}
                # Guests that have sent something come first, since new guests may take their slots.
                for guest in [guest for at, guest in self._guests.items() if at in ready]:
                    self._read_from(guest)
                for listener in listeners:
                    if listener in ready:
                        self._accept(listener)
                for guest in [each for each in self._guests.values() if not each.deadline.left()]:
                    self._expire(guest)

    def _new_selector(self) -> selectors.BaseSelector:
        try:
            return selectors.DefaultSelector()
        except OSError as error:
            raise OSError(
                f"Expected {self._name} to wait for others at {self._where}. Received: {error}."
            ) from None

    def _first(self, waits: Sequence[float]) -> float:
        return min(self._deadline.left(), *waits) if waits else self._deadline.left()

    # --- connections ----------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        """Accepts connections, some at a time, and makes room for them."""
        for _ in range(_AT_ONCE):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Other errors come from a connection that has ended again.
                if error.errno in _EXHAUSTED:
                    self._make_room(f"{self._name} had no room for more ({error.strerror})")
                return
            # A local socket has no address: it is of a process of this host.
            guest = Guest(connection, address or LOCAL, self._answer_greeting)
            try:
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ)
            except OSError:
                connection.close()
                continue
            self._guests[connection] = guest
            if sum(each.is_half for each in self._guests.values()) > SLOTS + self._workers.size:
                self._make_room("many later ones had not said who they are, either")

    def _make_room(self, reason: str) -> None:
        guest = dispensable(list(self._guests.values()))
        if guest is not None:
            self._drop(guest, reason)
        else:
            self._refusals.note("", "somebody", reason)
            time.sleep(min(_EXHAUSTED_WAIT, self._deadline.left()))

    def _read_from(self, guest: Guest) -> None:
        """Reads a guest's bytes, and takes its next step.

        Raises:
            ConnectionError: If a worker of this job has ended.
            ValueError: If a worker of this job describes the job differently.
        """
        try:
            guest.listen()
        except Refused as refused:
            self._drop(guest, str(refused))
        except Ended:
            if guest.content is not None and guest.is_proven:
                raise self._has_gone(guest) from None
            if guest.content is not None:
                self._drop(
                    guest, "it had come as a worker and ended", f"Its rank was {guest.rank}."
                )
            elif guest.transcript:
                self._drop(
                    guest,
                    f"it ended when it had the answer of {self._name}, as a worker does that has "
                    "waited too long for it and calls again, or one with another "
                    f"{SECRET_VARIABLE}",
                )
            else:
                self._drop(guest, "it ended before it had said anything")

    def _has_gone(self, guest: Guest) -> ConnectionError:
        return ConnectionError(
            "Expected all workers to go on until they have met. Received: worker "
            f"{guest.rank} at {guest.where} has ended. See what it printed last."
        )

    def _expire(self, guest: Guest) -> None:
        """Ends the connection of a guest whose time is over.

        Raises:
            TimeoutError: If it is a worker of this job, which learns which workers are missing
                before it gives up.
        """
        if guest.content is None:
            self._drop(guest, "it did not say in time who it is")
            return
        missing = self._missing()
        if guest.is_proven:
            raise missing
        self._send_error(guest, missing)
        self._gave_up.add(guest.rank)
        self._drop(guest, "it would not wait for the others any longer")

    def _drop(self, guest: Guest, reason: str, more: str = "") -> None:
        self._refusals.note(guest.host, guest.where, reason, more)
        self._selector.unregister(guest.connection)
        guest.connection.close()
        del self._guests[guest.connection]
        if self._told.get(guest.rank) is guest:
            del self._told[guest.rank]

    # --- messages of guests, step by step ---------------------------------------------------------

    def _answer_greeting(self, guest: Guest, greeting: bytes) -> None:
        """Answers a greeting with a proof, from which a guest without the secret learns nothing."""
        _, guest.version, guest.rank, _ = wire.GREETING.unpack(greeting)
        answer = wire.ANSWER.pack(wire.MAGIC, wire.VERSION, wire.nonce())
        guest.transcript = greeting + answer
        guest.send(answer + wire.proof(self._secret, wire.HOST, guest.transcript))
        if self._secret is None and guest.version != wire.VERSION:
            # The answer has sent it our version.
            raise Refused("it has another version of sok_embed")
        guest.wait_for(wire.PROOF_BYTES, self._check_proof)

    def _check_proof(self, guest: Guest, proof: bytes) -> None:
        if not wire.is_proof(proof, wire.proof(self._secret, wire.WORKER, guest.transcript)):
            raise Refused(
                f"it did not prove that it knows the secret of the job, {SECRET_VARIABLE}"
                if self._secret is not None
                else f"it knows a secret, and {self._name} has no {SECRET_VARIABLE}"
            )
        guest.is_proven = self._secret is not None
        if guest.version != wire.VERSION:
            raise ValueError(
                f"Expected all workers to have one version of sok_embed, whose protocol here is "
                f"{wire.VERSION}. Received: {guest.version} from the process at {guest.where}."
            )
        guest.wait_for(wire.HELLO.size, self._read_hello)

    def _read_hello(self, guest: Guest, hello: bytes) -> None:
        """Reads a guest's description of the job, and the length of its content."""
        length = wire.HELLO.unpack(hello)[-1]
        if length > wire.MAX_CONTENT:
            raise Refused("its content is longer than a worker's may be")
        guest.hello = hello
        guest.wait_for(length + wire.PROOF_BYTES, self._admit)

    def _admit(self, guest: Guest, told: bytes) -> None:
        """Reads the content of a guest, which makes it one of the workers."""
        content, proof = told[: -wire.PROOF_BYTES], told[-wire.PROOF_BYTES :]
        signed = guest.hello + content
        expected = wire.proof(self._secret, wire.CONTENT, guest.transcript, signed)
        if not wire.is_proof(proof, expected):
            raise Refused("its content was changed on its way")
        self._check_job(guest)
        guest.content = content
        self._told[guest.rank] = guest
        # A worker that has waited long learns which workers are missing before it gives up.
        patience = wire.HELLO.unpack(guest.hello)[2] / 1000
        guest.deadline = wire.Deadline(patience - min(1.0, patience / 5))
        guest.wait_for(0, self._answer_greeting)  # the guest sends nothing from now on
        guest.send(self._reply(guest, wire.TAKEN_IN, 0))

    def _check_job(self, guest: Guest) -> None:
        """Checks that a guest describes the same job, and has a rank that no other worker has."""
        size, fingerprint, _, _ = wire.HELLO.unpack(guest.hello)
        ours, rank, where = self._workers, guest.rank, guest.where
        if size != ours.size:
            self._refuse_worker(
                guest,
                "it knows of another number of workers",
                f"Expected all workers to know of {ours.size} workers, as {self._name} does by "
                f"{ours.launcher}. Received: worker {rank} at {where} knows of {size}. If it is of "
                f"another job, that one meets at the same port. {wire.ANOTHER_PORT}",
            )
        if fingerprint != wire.fingerprint(ours):
            self._refuse_worker(
                guest,
                f"it was started by another launcher than {self._name}",
                f"Expected all workers to be started by {ours.launcher}, as {self._name} was. "
                f"Received: worker {rank} at {where}, which was started otherwise. If it is of "
                f"another job, that one meets at the same port. {wire.ANOTHER_PORT}",
            )
        if rank not in self._awaited or rank in self._told:
            others = ["this process"] if rank == ours.rank else []
            others += [self._told[rank].where] if rank in self._told else []
            self._refuse_worker(
                guest,
                "another worker has its rank, or nobody can have it",
                f"Expected each of {size} workers to have a rank of its own. Received: rank {rank} "
                f"from {' and '.join([*others, where])}. Start the workers with a launcher that "
                "numbers them, such as `sok-embed run`.",
            )

    def _refuse_worker(self, guest: Guest, reason: str, text: str) -> None:
        """Raises if a guest that does not fit belongs to the job.

        Otherwise refuses only the guest.
        """
        error = ValueError(text)
        if guest.is_proven:
            raise error
        self._send_error(guest, error)
        raise Refused(reason)

    # --- messages to guests -----------------------------------------------------------------------

    def _missing(self) -> TimeoutError:
        absent = [rank for rank in self._awaited if rank not in self._told]
        missing = [rank for rank in absent if rank not in self._gave_up] or absent
        return TimeoutError(
            f"Expected all {self._workers.size} workers at {self._where} within "
            f"{self._deadline.seconds:g} seconds. Received: nothing of {_ranks(missing)}. "
            f"{self._refusals.summary()}See what was printed there last, whether the address leads "
            f"from there to {self._name}, and whether the timeout is enough for workers that start "
            f"late. {self._advice}"
        )

    def _reply(self, guest: Guest, kind: int, number: int, body: bytes = b"") -> bytes:
        reply = wire.REPLY.pack(wire.MAGIC, wire.VERSION, kind, number) + body
        return reply + wire.proof(self._secret, wire.REPLIED, guest.transcript, reply)

    def _send_error(self, guest: Guest, error: Exception) -> None:
        kind = next(i for i, known in enumerate(wire.ERRORS, 1) if isinstance(error, known))
        text = str(error).encode()[: wire.MAX_TEXT]
        try:
            guest.send(self._reply(guest, kind, len(text), text))
        except Ended:
            pass  # the worker has ended, maybe for the same reason


class Host(Reception):
    """Worker 0, which listens until all others have come, and then sends them all contents."""

    def __init__(
        self,
        workers: Workers,
        address: tuple[str, int],
        deadline: wire.Deadline,
        secret: bytes | None,
    ) -> None:
        awaited = range(1, workers.size)
        super().__init__(workers, awaited, wire.shown(address), wire.ANOTHER_PORT, deadline, secret)
        self._address = address

    def gather(self, content: bytes) -> list[bytes]:
        """Does on worker 0 what `all_gather` says."""
        try:
            try:
                has_secret = self._secret is not None
                with listen(self._workers, self._address, self._deadline, has_secret) as listener:
                    if wire.is_loopback(listener.getsockname()):
                        self._where += ", which no other host reaches,"
                    self._receive([listener])
                # From here on no guest can come: a worker that has its answer and calls again waits
                # until worker 0 listens again.
            except wire.ERRORS as error:
                self._send_error_to_all(error)
                raise
            others = [self._told[rank] for rank in self._awaited]
            contents = [content, *(guest.content or b"" for guest in others)]
            self._send_contents(contents, others)
            return contents
        finally:
            for connection in self._guests:
                connection.close()

    def _send_contents(self, contents: Sequence[bytes], others: Sequence[Guest]) -> None:
        body = b"".join(wire.LENGTH.pack(len(content)) + content for content in contents)
        failed = []
        for guest in others:
            try:
                guest.connection.settimeout(self._deadline.patience())
                guest.connection.sendall(self._reply(guest, wire.CONTENTS, len(contents), body))
            except OSError:
                failed.append(guest.rank)
        if failed:
            raise ConnectionError(
                "Expected all workers to go on until they have met. Received: "
                f"{_ranks(failed)} took no answer. See what was printed there last."
            )

    def _send_error_to_all(self, error: Exception) -> None:
        """Sends the error to all workers that have come."""
        for guest in self._guests.values():
            if not guest.is_half:
                self._send_error(guest, error)


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED_RANKS]))
    more = len(ranks) - _NAMED_RANKS
    return f"worker{'s'[: len(ranks) > 1]} {named}" + (f" and {more} more" if more > 0 else "")
