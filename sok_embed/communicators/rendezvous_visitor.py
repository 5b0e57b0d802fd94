"""The part of a worker that looks for another one: see `sok_embed.communicators.rendezvous`."""

from __future__ import annotations

import logging
import socket
import struct
import time
from typing import NoReturn

from sok_embed.communicators import rendezvous_wire as wire
from sok_embed.communicators.secret import HOW_TO_SET, SECRET_VARIABLE
from sok_embed.communicators.workers import Workers

# Seconds for one of several addresses of a worker, since one of them may never answer.
_LONGEST_TRY = 5.0
# Seconds for an answer to a greeting, which a worker that listens gives at once.
_LONGEST_ANSWER = 10.0
# Every answer begins with magic and version.
_HEAD = struct.Struct("!8sI")

_log = logging.getLogger("sok_embed")


class _TryAgain(Exception):
    """This connection did not lead to the other worker, but another one may."""


class _NotThere(_TryAgain):
    """Nobody listens, or another process does: a worker that listens already has ended."""


class _Ended(Exception):
    """The other side has ended a connection; the text says why."""


class Visitor:
    """A worker that looks for another one, which may start later, and sends it the content.

    Args:
        secret: The secret of the job. With one, no answer of another process ends the search.
        other: The rank of the other worker.
        starts_later: True if the other worker may not listen yet. If not, an address where it does
            not listen is an error at once.
    """

    def __init__(
        self,
        content: bytes,
        workers: Workers,
        address: tuple[str, int],
        deadline: wire.Deadline,
        secret: bytes | None,
        other: int = 0,
        advice: str = wire.ANOTHER_PORT,
        starts_later: bool = True,
    ) -> None:
        self._content = content
        self._workers = workers
        self._address = address
        self._where = wire.shown(address)
        self._deadline = deadline
        self._secret = secret
        self._name = f"worker {other}"
        self._advice = advice
        self._starts_later = starts_later
        self._warned = ""

    def gather(self) -> list[bytes]:
        """Does on other workers what `all_gather` says."""
        reader, transcript = self.call()
        with reader.connection:
            return self._reply(reader, transcript, is_taken_in=True)

    def call(self) -> tuple[Reader, bytes]:
        """Returns the connection once the other worker has accepted this one.

        It comes with greeting and answer.

        Raises:
            TimeoutError: If the other worker does not answer in time.
            ConnectionError: If another program is there.
            ValueError: If the other worker is of another version or job.
        """
        wait = wire.FIRST_WAIT
        while True:
            try:
                connection = self._connect()
                try:
                    return self._introduce(connection)
                except BaseException:
                    connection.close()
                    raise
            except _TryAgain as again:
                problem = str(again)
                is_over = isinstance(again, _NotThere) and not self._starts_later
            if is_over:
                raise ConnectionError(
                    f"Expected {self._name} to listen at {self._where}. Received: {problem}. "
                    f"{self._advice}"
                )
            if not self._deadline.left():
                if self._warned not in ("", problem):
                    problem = f"{self._warned}; and last {problem}"
                raise TimeoutError(
                    f"Expected {self._name} to listen at {self._where} within "
                    f"{self._deadline.seconds:g} seconds. Received: {problem}. See what "
                    f"{self._name} printed last, and whether this host reaches it there. "
                    f"{self._advice}"
                )
            time.sleep(min(wait, self._deadline.left()))
            wait = min(2 * wait, wire.LONGEST_WAIT)

    def _connect(self) -> socket.socket:
        places = wire.look_up(self._address, self._deadline, self._name, self._advice)
        if self._workers.on_one_host and not wire.is_loopback(self._address):
            # Worker 0 listens there if its launcher has told it that all workers are on one host.
            places.insert(0, (socket.AF_INET, (wire.LOOPBACK, self._address[1])))
        problem: object = "no address"
        for family, place in places:
            try:
                connection = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                problem = error
                continue
            try:
                connection.settimeout(min(self._deadline.patience(), _LONGEST_TRY))
                connection.connect(place)
                # If no process listens at a port for outgoing connections, the system may connect a
                # socket with itself.
                if connection.getsockname() != connection.getpeername():
                    return connection
                problem = "no process listens there"
            except OSError as error:
                problem = error
            connection.close()
        raise _TryAgain(problem) if isinstance(problem, TimeoutError) else _NotThere(problem)

    def _introduce(self, connection: socket.socket) -> tuple[Reader, bytes]:
        """Sends the content, and waits until the other worker has accepted this one."""
        transcript = self._exchange_greetings(connection)
        reader = Reader(connection, self._deadline)
        workers = self._workers
        told = wire.HELLO.pack(
            *(workers.size, wire.fingerprint(workers)),
            *(int(self._deadline.left() * 1000), len(self._content)),
        )
        told += self._content
        proof = wire.proof(self._secret, wire.WORKER, transcript)
        signature = wire.proof(self._secret, wire.CONTENT, transcript, told)
        reader.send(proof + told + signature)
        self._reply(reader, transcript, is_taken_in=False)
        return reader, transcript

    def _exchange_greetings(self, connection: socket.socket) -> bytes:
        """Makes sure that the other worker is at the other end. Returns greeting and answer.

        Raises:
            _TryAgain: If that is not certain.
            ConnectionError: Without a secret, if another program is there.
            ValueError: If it has another version, or a secret, and this worker none.
        """
        seconds = min(self._deadline.patience(), _LONGEST_ANSWER)
        reader = Reader(connection, wire.Deadline(seconds))
        greeting = wire.GREETING.pack(wire.MAGIC, wire.VERSION, self._workers.rank, wire.nonce())
        reader.send(greeting)
        try:
            head = reader.read(_HEAD.size)
            magic, version = _HEAD.unpack(head)
            if magic != wire.MAGIC:
                self._refuse_another_program()
            answer = head + reader.read(wire.ANSWER.size - _HEAD.size)
            proof = reader.read(wire.PROOF_BYTES)
        except TimeoutError:
            raise _TryAgain(
                f"no answer within {seconds:g} seconds, though a program listens there, which may "
                "not be a worker"
            ) from None
        except _Ended as ended:
            raise _TryAgain(f"the end of the connection: {ended}") from None
        if not wire.is_proof(proof, wire.proof(self._secret, wire.HOST, greeting + answer)):
            self._refuse_proof(proof)
        if version != wire.VERSION:
            reader.send(wire.proof(self._secret, wire.WORKER, greeting + answer))
            raise ValueError(
                "Expected all workers to have one version of sok_embed, whose protocol here is "
                f"{wire.VERSION}. Received: {version} from {self._name} at {self._where}."
            )
        return greeting + answer

    def _refuse_proof(self, proof: bytes) -> NoReturn:
        """Raises for an answer whose proof is not one of this job."""
        if self._secret is None:
            raise ValueError(
                f"Expected {self._name} at {self._where} to have no secret, as this worker has "
                f"none. Received: an answer that proves one. {HOW_TO_SET}"
            )
        what = "without a proof" if proof == wire.NO_PROOF else "with a wrong proof"
        self._keep_looking(
            f"an answer {what} of the job's secret: {self._name} may have another "
            f"{SECRET_VARIABLE} "
            "or none, or another program listens there"
        )

    def _refuse_another_program(self) -> NoReturn:
        if self._secret is not None:
            self._keep_looking("the answer of another program")
        raise ConnectionError(
            f"Expected {self._name} at {self._where}. Received: the answer of another program. "
            f"{self._advice}"
        )

    def _keep_looking(self, problem: str) -> NoReturn:
        """Logs a problem once, and goes on to look for the other worker."""
        if not self._starts_later:
            raise _NotThere(problem)
        if problem != self._warned:
            self._warned = problem
            _log.warning(
                "Worker %d looks for %s at %s, and received %s. It tries again until its timeout.",
                *(self._workers.rank, self._name, self._where, problem),
            )
        raise _TryAgain(problem)

    def _reply(self, reader: Reader, transcript: bytes, is_taken_in: bool) -> list[bytes]:
        """Returns the contents of all workers; nothing for the reply that this worker is accepted.

        Raises:
            TimeoutError: If the reply does not come in time.
            ConnectionError: If it is not a reply of the other worker, or the connection ends.
            Exception: The error in the reply, of a class in `wire.ERRORS`.
        """
        try:
            return self._read_reply(reader, transcript, is_taken_in)
        except _Ended as ended:
            if not is_taken_in:
                # The other worker may have had no room for this one among many strangers.
                raise _TryAgain(f"the end of the connection: {ended}") from None
            raise ConnectionError(
                f"Expected {self._name} at {self._where} to go on until all workers have met. "
                f"Received: the end of the connection: {ended}. See what {self._name} printed last."
            ) from None
        except TimeoutError as error:
            if error.args:
                raise  # a reply
            raise TimeoutError(
                f"Expected a reply of {self._name} at {self._where} within "
                f"{self._deadline.seconds:g} seconds. Received: no reply, though a program listens "
                f"there. {self._name.capitalize()} may wait for others with a longer timeout, so "
                f"look for those workers; or another program has that port. {self._advice}"
            ) from None

    def _read_reply(self, reader: Reader, transcript: bytes, is_taken_in: bool) -> list[bytes]:
        """Reads a reply; raises `_Ended`, a TimeoutError without a text, or the error in it."""
        reader.signed.clear()
        magic, version, kind, number = wire.REPLY.unpack(reader.read(wire.REPLY.size))
        contents, text = [], None
        if (magic, version) != (wire.MAGIC, wire.VERSION):
            self._refuse_another_program()
        if 0 < kind <= len(wire.ERRORS) and number <= wire.MAX_TEXT:
            text = reader.read(number)
        elif is_taken_in and kind == wire.CONTENTS and number == self._workers.size:
            contents = [reader.read_content() for _ in range(number)]
        elif is_taken_in or kind != wire.TAKEN_IN:
            self._refuse_another_program()
        expected = wire.proof(self._secret, wire.REPLIED, transcript, bytes(reader.signed))
        if not wire.is_proof(reader.read(wire.PROOF_BYTES), expected):
            raise ConnectionError(
                f"Expected the reply of {self._name} at {self._where}. Received: a reply that was "
                f"changed on its way. Check the network between this host and that of {self._name}."
            )
        if text is not None:
            raise wire.ERRORS[kind - 1](text.decode(errors="replace"))
        return contents


class Reader:
    """Reads what the other side sends.

    Attributes:
        connection: The connection.
        signed: The bytes that were read since `signed` was last cleared.
    """

    def __init__(self, connection: socket.socket, deadline: wire.Deadline) -> None:
        self.connection = connection
        self._deadline = deadline
        self.signed = bytearray()

    def send(self, message: bytes) -> None:
        """Sends a message.

        If the other side has stopped listening, its reason may still be read.
        """
        try:
            self.connection.settimeout(self._deadline.patience())
            self.connection.sendall(message)
        except OSError:
            pass

    def read_content(self) -> bytes:
        """Returns bytes that come after their number, at most 64 KiB."""
        (length,) = wire.LENGTH.unpack(self.read(wire.LENGTH.size))
        return self.read(min(length, wire.MAX_CONTENT))

    def read(self, count: int) -> bytes:
        """Returns so many bytes.

        Raises:
            TimeoutError: Without a text, if they do not come in time.
            _Ended: If the connection ends before.
        """
        received = bytearray()
        try:
            while len(received) < count:
                self.connection.settimeout(self._deadline.patience())
                chunk = self.connection.recv(min(wire.CHUNK, count - len(received)))
                if not chunk:
                    raise _Ended("it was closed")
                received += chunk
        except TimeoutError:
            raise TimeoutError from None
        except OSError as error:
            raise _Ended(error) from None
        self.signed += received
        return bytes(received)
