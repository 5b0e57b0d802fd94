"""Connections between workers: who reaches them, and who takes part."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import forked
import pytest
from limits import HANG_S
from sharded.meeting import HOST, SECRET

from sok_embed.binding import _core
from sok_embed.communicators import connections, tcp
from sok_embed.communicators.connections import host_of, shared_mesh
from sok_embed.communicators.launchers import Workers


def listening(address: str) -> tuple[str, int]:
    """Returns host and port of a mesh's address."""
    host, port, *_ = address.split()
    return host, int(port)


def test_workers_of_one_host_listen_on_the_loopback_interface_alone() -> None:
    mesh = _core.Mesh(0, 2, host_of("10.1.2.3", everybody_is_here=True), HANG_S, b"")
    host, port = listening(mesh.address)
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
        _core.Mesh(0, 2, "no-such-host.invalid", HANG_S, b"")


def test_a_second_init_has_the_connections_of_its_own_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_made", None)
    first = {"launcher": "test", "rank": 0, "size": 1, "host": lambda: HOST, "timeout": 60.0}
    first |= {"gather": lambda own: [own], "secret": None, "meeting": "a:1"}
    made = shared_mesh(**first)
    assert shared_mesh(**first) is made
    changed = {"launcher": "other", "timeout": 50.0, "secret": SECRET, "meeting": "a:2"}
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
from sok_embed.binding import _core
mesh = _core.Mesh(0, 2, "127.0.0.1", 60, bytes.fromhex(sys.argv[1]))
print(mesh.address, flush=True)
other = sys.stdin.readline().strip()
used = max(map(int, __import__("os").listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, used + 12))
mesh.connect([mesh.address, other])
print("connected", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("secret", [b"", SECRET], ids=["no secret", "secret"])
def test_a_worker_without_descriptors_takes_the_others_in(secret: bytes) -> None:
    mesh = _core.Mesh(1, 2, HOST, 60, secret)
    with (
        subprocess.Popen(
            [sys.executable, "-c", FEW_DESCRIPTORS, secret.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as first,
        ExitStack() as held,
        ThreadPoolExecutor(1) as threads,
    ):
        assert first.stdin is not None and first.stdout is not None
        address = first.stdout.readline().strip()
        for _ in range(50):
            held.enter_context(socket.create_connection(listening(address), HANG_S))
        print(mesh.address, file=first.stdin, flush=True)
        connecting = threads.submit(mesh.connect, [address, mesh.address])
        said = first.stdout.readline()
        with suppress(BrokenPipeError):
            print(file=first.stdin, flush=True)
        assert said == "connected\n", first.stderr and first.stderr.read()
        connecting.result()
