"""Hostile requests, and clients that hang up or never end a request, harm no others."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest
from attack import GOOD, HOSTILE, V1, attacked, request, with_value
from limits import HANG_S
from served_folder import Server, assert_answers, expected_of, instances_of, make_model

from sok_embed.serving import export

MANY = int(os.environ.get("SOK_TEST_MANY", "3000"))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Returns a model, and the folder of its export."""
    path = tmp_path_factory.mktemp("served")
    model = make_model()
    export(model, path)
    return model, path


@pytest.fixture(scope="module")
def server(served):
    """Returns a server of the export."""
    server = Server(served[1])
    yield server
    server.close()


def test_good_requests_are_answered_beside_hostile_ones(server):
    _, _, failed, wrong = asyncio.run(attacked(server.address, MANY, rate=1000))
    assert not failed and not wrong, (failed, wrong.most_common(5))
    assert server.process.poll() is None
    assert not [line for line in server.log if "Traceback" in line or "has failed" in line]
    assert server.metric("sok_embed_waiting_examples") == 0


def test_a_request_that_the_model_refuses_fails_alone(served, server):
    model, _ = served
    good = [instances_of(seed, 1 + seed % 4) for seed in range(60)]
    bad = [{**GOOD, "place": 100}]
    with ThreadPoolExecutor(24) as pool:
        mixed = [each for given in good for each in (given, bad)]
        answers = list(pool.map(server.predict, mixed))
    for given, (status, answer) in zip(mixed, answers, strict=True):
        if given is bad:
            assert status == 400 and "expected keys in [0, 100)" in answer["error"], answer
        else:
            assert status == 200, answer
            assert_answers(answer["predictions"], expected_of(model, given))


def connection(address, data):
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(data)
    return client


def test_a_request_that_never_comes_as_a_whole_is_ended(served):
    server = Server(served[1])
    try:
        data = request(V1, with_value())
        halves = [b"", b"P", data[:20], data[:-1], data + data[:50]]
        begun = time.monotonic()
        waiting = [connection(server.address, each) for each in halves * 40]
        assert server.predict([GOOD])[0] == 200
        for client in waiting:
            client.settimeout(HANG_S)
            with pytest.raises(ConnectionError):
                while client.recv(1 << 16):
                    pass
                raise ConnectionError
        assert 15 < time.monotonic() - begun < 60
        assert server.predict([GOOD])[0] == 200
    finally:
        server.close()


def test_the_oldest_half_request_goes_when_there_are_too_many(served):
    server = Server(served[1], descriptors=600)
    try:
        waiting = [connection(server.address, b"POST") for _ in range(400)]
        for _ in range(20):
            assert server.predict([GOOD])[0] == 200
        waiting[0].settimeout(HANG_S)
        with pytest.raises(ConnectionError):
            if not waiting[0].recv(1):
                raise ConnectionError
        assert server.process.poll() is None
    finally:
        server.close()


def is_closed(client, seconds):
    """Returns whether a server closes a connection within a time."""
    client.settimeout(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if not client.recv(1 << 16):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.long
def test_no_connection_stays_for_ever(served):
    server = Server(served[1])
    try:
        get = b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n"
        late = b"POST /no HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n"
        clients = []
        for first, then in ((get, b"\r\n"), (late, b"x"), (get, b"")):
            client = connection(server.address, first)
            assert client.recv(1 << 16)
            client.sendall(then)
            clients.append(client)
        for client in clients:
            assert is_closed(client, 120)
    finally:
        server.close()


@pytest.mark.long
@pytest.mark.parametrize("ends", [False, True])
def test_a_client_that_does_not_read_its_answers_is_left_behind(served, ends):
    server = Server(served[1])
    try:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = server.address.rpartition(":")
        client.connect((host, int(port)))
        # An answer of many megabytes.
        body = json.dumps({"instances": [{**GOOD, "items": [1] * 300} for _ in range(800)]})
        headers = b"connection: close\r\n" if ends else b""
        data = request(V1, body.encode(), headers)
        client.sendall(data if ends else data * 3)
        server.wait_for(lambda: server.metric("sok_embed_batch_examples_sum") >= 800)
        for _ in range(45):
            assert server.predict([GOOD])[0] == 200
            time.sleep(1)
        # What lies in the buffers of the system is all that comes.
        client.settimeout(HANG_S)
        with pytest.raises(ConnectionError):
            while client.recv(1 << 20):
                pass
            raise ConnectionError
        server.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        assert server.process.wait(HANG_S) == 0
        assert time.monotonic() - begun < 15
    finally:
        server.close()


@pytest.mark.long
def test_a_client_that_reads_slowly_gets_all(served):
    server = Server(served[1])
    try:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = server.address.rpartition(":")
        client.connect((host, int(port)))
        body = json.dumps({"instances": [{**GOOD, "items": [1] * 300} for _ in range(800)]})
        client.sendall(request(V1, body.encode()))
        got = b""
        while b"\r\n\r\n" not in got:
            got += client.recv(1 << 16)
        head, _, rest = got.partition(b"\r\n\r\n")
        (length,) = re.findall(rb"content-length: (\d+)", head)
        assert int(length) > 1 << 22
        part = int(length) // 100
        read = len(rest)
        while read < int(length):
            got = client.recv(part)
            assert got
            read += len(got)
            time.sleep(len(got) / part)
        assert read == int(length)
    finally:
        server.close()


def test_a_client_that_offers_http_2_gets_its_answer(server):
    offer = b"connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    for cut in (0, 300):
        data = request(V1, with_value(), offer)
        client = connection(server.address, data[:cut] if cut else data)
        if cut:
            time.sleep(0.05)
            client.sendall(data[cut:])
        client.settimeout(HANG_S)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        client.close()


def test_a_head_without_end_is_refused(server):
    client = connection(server.address, b"GET / HTTP/1.1\r\n")
    with pytest.raises(ConnectionError):
        for _ in range(2000):
            client.sendall(b"x: " + b"y" * 1000 + b"\r\n")
            time.sleep(0.001)
    client.close()


def test_several_threads_answer_all(served):
    model, path = served
    server = Server(path, "--threads", "3")
    try:
        requests = [instances_of(seed, 1 + seed % 4) for seed in range(300)]
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(server.predict, requests))
        for given, (status, answer) in zip(requests, answers, strict=True):
            assert status == 200
            assert_answers(answer["predictions"], expected_of(model, given))
        assert not [line for line in server.log if "Traceback" in line]
    finally:
        server.close()


def test_each_request_that_has_been_read_is_answered_at_the_end(served):
    server = Server(served[1], "--max-batch", "1000", "--max-waiting", "100000")
    try:
        data = request(V1, json.dumps({"instances": [GOOD] * 1000}).encode())
        clients = [connection(server.address, data) for _ in range(40)]

        def are_read():
            # In this order no example is counted twice.
            answered = server.metric("sok_embed_batch_examples_sum")
            return answered + server.metric("sok_embed_waiting_examples") >= 39_000

        server.wait_for(are_read)  # the others of the 40,000 are in a batch
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        for client in clients:
            client.settimeout(HANG_S)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert server.process.wait(HANG_S) == 0
    finally:
        server.close()


def test_what_is_over_the_limits_is_refused(served):
    server = Server(served[1], "--max-bytes", "3000", "--max-waiting", "8", "--max-batch", "8")
    try:
        assert server.predict([GOOD] * 200)[0] == 413
        status, answer = server.predict([GOOD] * 9)
        assert status == 400 and "at most 8 examples" in answer["error"]
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda _: server.predict([GOOD] * 6), range(300)))
        statuses = {status for status, _ in answers}
        assert statuses <= {200, 503} and 200 in statuses
        for status, answer in answers:
            assert (
                "examples wait for an answer" in answer["error"]
                if status == 503
                else len(answer["predictions"]) == 6
            )
    finally:
        server.close()


def test_requests_that_were_taken_are_answered_when_the_server_ends(served):
    server = Server(served[1])
    statuses = []

    def ask(number):
        found = []
        for count in range(20_000):
            if number == 0 and count == 5:
                server.process.send_signal(signal.SIGTERM)
            try:
                found.append(server.predict([GOOD] * 20)[0])
            except (urllib.error.URLError, ConnectionError) as error:
                reason = getattr(error, "reason", error)
                assert isinstance(reason, (ConnectionRefusedError, ConnectionResetError)), error
                return found
        raise AssertionError("The server did not end.")

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(ask, range(8)):
            statuses += found
    assert set(statuses) == {200}
    assert server.process.wait(HANG_S) == 0


def test_no_hostile_request_is_among_the_good():
    assert json.loads(with_value())["instances"] == [GOOD, GOOD]
    assert len({(path, body) for path, body, _ in HOSTILE}) == len(HOSTILE)
