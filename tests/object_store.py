"""Object stores that are really there: moto's server of the S3 protocol, on the loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import s3fs
from fsspec.implementations.memory import MemoryFileSystem


@contextlib.contextmanager
def served() -> Iterator[dict[str, str]]:
    """Serves an empty store; yields the environment in which its clients find it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(server, port)
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.kill()
        server.wait()
        s3fs.S3FileSystem.clear_instance_cache()


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert server.poll() is None, "moto's server has ended"
        time.sleep(0.1)
    raise AssertionError("moto's server does not listen")


@pytest.fixture(scope="module")
def s3():
    """A client of a store; its variables are in the environment."""
    with served() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield s3fs.S3FileSystem(use_listings_cache=False)


@pytest.fixture
def bucket(s3, request):
    """The name of a bucket with nothing in it."""
    name = f"bucket-{abs(hash(request.node.name))}"
    s3.mkdir(name)
    return name


@pytest.fixture(params=["s3", "memory"])
def url(request):
    """Where there is nothing yet, in a store of each kind."""
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/runs/run7"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return "memory://runs/run7"
