"""Where worker 0 listens for the others: as few as possible of those who are not meant hear it."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from limits import HANG_S
from sharded.meeting import HOST, SECRET, call, connected, meet

from sok_embed.communicators.rendezvous import all_gather
from sok_embed.communicators.workers import Workers


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
    results = meet(
        call(0, 2, port, b"0", host="outside", local_size=1), call(1, 2, port, b"1", local_size=1)
    )
    assert results == [[b"0", b"1"]] * 2


def test_a_loopback_address_is_heard_by_no_other_interface(port: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 2, port))
        with connected(port):
            # 127.0.0.2 is another address of this host, where one who listens to all would hear.
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), HANG_S)
        assert call(1, 2, port)() == waiting.result() == [b"", b""]


def test_a_port_that_is_taken_is_named_with_what_to_set(port: int) -> None:
    with closing(socket.create_server((HOST, port))):
        with pytest.raises(
            OSError, match=f"port {port} of {HOST} to be free.*Set MASTER_ADDR and MASTER_PORT"
        ):
            call(0, 2, port)()


def test_workers_of_one_host_meet_on_the_loopback_interface_whatever_the_address(
    port: int, secret: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    # 192.0.2.0/24 is for documents (RFC 5737): no interface of this host has it.
    host, secrets = "192.0.2.1", {"secret": secret}
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call(0, 2, port, b"0", host=host, **secrets))
        with connected(port):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), HANG_S)
        assert call(1, 2, port, b"1", host=host, **secrets)() == [b"0", b"1"]
        assert waiting.result() == [b"0", b"1"]
    assert "without a secret" not in caplog.text


def test_a_worker_whose_launcher_says_less_than_that_of_worker_0_finds_it(port: int) -> None:
    # Of RANK, WORLD_SIZE and LOCAL_RANK alone the last worker concludes that all are on one host.
    last = Workers(1, 2, 1, 2, ("127.0.0.2", port), "test")
    first = Workers(0, 2, 0, 1, ("127.0.0.2", port), "test")
    results = meet(*(lambda each=each: all_gather(b"x", each, HANG_S) for each in (first, last)))
    assert results == [[b"x", b"x"]] * 2


@pytest.mark.parametrize("has_secret", [False, True])
def test_worker_0_warns_once_where_others_may_listen_without_a_secret(
    port: int, has_secret: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *args, **more: real("0.0.0.0" if host == "me" else host, *args, **more),
    )
    secret = SECRET if has_secret else None
    results = meet(
        *(call(rank, 2, port, host="me", local_size=1, secret=secret) for rank in range(2))
    )
    assert results == [[b"", b""]] * 2
    warnings = [record for record in caplog.records if "without a secret" in record.message]
    assert len(warnings) == (0 if has_secret else 1)
    for warning in warnings:
        assert f"me:{port}" in warning.message and "SOK_EMBED_SECRET" in warning.message
