"""Workers meet over TCP: all get the contents of all, or all hear in time why not."""

from __future__ import annotations

import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from limits import HANG_S
from sharded.meeting import (
    GREETING_BYTES,
    HOST,
    PROOF_BYTES,
    SECRET,
    TAKEN_IN,
    call,
    connected,
    hello,
    meet,
    proof,
    read,
    reply,
    tell,
)

from sok_embed.communicators.rendezvous import all_gather
from sok_embed.communicators.workers import Workers


@pytest.mark.parametrize("size", [2, 3, 8])
def test_each_worker_gets_the_contents_of_all_by_rank(
    port: int, size: int, secret: bytes | None
) -> None:
    contents = [bytes([rank]) * rank for rank in range(size)]  # that of worker 0 is empty
    ranks = reversed(range(size))
    results = meet(*(call(rank, size, port, contents[rank], secret=secret) for rank in ranks))
    assert results == [contents] * size


def test_contents_may_be_larger_than_what_a_connection_holds(
    port: int, secret: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sok_embed.communicators.rendezvous_wire.MAX_CONTENT", 8 << 20)
    contents = [bytes(5 << 20), b"\1" * (7 << 20), b""]
    results = meet(*(call(rank, 3, port, contents[rank], secret=secret) for rank in range(3)))
    assert results == [contents] * 3


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
        started.wait(HANG_S)
        threading.Event().wait(0.2)
        return call(late, 2, port, b"late")()

    expected = [b"late", b"early"] if late == 0 else [b"early", b"late"]
    assert meet(first, second) == [expected] * 2


def test_a_name_is_looked_up(port: int) -> None:
    results = meet(*(call(rank, 2, port, b"x", host="localhost") for rank in range(2)))
    assert results == [[b"x", b"x"]] * 2


def test_workers_that_never_come_are_named_on_all_others(port: int, secret: bytes | None) -> None:
    results = meet(*(call(rank, 5, port, timeout=1.0, secret=secret) for rank in (0, 1, 3)))
    for error in results:
        assert isinstance(error, TimeoutError)
        assert f"all 5 workers at {HOST}:{port}" in str(error)
        assert "nothing of workers 2, 4. " in str(error)


def test_a_worker_that_came_early_hears_who_is_missing_before_it_gives_up(port: int) -> None:
    results = meet(call(0, 3, port, secret=SECRET), call(2, 3, port, timeout=1.0, secret=SECRET))
    for error in results:
        assert isinstance(error, TimeoutError) and "nothing of worker 1. " in str(error)


def test_without_a_secret_a_worker_that_gives_up_ends_itself_alone(port: int) -> None:
    host, early, late, other = (
        call(0, 3, port, b"0"),
        call(2, 3, port, b"early", timeout=0.5),
        call(2, 3, port, b"late"),
        call(1, 3, port, b"1"),
    )
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(host)
        with pytest.raises(TimeoutError, match="nothing of worker 1. "):
            early()
        again = threads.submit(late)
        assert other() == again.result() == waiting.result() == [b"0", b"1", b"late"]


def test_worker_0_that_never_comes_is_missed_in_time(port: int) -> None:
    with pytest.raises(TimeoutError, match=rf"worker 0 to listen at {HOST}:{port} within 0.2 sec"):
        call(1, 2, port, timeout=0.2)()


def test_a_host_that_nobody_knows_is_named(port: int) -> None:
    for rank in range(2):
        with pytest.raises(TimeoutError, match="'no-host.invalid' to be the host of worker 0"):
            call(rank, 2, port, timeout=0.1, host="no-host.invalid", local_size=1)()


MISFITS = [
    ({"rank": 1, "size": 3}, r"3 workers to have a rank of its own.*rank 1 from \S+ and 127"),
    ({"rank": 1, "size": 4}, "know of 3 workers.*test. Received: worker 1 at .* knows of 4"),
    ({"rank": 1, "size": 2}, "know of 3 workers.*test. Received: worker 1 at .* knows of 2"),
    ({"rank": 2, "size": 3, "launcher": "srun"}, "started by test.*worker 2 at .* otherwise"),
]


@pytest.mark.parametrize(("second", "message"), MISFITS)
def test_of_workers_of_a_job_that_contradict_each_other_all_hear(
    port: int, second: dict[str, object], message: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 3, port, secret=SECRET))
        with connected(port) as first:
            transcript = tell(first, 1, 3, secret=SECRET)
            assert reply(first, transcript, SECRET) == TAKEN_IN
            with pytest.raises(ValueError, match=message) as on_second:
                call(port=port, secret=SECRET, **second)()  # type: ignore[arg-type]
            assert reply(first, transcript, SECRET) == (3, str(on_second.value))
            assert str(waiting.exception()) == str(on_second.value)


@pytest.mark.parametrize(("second", "message"), MISFITS)
def test_without_a_secret_a_worker_that_contradicts_the_others_hears_of_it_alone(
    port: int, second: dict[str, object], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 3, port, b"0"))
        with connected(port) as first:
            tell(first, 1, 3, b"1")
            assert reply(first) == TAKEN_IN
            with pytest.raises(ValueError, match=message):
                call(port=port, **second)()  # type: ignore[arg-type]
            assert call(2, 3, port, b"2")() == waiting.result() == [b"0", b"1", b"2"]
    assert caplog.text.count("has ended a connection from 127.0.0.1:") == 1


@pytest.mark.parametrize(
    ("rank", "more", "expected"),
    [
        (1, {"version": 3}, "one version of sok_embed, whose protocol here is 2. .*: 3"),
        (3, {}, "a rank of its own. Received: rank 3"),
        (2**32 - 1, {}, "a rank of its own. Received: rank 4294967295"),
        (0, {}, "a rank of its own. Received: rank 0 from this process and 127"),
    ],
    ids=["version", "rank 3", "no rank", "rank 0"],
)
def test_who_knows_the_secret_and_is_not_a_worker_of_this_job_ends_it(
    port: int, rank: int, more: dict[str, int], expected: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 3, port, secret=SECRET))
        with connected(port) as wrong:
            transcript = tell(wrong, rank, 3, secret=SECRET, **more)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=expected) as error:
                waiting.result()
            assert reply(wrong, transcript, SECRET) == (3, str(error.value))


@pytest.mark.parametrize("content", [b"", b"told"])
def test_a_worker_that_ends_before_all_have_met_is_named(port: int, content: bytes) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 4, port, secret=SECRET))
        with connected(port) as other:
            transcript = tell(other, 2, 4, secret=SECRET)
            assert reply(other, transcript, SECRET) == TAKEN_IN
            with connected(port) as ending:
                said = tell(ending, 1, 4, content, secret=SECRET)
                assert reply(ending, said, SECRET) == TAKEN_IN
            with pytest.raises(ConnectionError, match="worker 1 at .* has ended") as error:
                waiting.result()
            assert reply(other, transcript, SECRET) == (2, str(error.value))


def answer_of(
    spoken_to: bytes, version: int = 2, secret: bytes | None = None, magic: bytes = b"sok-meet"
) -> bytes:
    """Returns what a worker 0 answers to a greeting."""
    answer = struct.pack("!8sI32s", magic, version, b"n" * 32)
    return answer + proof(secret, b"worker 0", spoken_to + answer)


REPLIED = struct.pack("!8sIII", b"sok-meet", 2, 255, 0) + bytes(PROOF_BYTES)


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (REPLIED, "worker 0 at .* to go on.*the end of the connection"),
        (REPLIED + b"sok-meet", "worker 0 at .* to go on.*the end of the connection"),
        (
            REPLIED + struct.pack("!8sIIIQ", b"sok-meet", 2, 0, 2, 5) + b"half",
            "the end of the connection",
        ),
        (
            REPLIED + struct.pack("!8sIII", b"sok-meet", 2, 2, 4) + b"text" + b"x" * 32,
            "changed on its way",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Received: the answer of another program"),
        (struct.pack("!8sIII", b"sok-meet", 2, 0, 2), "Received: the answer of another program"),
        (
            REPLIED + struct.pack("!8sIII", b"sok-meet", 2, 0, 3),
            "Received: the answer of another program",
        ),
        (
            REPLIED + struct.pack("!8sIII", b"sok-meet", 2, 9, 3),
            "Received: the answer of another program",
        ),
    ],
    ids=[
        *("nothing", "magic", "half a content", "a wrong proof", "another protocol"),
        *("contents at once", "another size", "no kind"),
    ],
)
def test_worker_0_that_ends_or_is_another_program_is_named(
    port: int, replies: bytes, expected: str
) -> None:
    with closing(socket.create_server((HOST, port))) as server, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(1, 2, port))
        connection, _ = server.accept()
        with connection:
            connection.sendall(answer_of(read(connection, GREETING_BYTES)) + replies)
            read(connection, 2 * PROOF_BYTES + len(hello(2, 0)))
        with pytest.raises(ConnectionError, match=expected):
            waiting.result()


def test_another_program_is_named_at_once(port: int) -> None:
    with closing(socket.create_server((HOST, port))) as server, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(1, 2, port))
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(ConnectionError, match="Received: the answer of another program"):
                waiting.result()


@pytest.mark.parametrize("answer", [b"", b"sok-meet"], ids=["nothing", "half of an answer"])
def test_a_worker_whose_connection_ends_before_it_is_taken_in_comes_again(
    port: int, answer: bytes, secret: bytes | None
) -> None:
    with ThreadPoolExecutor(1) as threads:
        with closing(socket.create_server((HOST, port))) as server:
            waiting = threads.submit(call(1, 2, port, b"1", secret=secret))
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)
        assert call(0, 2, port, b"0", secret=secret)() == waiting.result() == [b"0", b"1"]


@pytest.mark.parametrize("of_host", [None, SECRET], ids=["worker 0 has none", "worker 0 has one"])
def test_a_secret_that_one_side_has_alone_is_named(
    port: int, of_host: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    of_other = SECRET if of_host is None else None
    results = meet(
        call(0, 2, port, timeout=1.0, secret=of_host),
        call(1, 2, port, timeout=1.0, secret=of_other),
    )
    assert isinstance(results[0], TimeoutError) and "SOK_EMBED_SECRET" in str(results[0])
    expected = ValueError if of_other is None else TimeoutError
    assert isinstance(results[1], expected) and "SOK_EMBED_SECRET" in str(results[1])
    assert "SOK_EMBED_SECRET" in caplog.text


def test_different_secrets_are_named_on_both_sides(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    other = bytes(reversed(SECRET))
    results = meet(
        call(0, 2, port, timeout=1.0, secret=SECRET), call(1, 2, port, timeout=1.0, secret=other)
    )
    for error in results:
        assert isinstance(error, TimeoutError) and "SOK_EMBED_SECRET" in str(error)
    for line in ("Worker 1 looks for worker 0", "Worker 0 waits for the other workers"):
        assert caplog.text.count(line) == 1
    for secret in (SECRET, other):
        assert secret.hex() not in caplog.text and repr(secret) not in caplog.text


def test_a_program_that_does_not_answer_is_left_in_time(port: int, secret: bytes | None) -> None:
    with closing(socket.create_server((HOST, port))):
        with pytest.raises(TimeoutError, match="within 0.2 seconds. Received: no answer"):
            call(1, 2, port, timeout=0.2, secret=secret)()


def test_versions_that_differ_are_named_by_a_worker(port: int, secret: bytes | None) -> None:
    with closing(socket.create_server((HOST, port))) as server, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(1, 2, port, secret=secret))
        connection, _ = server.accept()
        with connection:
            greeted = read(connection, GREETING_BYTES)
            connection.sendall(answer_of(greeted, 7, secret))
            with pytest.raises(ValueError, match="whose protocol here is 2. Received: 7 from work"):
                waiting.result()


@pytest.mark.parametrize(
    ("content", "address", "timeout", "message"),
    [
        (bytes((64 << 10) + 1), (HOST, 1), 1.0, "at most 65536 bytes.*Received: 65537"),
        (b"", None, 1.0, "an address.*workers of horovodrun, without an address"),
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
