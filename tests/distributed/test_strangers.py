"""Strangers where workers meet: whoever they are, with a secret of the job the workers meet.

Without one strangers that do not fit are sent away too; what one can do that fits is in the guide.
"""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from limits import HANG_S
from seeds import seed_of_test
from sharded.meeting import (
    ANSWER_BYTES,
    GREETING_BYTES,
    HOST,
    PROOF_BYTES,
    SECRET,
    TAKEN_IN,
    call,
    connected,
    free_port,
    greet,
    greeting,
    hello,
    is_closed,
    meet,
    proof,
    read,
    reply,
    tell,
)

from sok_embed.communicators import rendezvous_guests

SIZE = 3
MET = [b"of 0", b"of 1", b"of 2"]


@contextmanager
def meeting(port: int, secret: bytes | None, timeout: float = HANG_S) -> Iterator[None]:
    """Worker 0 waits in the block; after it the others come, and all have to meet."""
    with ThreadPoolExecutor(SIZE) as threads:
        first = threads.submit(call(0, SIZE, port, MET[0], secret=secret, timeout=timeout))
        yield
        others: list[Future[list[bytes]]] = [
            threads.submit(call(rank, SIZE, port, MET[rank], secret=secret)) for rank in (1, 2)
        ]
        for worker in (first, *others):
            assert worker.result() == MET


def seeded() -> random.Random:
    seed = seed_of_test()
    return random.Random(seed)


@pytest.mark.parametrize(
    "nonsense",
    [b"GET / HTTP/1.1\r\n\r\n", b"sok-mood" + bytes(100), b"", b"sok-", b"sok-meet" + bytes(9)],
    ids=["another protocol", "another magic", "nothing", "too little", "half a greeting"],
)
def test_nonsense_is_ignored(port: int, secret: bytes | None, nonsense: bytes) -> None:
    with meeting(port, secret), connected(port) as stranger:
        stranger.sendall(nonsense)
        with suppress(OSError):  # worker 0 may have ended the connection already
            stranger.shutdown(socket.SHUT_WR)
        assert is_closed(stranger)


def changed(draw: random.Random, message: bytes) -> bytes:
    """Changes some bytes of a message, leaves out a part, adds more, or makes up all of it."""
    kind = draw.randrange(4)
    if kind == 0:
        return draw.randbytes(draw.randrange(300))
    if kind == 1:
        return message[: draw.randrange(len(message))]
    if kind == 2:
        return message + draw.randbytes(draw.randrange(1, 300))
    some = bytearray(message)
    for _ in range(draw.randrange(1, 5)):
        some[draw.randrange(len(some))] ^= draw.randrange(1, 256)
    return bytes(some)


def test_random_bytes_at_every_step_are_ignored(port: int, secret: bytes | None) -> None:
    draw = seeded()
    with meeting(port, secret), ExitStack() as held:
        for _ in range(200):
            stranger = held.enter_context(connected(port))
            # The size is wrong: without a secret one that fits is a worker.
            said = hello(draw.choice([0, SIZE + 1, 2**32 - 1]), draw.choice([0, 5, 2**64 - 1]))
            with suppress(OSError):
                if draw.random() < 0.5:
                    stranger.sendall(changed(draw, greeting(draw.randrange(5)) + bytes(32) + said))
                    continue
                spoken = greet(stranger, greeting(draw.randrange(5)))
                right = proof(None, b"another worker", spoken.transcript)
                stranger.sendall(changed(draw, right + said + bytes(40)))


def test_a_content_that_nobody_has_room_for_is_not_read(port: int, secret: bytes | None) -> None:
    with meeting(port, secret), connected(port) as stranger:
        tell(stranger, 1, SIZE, length=2**63, secret=secret)
        assert is_closed(stranger)


@pytest.mark.parametrize("step", ["nothing", "half a greeting", "a greeting"])
def test_connections_held_open_take_nobodys_room(
    port: int, secret: bytes | None, step: str
) -> None:
    said = {"nothing": b"", "half a greeting": greeting(1)[:30], "a greeting": greeting(1)}[step]
    with ExitStack() as held, meeting(port, secret):
        for _ in range(3 * rendezvous_guests.SLOTS):
            held.enter_context(connected(port)).sendall(said)


def test_a_flood_that_goes_on_keeps_nobody_out(port: int, secret: bytes | None) -> None:
    ends = threading.Event()

    def flood() -> None:
        while not ends.is_set():
            with ExitStack() as held, suppress(OSError):
                for _ in range(50):
                    held.enter_context(socket.create_connection((HOST, port), HANG_S))

    with ThreadPoolExecutor(2) as threads:
        try:
            with meeting(port, secret):
                with connected(port):  # worker 0 listens
                    flooding = [threads.submit(flood) for _ in range(2)]
        finally:
            ends.set()
        for each in flooding:
            each.result()


def test_a_guest_that_says_nothing_is_sent_away_in_time(
    port: int, secret: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_guests, "HALF_SECONDS", 0.2)
    with meeting(port, secret), connected(port) as silent, connected(port) as greeted:
        greet(greeted, greeting(1))
        assert is_closed(silent) and is_closed(greeted)


# Runs worker 0 of two with so few descriptors that few connections take them all.
FEW_DESCRIPTORS = """
import resource, sys
from sok_embed.communicators.workers import Workers
from sok_embed.communicators.rendezvous import all_gather
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
workers = Workers(0, 2, 0, 2, ("127.0.0.1", int(sys.argv[1])), "test")
print(all_gather(b"of 0", workers, 60, bytes.fromhex(sys.argv[2]) or None))
"""


def test_worker_0_without_descriptors_goes_on(port: int, secret: bytes | None) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", FEW_DESCRIPTORS, str(port), (secret or b"").hex()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as first,
        ExitStack() as held,
    ):
        for _ in range(100):
            held.enter_context(connected(port))
        assert call(1, 2, port, b"of 1", secret=secret)() == [b"of 0", b"of 1"]
        out, errors = first.communicate(timeout=HANG_S)
    assert out == "[b'of 0', b'of 1']\n", errors
    assert "Too many open files" in errors and "Traceback" not in errors


# --- with a secret --------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(-1, SIZE + 1))
def test_an_impostor_of_a_rank_is_told_nothing(port: int, rank: int) -> None:
    with meeting(port, SECRET):
        for guess in (None, bytes(32), SECRET[::-1]):
            with connected(port) as impostor:
                transcript = tell(impostor, rank % 2**32, SIZE, b"mine", secret=guess)
                # Nothing has come but a random number and a proof that is another each time.
                assert len(transcript) == GREETING_BYTES + ANSWER_BYTES
                assert is_closed(impostor)


def test_a_worker_tells_an_impostor_of_worker_0_nothing(port: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        with closing(socket.create_server((HOST, port))) as server:
            waiting = threads.submit(call(1, 2, port, b"content", secret=SECRET))
            answer = struct.pack("!8sI32s", b"sok-meet", 2, bytes(32))
            for kind in range(5):
                impostor, _ = server.accept()
                with impostor:
                    said = read(impostor, GREETING_BYTES)
                    assert said[:16] == greeting(1)[:16] and len(said) == GREETING_BYTES
                    impostor.sendall(
                        [
                            b"HTTP/1.1 400 Bad Request\r\n\r\n",
                            answer + bytes(PROOF_BYTES),
                            answer + proof(SECRET[::-1], b"worker 0", said + answer),
                            # What the worker itself would say of this meeting, said back to it.
                            answer + said[16:],
                            said + said,
                        ][kind]
                    )
                    assert read(impostor, 1) == b""
        assert call(0, 2, port, b"0", secret=SECRET)() == waiting.result() == [b"0", b"content"]


def test_a_proof_said_back_is_not_a_proof(port: int) -> None:
    with meeting(port, SECRET), connected(port) as mirror:
        spoken = greet(mirror, greeting(1))
        said = hello(SIZE, 0)
        mirror.sendall(spoken.proof_of_host + said + spoken.proof_of_host)
        assert is_closed(mirror)


@contextmanager
def led_through(
    port: int, between: int, change: Callable[[bytes], bytes] = lambda said: said
) -> Iterator[list[bytes]]:
    """Hands on what one worker says to worker 0, and what comes back; lists the former."""
    said: list[bytes] = []

    def hand_on(server: socket.socket) -> None:
        came, _ = server.accept()
        with came, connected(port) as to:
            said.append(read(came, GREETING_BYTES))
            to.sendall(said[0])
            came.sendall(read(to, ANSWER_BYTES + PROOF_BYTES))
            said.append(read(came, 2 * PROOF_BYTES + len(hello(2, 0)) + len(b"content")))
            to.sendall(change(said[1]))
            with suppress(OSError):
                while chunk := to.recv(1000):
                    came.sendall(chunk)

    with closing(socket.create_server((HOST, between))) as server, ThreadPoolExecutor(1) as threads:
        handing = threads.submit(hand_on, server)
        yield said
        handing.result()


def test_what_was_said_at_one_meeting_is_of_no_use_at_another(port: int) -> None:
    between = free_port()
    with led_through(port, between) as said:
        results = meet(
            call(0, 2, port, b"0", secret=SECRET),
            call(1, 2, between, b"content", secret=SECRET),
        )
        assert results == [[b"0", b"content"]] * 2
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(call(0, 2, port, b"0", secret=SECRET))
        for _ in range(3):
            with connected(port) as replay:
                replay.sendall(said[0] + said[1])
                read(replay, ANSWER_BYTES + PROOF_BYTES)
                assert is_closed(replay)
        assert call(1, 2, port, b"new", secret=SECRET)() == first.result() == [b"0", b"new"]


@pytest.mark.parametrize("at", [32, 37, 50, 60, 66, 75], ids=lambda at: f"byte {at}")
def test_what_was_changed_on_its_way_is_refused(port: int, at: int) -> None:
    between = free_port()

    def change(said: bytes) -> bytes:
        return said[:at] + bytes([said[at] ^ 1]) + said[at + 1 :]

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(call(0, 2, port, b"0", secret=SECRET))
        with led_through(port, between, change):
            changed_one = threads.submit(call(1, 2, between, b"content", 0.5, secret=SECRET))
            assert isinstance(changed_one.exception(), TimeoutError)
        assert call(1, 2, port, b"content", secret=SECRET)() == first.result() == [b"0", b"content"]


# --- without one ----------------------------------------------------------------------------------


def test_without_a_secret_a_hello_of_no_patience_ends_nothing(port: int) -> None:
    with meeting(port, None), connected(port) as hasty:
        transcript = tell(hasty, 1, SIZE, wait_ms=1)
        assert reply(hasty, transcript) == TAKEN_IN
        kind, text = reply(hasty, transcript)
        assert kind == 1 and "nothing of workers 1, 2" not in text
        assert is_closed(hasty)


def test_without_a_secret_a_stranger_that_leaves_gives_its_rank_back(port: int) -> None:
    with meeting(port, None):
        with connected(port) as leaving:
            transcript = tell(leaving, 1, SIZE, b"mine")
            assert reply(leaving, transcript) == TAKEN_IN
        with connected(port) as other:  # worker 0 comes to it when it has seen the end of the first
            greet(other, greeting(1))


def test_without_a_secret_a_stranger_can_take_a_workers_place(port: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(call(0, 2, port, b"0"))
        with connected(port) as stranger:
            transcript = tell(stranger, 1, 2, b"mine")
            assert reply(stranger, transcript) == TAKEN_IN
            assert first.result() == [b"0", b"mine"]


# --- what is logged -------------------------------------------------------------------------------


def test_strangers_are_logged_once_for_each_host_and_reason(
    port: int, secret: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    with meeting(port, secret):
        for number in range(200):
            # All addresses of 127.0.0.0/8 are this host's.
            source = (f"127.0.1.{1 + number % 40}", 0)
            with connected(port):
                pass
            with socket.create_connection((HOST, port), HANG_S, source) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert is_closed(stranger)
    lines = [line for line in caplog.messages if "has ended a connection" in line]
    assert len(lines) == len(set(lines))
    assert sum("not the greeting" in line for line in lines) == 16
    assert sum("said anything" in line for line in lines) == 1


def test_who_never_comes_is_named_with_those_who_came_instead(
    port: int, secret: bytes | None
) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(call(0, 2, port, timeout=1.0, secret=secret))
        for _ in range(3):
            with connected(port) as stranger:
                stranger.sendall(b"nonsense")
                assert is_closed(stranger)
        with pytest.raises(TimeoutError, match="3 times: what it sent is not the greeting of a w"):
            first.result()


def test_room_is_made_by_the_host_that_takes_most_of_it() -> None:
    def guest(host: str, is_proven: bool = False) -> rendezvous_guests.Guest:
        return rendezvous_guests.Guest(
            socket.socket(), (host, 1), lambda *_: None, is_proven=is_proven
        )

    one, proven = guest("10.0.0.1"), guest("10.0.0.2", is_proven=True)
    many = [guest("10.0.0.2") for _ in range(3)]
    assert rendezvous_guests.dispensable([one, proven, *many]) is many[0]
    assert rendezvous_guests.dispensable([many[2], one]) is many[2]
    assert rendezvous_guests.dispensable([proven]) is None
    for each in (one, proven, *many):
        each.connection.close()
