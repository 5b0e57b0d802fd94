"""Hostile requests, and clients that hang up or wait for ever, do no harm to those of others."""

from __future__ import annotations

import asyncio
import json
import os
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
    assert not [line for line in server.log if "Traceback" in line or "failed" in line]
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


def test_a_client_that_does_not_read_its_answers_is_left_behind(server):
    data = request(V1, with_value()) * 3000
    client = connection(server.address, b"")
    client.setblocking(False)
    sent = 0
    for _ in range(50):
        try:
            sent += client.send(data[sent:])
        except BlockingIOError:
            time.sleep(0.01)
        assert server.predict([GOOD])[0] == 200
    client.close()


def test_what_is_over_the_limits_is_refused(served):
    server = Server(served[1], "--max-bytes", "3000", "--max-waiting", "8", "--max-batch", "4")
    try:
        assert server.predict([GOOD] * 200)[0] == 413
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
