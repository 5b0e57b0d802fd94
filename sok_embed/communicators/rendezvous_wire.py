"""Defines the messages, proofs, times and addresses of workers that meet."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import struct
import time
from typing import Any

from sok_embed.communicators.workers import Workers

MAGIC = b"sok-meet"
VERSION = 2
# Greetings and answers have the same form in every version from 2 on, so that two versions can find
# out that they differ.
GREETING = struct.Struct("!8sII32s")  # magic, version, rank, nonce
ANSWER = struct.Struct("!8sI32s")  # magic, version, nonce; then a proof
HELLO = struct.Struct("!I16sIQ")  # number of workers, fingerprint, patience, length of the content
REPLY = struct.Struct("!8sIII")  # magic, version, kind, contents or bytes of text
LENGTH = struct.Struct("!Q")
PROOF_BYTES = NONCE_BYTES = 32
MAX_CONTENT = 64 << 10  # bytes
MAX_TEXT = 16 << 10  # bytes
CHUNK = 64 << 10  # bytes; allocations are no larger than the bytes that a peer has sent
# The kinds of replies: contents, the errors in their order, and that a worker has been taken in.
CONTENTS, TAKEN_IN = 0, 255
ERRORS: tuple[type[Exception], ...] = (TimeoutError, ConnectionError, ValueError)
ANOTHER_PORT = (
    "Set MASTER_ADDR and MASTER_PORT, alike for all workers, to the host of worker 0 and a free "
    "port there."
)
# Seconds between two tries to reach another worker: the first wait, and the longest.
FIRST_WAIT, LONGEST_WAIT = 0.02, 0.5
# Seconds; system calls that wait do not accept larger numbers.
_LONGEST_TIMEOUT = 1e6
# The roles of the process that was called and of its caller, which prove that they know the secret,
# and the kinds of signed bytes.
HOST, WORKER, CONTENT, REPLIED = b"worker 0", b"another worker", b"content", b"reply"
NO_PROOF = bytes(PROOF_BYTES)


class Deadline:
    """A time until which something must be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns how many seconds are left, from 0 on."""
        return max(0.0, self._end - time.monotonic())

    def patience(self) -> float:
        """Returns the same as a timeout of a socket, for which 0 would mean not to wait."""
        return max(0.001, self.left())


def deadline_in(timeout: float) -> Deadline:
    """Returns the end of a time that a user has set, in seconds.

    Raises:
        ValueError: For one that is not above 0.
    """
    if not timeout > 0:
        raise ValueError(f"Expected a timeout above 0 seconds. Received: {timeout}.")
    return Deadline(min(timeout, _LONGEST_TIMEOUT))


def proof(secret: bytes | None, role: bytes, transcript: bytes, signed: bytes = b"") -> bytes:
    """Returns 32 bytes that cannot be computed without the secret.

    Args:
        secret: The secret of the job; without one the proof is zeros.
        role: The role of the process that proves or signs, so that a proof cannot be sent back to
            its sender.
        transcript: The greeting and the answer: both versions, the rank, and a random number of
            each side, so that a proof of one meeting is of no use in another.
        signed: The bytes that the proof confirms.
    """
    if secret is None:
        return NO_PROOF
    # All but `signed` have a known length, or end with a zero.
    return hmac.digest(secret, role + b"\0" + transcript + signed, "sha256")


def is_proof(received: bytes, expected: bytes) -> bool:
    """Compares two proofs in a time that does not depend on them."""
    return hmac.compare_digest(received, expected)


def nonce() -> bytes:
    """Returns a random number that is used once."""
    return secrets.token_bytes(NONCE_BYTES)


def fingerprint(workers: Workers) -> bytes:
    """Returns 16 bytes that are equal for all workers of a job."""
    return hashlib.sha256(f"{workers.size} {workers.launcher}".encode()).digest()[:16]


# A listener at one of these receives from all interfaces.
ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
LOOPBACK = "127.0.0.1"


def look_up(
    address: tuple[str, int], deadline: Deadline, name: str, advice: str
) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Returns the addresses of a host, which has a name that may become known after a while.

    Raises:
        TimeoutError: If nobody knows the name in time.
    """
    wait = FIRST_WAIT
    while True:
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
            return [(family, place) for family, *_, place in found if family in ANY]
        except (OSError, UnicodeError) as error:
            if not deadline.left():
                raise TimeoutError(
                    f"Expected {address[0]!r} to be the host of {name}. Received: {error}. {advice}"
                ) from None
        time.sleep(min(wait, deadline.left()))
        wait = min(2 * wait, LONGEST_WAIT)


def is_loopback(place: tuple[Any, ...]) -> bool:
    """Returns whether only this host reaches an address, whose host is a number or a name."""
    try:
        return place[0] == "localhost" or ipaddress.ip_address(place[0]).is_loopback
    except ValueError:
        return False


def shown(address: tuple[Any, ...]) -> str:
    """Returns an address for messages."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
