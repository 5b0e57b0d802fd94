"""Connections between workers: who reaches them, and who takes part."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

import forked
import pytest
from limits import HANG_S
from seeds import seed_of_test
from sharded.meeting import (
    ANSWER_BYTES,
    GREETING_BYTES,
    HOST,
    PROOF_BYTES,
    SECRET,
    greeting,
    hello,
    is_closed,
    read,
    tell,
)

from sok_embed.communicators import connections, tcp
from sok_embed.communicators.connecting import Address, Listening, connect_all
from sok_embed.communicators.connections import host_of, shared_mesh
from sok_embed.communicators.workers import Workers


def worker(rank: int, size: int) -> Workers:
    return Workers(rank, size, 0, 1, None, "test")


def connected(
    rank: int, known: list[Address], listening: Listening, secret: bytes | None, timeout: float
) -> list[socket.socket | None]:
    with listening:
        return connect_all(worker(rank, len(known)), known, listening, timeout, secret)


class Job:
    """Workers in threads of this process, which listen.

    Attributes:
        listening: The sockets at which each waits.
        known: The addresses by which the workers that begin from now on call each other.
    """

    def __init__(self, size: int, secret: bytes | None, timeout: float = HANG_S) -> None:
        self._secret, self._timeout = secret, timeout
        self.listening = [Listening(worker(rank, size), HOST) for rank in range(size)]
        self.known = [each.address for each in self.listening]
        self._threads = ThreadPoolExecutor(size)
        self.begun: dict[int, Future[list[socket.socket | None]]] = {}

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for listening in self.listening:
            listening.close()
        for each in self.begun.values():
            for made in [] if each.exception() else each.result():
                if made is not None:
                    made.close()

    def begin(self, rank: int, secret: bytes | None = None) -> None:
        known, listening = list(self.known), self.listening[rank]
        secret = secret or self._secret
        self.begun[rank] = self._threads.submit(
            connected, rank, known, listening, secret, self._timeout
        )

    def assert_connected(self) -> None:
        """Has workers send each other their ranks."""
        made = {rank: each.result() for rank, each in self.begun.items()}
        for rank, of_rank in made.items():
            for other, connection in enumerate(of_rank):
                assert (connection is None) == (rank == other)
                if connection is not None:
                    connection.sendall(bytes([rank]))
        for of_rank in made.values():
            for other, connection in enumerate(of_rank):
                if connection is not None:
                    assert connection.recv(2) == bytes([other])


def visit(address: Address, draw: random.Random) -> None:
    """Calls as a stranger of some kind does, who has only the address."""
    with suppress(OSError), socket.create_connection((HOST, address.port), HANG_S) as stranger:
        kind = draw.randrange(4)
        if kind == 1:
            stranger.sendall(draw.randbytes(draw.randrange(200)))
        elif kind == 2:
            stranger.sendall(b"sok-meet" + draw.randbytes(draw.randrange(200)))
        elif kind == 3:  # an impostor of any rank
            tell(stranger, draw.randrange(4), 3, secret=draw.choice([None, SECRET[::-1]]))
            assert is_closed(stranger)


def test_workers_connect_among_strangers_of_every_kind(secret: bytes | None) -> None:
    draw = random.Random(seed_of_test())
    with Job(3, secret) as job, ThreadPoolExecutor(3) as threads:
        ends = threading.Event()

        def flood(rank: int, own: random.Random) -> None:
            while not ends.is_set():
                visit(job.known[rank], own)

        flooding = [threads.submit(flood, rank, random.Random(draw.random())) for rank in range(3)]
        try:
            for rank in (2, 1, 0):
                job.begin(rank)
            job.assert_connected()
        finally:
            ends.set()
        for each in flooding:
            each.result()


def test_connections_that_are_held_open_take_no_workers_room(secret: bytes | None) -> None:
    with Job(2, secret) as job, ExitStack() as held:
        for number in range(200):
            stranger = held.enter_context(socket.create_connection((HOST, job.known[0].port)))
            if number % 3 == 0:
                stranger.sendall(greeting(1))
        job.begin(0)
        job.begin(1)
        job.assert_connected()


@pytest.mark.parametrize("ends", [0, 3])
def test_a_worker_whose_connection_ends_before_it_is_accepted_calls_again(ends: int) -> None:
    """Messages of the workers go through this test, so worker 1 cannot use a local socket."""
    with Job(2, SECRET) as job, socket.create_server((HOST, 0)) as server:
        at = job.known[0]
        job.begin(0)
        job.known[0] = at._replace(port=server.getsockname()[1], system="-")
        job.begin(1)
        for _ in range(ends):
            server.accept()[0].close()
        came, _ = server.accept()
        with came, socket.create_connection((HOST, at.port)) as to:
            said = read(came, GREETING_BYTES)
            to.sendall(said)
            came.sendall(read(to, ANSWER_BYTES + PROOF_BYTES))
            more = read(came, 2 * PROOF_BYTES + len(hello(2, 0)))
            to.sendall(more)
            came.sendall(read(to, 20 + PROOF_BYTES))
            # Messages that were recorded are of no use, neither here nor there.
            assert job.begun[0].result() and job.begun[1].result()


def test_a_worker_is_called_by_its_own_token_alone() -> None:
    """To know the secret of the job is not enough to take the place of another worker."""
    with Job(2, SECRET, timeout=1.0) as job:
        job.begin(0)
        job.known[0] = job.known[0]._replace(token=job.known[1].token, system="-")
        job.begin(1)
        with pytest.raises(ConnectionError, match="Expected worker 0 .* with a wrong proof"):
            job.begun[1].result()
        with pytest.raises(TimeoutError, match="nothing of worker 1"):
            job.begun[0].result()


@pytest.mark.parametrize("said", [b"", b"x" * 200])
def test_an_impostor_of_who_is_called_is_an_error(said: bytes) -> None:
    with Job(2, SECRET) as job, socket.create_server((HOST, 0)) as server:
        job.known[0] = job.known[0]._replace(port=server.getsockname()[1], system="-")
        job.begin(1)
        came, _ = server.accept()
        with came:
            assert len(read(came, GREETING_BYTES)) == GREETING_BYTES
            if said:
                came.sendall(said)
                assert read(came, PROOF_BYTES) == b""  # it proves nothing to a stranger
        server.close()
        with pytest.raises(ConnectionError, match="Expected worker 0 .*(program|refused)"):
            job.begun[1].result()


def test_workers_of_different_secrets_do_not_connect_and_say_so() -> None:
    with Job(2, SECRET, timeout=1.0) as job:
        job.begin(0)
        job.begin(1, SECRET[::-1])
        with pytest.raises(ConnectionError, match="worker 0 may have another SOK_EMBED_SECRET"):
            job.begun[1].result()
        with pytest.raises(TimeoutError, match="nothing of worker 1.*SOK_EMBED_SECRET"):
            job.begun[0].result()


def test_workers_that_do_not_come_or_have_ended_are_named() -> None:
    with Job(3, None, timeout=0.3) as job:
        job.begin(0)
        with pytest.raises(TimeoutError, match="nothing of workers 1, 2"):
            job.begun[0].result()
        job.begin(1)
        with pytest.raises(ConnectionError, match="Expected worker 0 to listen .*refused"):
            job.begun[1].result()


def test_a_worker_that_ends_once_it_was_accepted_is_named() -> None:
    """Worker 0 has accepted worker 2, which finds that worker 1 has ended."""
    with Job(3, SECRET) as job:
        job.listening[1].close()
        job.begin(0)
        job.begin(2)
        with pytest.raises(ConnectionError, match="Expected worker 1 to listen .*refused"):
            job.begun[2].result()
        with pytest.raises(ConnectionError, match="worker 2 at .* has ended"):
            job.begun[0].result()


def test_a_worker_whose_name_the_others_do_not_know_is_named() -> None:
    with Job(2, SECRET, timeout=0.1) as job:
        job.known[0] = job.known[0]._replace(host="no-host.invalid", system="-")
        job.begin(1)
        with pytest.raises(TimeoutError, match=r"host of worker 0\..* set SOK_EMBED_HOST on that"):
            job.begun[1].result()


def test_a_name_that_could_be_a_number_is_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host itself it leads to the loopback interface, as in /etc/hosts of Debian."""
    known = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *args, **more: known("127.0.1.1" if host == "cafe" else host, *args, **more),
    )
    with Listening(worker(0, 2), "cafe") as listening:
        assert listening.sockets[0].getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("system", ["", "-", "another"], ids=["local", "none", "wrong"])
def test_workers_of_one_system_talk_over_local_sockets(system: str) -> None:
    with Job(2, SECRET) as job:
        if system:
            job.known[0] = job.known[0]._replace(system=system)
            # A worker that says that it is of this system, and has no local socket.
            token = secrets.token_hex(16) if system == "another" else job.known[0].token
            job.known[1] = job.known[1]._replace(system="another", token=token)
            job.listening[0].sockets.pop().close()
        job.begin(0)
        job.begin(1)
        job.assert_connected()
        (_, made) = job.begun[0].result()
        assert made is not None
        assert (made.family == socket.AF_UNIX) == (not system)


def test_what_is_no_address_is_refused() -> None:
    for content in (b"", b"a b c d e", b"host 1 token system"):
        with pytest.raises(ValueError, match="Expected the address of a worker"):
            Address.from_bytes(content)


def test_workers_of_one_host_listen_on_the_loopback_interface_alone() -> None:
    host = host_of("10.1.2.3", everybody_is_here=True)
    with Listening(worker(0, 2), host) as listening:
        host, port = listening.address[:2]
        assert host == HOST
        with socket.create_connection((host, port), HANG_S):
            pass
        # 127.0.0.2 is another address of this host, where one who listens to all would hear.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), HANG_S)


@pytest.mark.parametrize(
    ("address", "local_size", "is_here"),
    [
        *(("10.1.2.3", 2, True), ("127.0.0.1", 1, True), ("localhost", 1, True)),
        *(("::1", 1, True), ("10.1.2.3", 1, False), ("127.example.com", 1, False)),
    ],
)
def test_workers_are_of_one_host_where_the_launcher_or_the_address_says_so(
    address: str, local_size: int, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def made(launcher: str, rank: int, size: int, host: Callable[[], str], *_: object) -> None:
        host()

    monkeypatch.setattr(tcp, "shared_mesh", made)
    monkeypatch.setattr(tcp, "host_of", lambda peer, here: asked.append((peer, here)))
    workers = Workers(1, 2, 0, local_size, (address, 1), "test")
    monkeypatch.setattr(tcp, "share_cores", lambda _: None)
    tcp.TcpCommunicator(workers, HANG_S, pin_gpu=False)
    assert asked == [(address, is_here)]


def test_a_host_variable_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOK_EMBED_HOST", "no-such-host.invalid")
    with pytest.raises(ValueError, match="Received: SOK_EMBED_HOST=no-such-host.invalid"):
        host_of("10.1.2.3", everybody_is_here=True)
    with pytest.raises(ConnectionError, match=r"no-such-host\.invalid"):
        Listening(worker(0, 2), "no-such-host.invalid")


def test_a_second_init_has_the_connections_of_its_own_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_made", None)
    first = {"launcher": "test", "rank": 0, "size": 1, "host": lambda: HOST, "timeout": 60.0}
    first |= {"gather": lambda own: [own], "secret": None, "meeting": "a:1"}
    made = shared_mesh(**first)
    assert shared_mesh(**first) is made
    changed = {
        "launcher": "other",
        "timeout": 50.0,
        "secret": SECRET,
        "meeting": "a:2",
        "levels": 2,
    }
    for name, value in changed.items():
        other = shared_mesh(**first | {name: value})
        assert other is not made and other.number != made.number, name
        assert shared_mesh(**first | {name: value}) is other, name
    with monkeypatch.context() as child:
        child.setattr(connections.os, "getpid", lambda: -1)
        assert shared_mesh(**first) is not other


INTERRUPTED = """
import os, signal, sys, threading, time
import sok_embed, tensorflow as tf

def main(begun):
    if begun != "exchange":
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    sok_embed.init(timeout=600)
    communicator = sok_embed.communicators.current()
    communicator.barrier()
    if sok_embed.rank() == 1:
        print("waits", flush=True)
        time.sleep(600)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    communicator.all_reduce(tf.ones([2]), "never")

try:
    main(sys.argv[1])
except (KeyboardInterrupt, RuntimeError) as error:
    # TensorFlow makes one error of both if an op has failed meanwhile.
    assert "KeyboardInterrupt" in repr(error), error
    print("interrupted", flush=True)
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize(("begun", "rank"), [("init", 0), ("init", 1), ("exchange", 0)])
def test_a_worker_that_waits_is_interrupted(begun: str, rank: int, port: int) -> None:
    """The timeout is that of a job; the test ends long before."""
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": HOST}
    common |= {"MASTER_PORT": str(port), "TF_CPP_MIN_LOG_LEVEL": "3"}
    ranks = [rank] if begun == "init" else [0, 1]
    workers = [
        subprocess.Popen(
            forked.program(INTERRUPTED, begun),
            env={**os.environ, **common, "RANK": str(each), "LOCAL_RANK": str(each)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for each in ranks
    ]
    try:
        said, _ = workers[0].communicate(timeout=300)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert said == "interrupted\n"


# Runs worker 0 of two with so few descriptors that few connections take them all.
FEW_DESCRIPTORS = """
import resource, sys
from sok_embed.communicators.connecting import Address, Listening, connect_all
from sok_embed.communicators.workers import Workers
workers = Workers(0, 2, 0, 1, None, "test")
with Listening(workers, "127.0.0.1") as listening:
    print(listening.address.to_bytes().decode(), flush=True)
    known = [listening.address, Address.from_bytes(sys.stdin.readline().encode())]
    used = max(map(int, __import__("os").listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, used + 12))
    connect_all(workers, known, listening, 60, bytes.fromhex(sys.argv[1]) or None)
print("connected", flush=True)
sys.stdin.readline()
"""


def test_a_worker_without_descriptors_accepts_the_others(secret: bytes | None) -> None:
    listening = Listening(worker(1, 2), HOST)
    with (
        subprocess.Popen(
            [sys.executable, "-c", FEW_DESCRIPTORS, (secret or b"").hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as first,
        ExitStack() as held,
        ThreadPoolExecutor(1) as threads,
    ):
        assert first.stdin is not None and first.stdout is not None
        address = Address.from_bytes(first.stdout.readline().encode())
        for _ in range(50):
            held.enter_context(socket.create_connection((HOST, address.port), HANG_S))
        print(listening.address.to_bytes().decode(), file=first.stdin, flush=True)
        known = [address, listening.address]
        connecting = threads.submit(connected, 1, known, listening, secret, HANG_S)
        said = first.stdout.readline()
        with suppress(BrokenPipeError):
            print(file=first.stdin, flush=True)
        assert said == "connected\n", first.stderr and first.stderr.read()
        made, _ = connecting.result()
        assert made is not None
        made.close()
