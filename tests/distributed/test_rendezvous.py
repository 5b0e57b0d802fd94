"""Workers meet over TCP: all get the contents of all, or all hear in time why not."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import pytest

from sok_embed.communicators.launchers import Workers
from sok_embed.communicators.rendezvous import all_gather

HOST = "127.0.0.1"
# Seconds that no test needs, so that one which waits for nothing fails by its error.
ENOUGH = 20.0


def free_port() -> int:
    with closing(socket.create_server((HOST, 0))) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


def worker(rank: int, size: int, port: int, launcher: str = "test", host: str = HOST) -> Workers:
    return Workers(rank, size, rank, size, (host, port), launcher)


def meet(*calls: Callable[[], list[bytes]]) -> list[list[bytes] | BaseException]:
    """Runs each call in a thread, and returns what each returned or raised."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures: list[Future[list[bytes]]] = [threads.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def call(
    rank: int, size: int, port: int, content: bytes = b"", timeout: float = ENOUGH, **more: str
) -> Callable[[], list[bytes]]:
    return lambda: all_gather(content, worker(rank, size, port, **more), timeout)


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection to worker 0, which may not listen yet."""
    while True:
        try:
            connection = socket.create_connection((HOST, port), ENOUGH)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.01)
    with connection:
        yield connection


def hello(rank: int, size: int, length: int, version: int = 1, wait_ms: int = 2**31) -> bytes:
    """The beginning of a worker's message, as the module's description has it."""
    fingerprint = hashlib.sha256(f"{size} test".encode()).digest()[:16]
    return struct.pack(
        "!8sIII16sIQ", b"sok-meet", version, rank, size, fingerprint, wait_ms, length
    )


@pytest.mark.parametrize("size", [2, 3, 8])
def test_each_worker_gets_the_contents_of_all_by_rank(port: int, size: int) -> None:
    contents = [bytes([rank]) * rank for rank in range(size)]  # that of worker 0 is empty
    results = meet(*(call(rank, size, port, contents[rank]) for rank in reversed(range(size))))
    assert results == [contents] * size


def test_contents_may_be_larger_than_what_a_connection_holds(port: int) -> None:
    contents = [bytes(5 << 20), b"\1" * (7 << 20), b""]
    assert meet(*(call(rank, 3, port, contents[rank]) for rank in range(3))) == [contents] * 3


def test_workers_meet_again_at_the_same_address(port: int) -> None:
    def several(rank: int) -> list[bytes]:
        met = [call(rank, 3, port, bytes([rank, turn]))() for turn in range(20)]
        return [b"".join(contents) for contents in met]

    expected = [bytes([0, turn, 1, turn, 2, turn]) for turn in range(20)]
    assert meet(*(lambda rank=rank: several(rank) for rank in range(3))) == [expected] * 3


@pytest.mark.parametrize("late", [0, 1])
def test_a_worker_may_start_late(port: int, late: int) -> None:
    started = threading.Event()
    early = call(1 - late, 2, port, b"early")

    def first() -> list[bytes]:
        started.set()
        return early()

    def second() -> list[bytes]:
        started.wait(ENOUGH)
        threading.Event().wait(0.2)
        return call(late, 2, port, b"late")()

    expected = [b"late", b"early"] if late == 0 else [b"early", b"late"]
    assert meet(first, second) == [expected] * 2


def test_a_name_is_looked_up(port: int) -> None:
    results = meet(*(call(rank, 2, port, b"x", host="localhost") for rank in range(2)))
    assert results == [[b"x", b"x"]] * 2


def test_worker_0_is_heard_where_an_address_is_translated(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    # 192.0.2.0/24 is for documents (RFC 5737), and no interface of this host has it.
    real = socket.getaddrinfo
    places = {"outside": "192.0.2.1"}
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *args, **more: real(places.get(host, host), *args, **more),
    )
    results = meet(call(0, 2, port, b"0", host="outside"), call(1, 2, port, b"1"))
    assert results == [[b"0", b"1"]] * 2


def test_a_loopback_address_is_heard_by_no_other_interface(port: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 2, port))
        with connected(port):
            # 127.0.0.2 is another address of this host, where one who listens to all would hear.
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), ENOUGH)
        assert call(1, 2, port)() == waiting.result() == [b"", b""]


def test_a_port_that_is_taken_is_named_with_what_to_set(port: int) -> None:
    with closing(socket.create_server((HOST, port))):
        with pytest.raises(
            OSError, match=f"port {port} of {HOST} to be free.*Set MASTER_ADDR and MASTER_PORT"
        ):
            call(0, 2, port)()


def test_workers_that_never_come_are_named_on_all_others(port: int) -> None:
    results = meet(*(call(rank, 5, port, timeout=1.0) for rank in (0, 1, 3)))
    for error in results:
        assert isinstance(error, TimeoutError)
        assert f"all 5 workers at {HOST}:{port}" in str(error)
        assert "nothing of workers 2, 4. " in str(error)


def test_a_worker_that_came_early_hears_who_is_missing_before_it_gives_up(port: int) -> None:
    results = meet(call(0, 3, port), call(2, 3, port, timeout=1.0))
    for error in results:
        assert isinstance(error, TimeoutError) and "nothing of worker 1. " in str(error)


def test_worker_0_that_never_comes_is_missed_in_time(port: int) -> None:
    with pytest.raises(TimeoutError, match=rf"worker 0 to listen at {HOST}:{port} within 0.2 sec"):
        call(1, 2, port, timeout=0.2)()


def test_a_host_that_nobody_knows_is_named(port: int) -> None:
    for rank in range(2):
        with pytest.raises(TimeoutError, match="'no-host.invalid' to be the host of worker 0"):
            call(rank, 2, port, timeout=0.1, host="no-host.invalid")()


def is_closed(connection: socket.socket) -> bool:
    """Waits until worker 0 sends something or ends the connection. Returns whether it ended."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def reply(connection: socket.socket) -> tuple[int, str]:
    """The kind of an error that worker 0 answers with, and its text."""
    with connection.makefile("rb") as file:
        magic, version, kind, length = struct.unpack("!8sIII", file.read(20))
        assert (magic, version) == (b"sok-meet", 1)
        return kind, file.read(length).decode()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"rank": 1, "size": 3}, r"3 workers to have a rank of its own.*rank 1 from \S+ and 127"),
        ({"rank": 1, "size": 4}, "know of 3 workers.*test. Received: worker 1 at .* knows of 4"),
        ({"rank": 1, "size": 2}, "know of 3 workers.*test. Received: worker 1 at .* knows of 2"),
        ({"rank": 2, "size": 3, "launcher": "srun"}, "started by test.*worker 2 at .* otherwise"),
    ],
)
def test_of_workers_that_contradict_each_other_all_hear(
    port: int, second: dict[str, object], message: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 3, port))
        with connected(port) as first:
            first.sendall(hello(1, 3, 0))
            with pytest.raises(ValueError, match=message) as on_second:
                call(port=port, **second)()  # type: ignore[arg-type]
            assert reply(first) == (3, str(on_second.value))
            assert str(waiting.exception()) == str(on_second.value)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (hello(1, 3, 0, version=2), "one version of sok_embed, whose protocol here is 1. .*: 2"),
        (hello(3, 3, 0), "a rank of its own. Received: rank 3"),
        (hello(0, 3, 0), "a rank of its own. Received: rank 0 from this process and 127"),
        (hello(1, 3, 2**63), "at most 16777216 bytes of each worker"),
    ],
    ids=["version", "rank 3", "rank 0", "length"],
)
def test_a_message_that_no_worker_of_this_job_sends_ends_the_job(
    port: int, message: bytes, expected: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 3, port))
        with connected(port) as wrong:
            wrong.sendall(message)
            with pytest.raises(ValueError, match=expected) as error:
                waiting.result()
            assert reply(wrong) == (3, str(error.value))


@pytest.mark.parametrize(
    "nonsense",
    [b"GET / HTTP/1.1\r\n\r\n", b"sok-mood" + bytes(100), b"", b"sok-"],
    ids=["another protocol", "another magic", "nothing", "too little"],
)
def test_a_stranger_is_ignored(port: int, nonsense: bytes) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 2, port, b"0"))
        with connected(port) as stranger, connected(port) as silent:
            stranger.sendall(nonsense)
            with suppress(OSError):  # worker 0 may have ended the connection already
                stranger.shutdown(socket.SHUT_WR)
            assert is_closed(stranger)
            assert call(1, 2, port, b"1")() == waiting.result() == [b"0", b"1"]
            assert is_closed(silent)


@pytest.mark.parametrize(
    "sent", [hello(1, 4, 5) + b"half", hello(1, 4, 4) + b"told"], ids=["telling", "waiting"]
)
def test_a_worker_that_ends_before_all_have_met_is_named(port: int, sent: bytes) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 4, port))
        with connected(port) as other:
            other.sendall(hello(2, 4, 0))
            with connected(port) as ending:
                ending.sendall(sent)
            with pytest.raises(ConnectionError, match="worker 1 at .* has ended") as error:
                waiting.result()
            assert reply(other) == (2, str(error.value))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", "worker 0 at .* to go on.*the end of the connection"),
        (b"sok-meet", "worker 0 at .* to go on.*the end of the connection"),
        (struct.pack("!8sIIIQ", b"sok-meet", 1, 0, 2, 5) + b"half", "the end of the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Received: the answer of another program"),
        (struct.pack("!8sIII", b"sok-meet", 1, 0, 3), "Received: the answer of another program"),
        (struct.pack("!8sIII", b"sok-meet", 1, 9, 3), "Received: the answer of another program"),
    ],
    ids=["nothing", "magic", "half a content", "another protocol", "another size", "no kind"],
)
def test_worker_0_that_ends_or_is_another_program_is_named(
    port: int, answer: bytes, expected: str
) -> None:
    with closing(socket.create_server((HOST, port))) as server, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(1, 2, port))
        connection, _ = server.accept()
        with connection:
            connection.sendall(answer)
            while len(connection.recv(100)) == 100:
                pass
        with pytest.raises(ConnectionError, match=expected):
            waiting.result()


def test_a_program_that_does_not_answer_is_left_in_time(port: int) -> None:
    with closing(socket.create_server((HOST, port))):
        with pytest.raises(TimeoutError, match="an answer of worker 0 .* within 0.2 seconds"):
            call(1, 2, port, timeout=0.2)()


@pytest.mark.parametrize(
    ("content", "address", "timeout", "message"),
    [
        (bytes((16 << 20) + 1), (HOST, 1), 1.0, "at most 16777216 bytes.*Received: 16777217"),
        (b"", None, 1.0, "an address.*those of horovodrun, without one"),
        (b"", (HOST, 1), 0.0, "a timeout above 0 seconds. Received: 0"),
        (b"", (HOST, 1), float("nan"), "a timeout above 0 seconds. Received: nan"),
    ],
    ids=["content", "address", "no time", "not a number"],
)
def test_what_can_not_be_is_refused(
    content: bytes, address: tuple[str, int] | None, timeout: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        all_gather(content, Workers(1, 2, 1, 2, address, "horovodrun"), timeout)


def test_a_worker_alone_needs_nobody() -> None:
    assert all_gather(b"x", Workers(0, 1, 0, 1, (HOST, 1), "test"), 1.0) == [b"x"]
