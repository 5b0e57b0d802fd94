"""Sends a server hostile requests beside those of good clients, over plain sockets.

    python tests/server/attack.py HTTP-ADDRESS --requests 100000

The server is one of `served_folder.Server`. Prints how long good clients waited, without and with
the attack.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from typing import Any

V1, V2 = "/v1/models/model:predict", "/v2/models/model/infer"
GOOD = {"items": [1, 2], "tags": ["cat"], "user": 7, "place": 3, "dense": [0.0, 0.5, 1.0]}


def with_value(**values: Any) -> bytes:
    """Returns a request with an example that is good but for some values."""
    return json.dumps({"instances": [GOOD, {**GOOD, **values}]}).encode()


def with_text(old: bytes, new: bytes) -> bytes:
    """Returns a request in which a text of a good one is another."""
    body = with_value()
    assert old in body
    return body.replace(old, new, 1)


def v2(name: str, datatype: str, shape: Any, data: Any, **more: Any) -> bytes:
    """Returns a request of the Open Inference Protocol with one input that is odd."""
    inputs = {
        "dense": ("FP32", [1, 3], [0, 0, 0]),
        "items_row_lengths": ("INT64", [1], [1]),
        "items_values": ("INT64", [1], [1]),
        "place": ("INT64", [1], [1]),
        "tags_dense_shape": ("INT64", [2], [1, 1]),
        "tags_indices": ("INT64", [1, 2], [0, 0]),
        "tags_values": ("BYTES", [1], ["cat"]),
        "user": ("UINT64", [1], [1]),
    }
    inputs[name] = (datatype, shape, data)
    listed = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in inputs.items()
    ]
    return json.dumps({"inputs": listed, **more}).encode()


# A path, a body, and the statuses that are right.
HOSTILE: list[tuple[str, bytes, set[int]]] = [
    *(
        (V1, body, {400})
        for body in [
            b"",
            b"{",
            b"null",
            b"[]",
            b"\xff\xfe{}",
            b'"' + b"x" * 100_000,
            b"[" * 100_000,
            b'{"instances":' + b"[" * 900 + b"]" * 900 + b"}",
            b'{"a":' * 50_000,
            b'{"instances": []}',
            b'{"instances": {}, "inputs": {}}',
            b'{"instances": [{}]}',
            b'{"inputs": {"items": 1}}',
            b'{"signature_name": ["' + b"y" * 10_000 + b'"], "instances": [1]}',
            with_text(b'"cat"', b'"\\ud800"'),
            with_text(b'"cat"', b'"\\udfff\\ud800"'),
            with_text(b'"cat"', b'"\xed\xa0\x80"'),
            with_text(b"0.5", b"NaN"),
            with_text(b"0.5", b"Infinity"),
            with_text(b"0.5", b"1e400"),
            with_text(b"0.5", b"1e39"),
            with_text(b"0.5", b"-" + b"9" * 5000),
            with_text(b"0.5", b"1" + b"0" * 500_000),
            with_value(dense=[1, 2]),
            with_value(dense=[1, 2, 3, 4]),
            with_value(dense=[[1], [2], [3]]),
            with_value(dense=[True, 2, 3]),
            with_value(dense=None),
            with_value(items=[[1, 2], [3]]),
            with_value(items=[1.5]),
            with_value(items="1"),
            with_value(items=[2**64]),
            with_value(items=[-(2**63) - 1]),
            with_value(tags=[{"b64": "!"}]),
            with_value(tags=[None]),
            with_value(tags=[["cat"]]),
            with_value(user=-1.0),
            with_value(user={}),
            with_value(place=100),  # which the model refuses
            with_value(place=-1),
            with_value(more=1),
            b'{"instances": [' + b"1," * 500_000 + b'"x"]}',
            b'{"inputs": {"dense": [' + b"[0,0,0]," * 100_000 + b"[0,0]], "
            b'"items": [], "tags": [], "user": [], "place": []}}',
            json.dumps({"instances": [GOOD] * 1025}).encode(),
            b'{"inputs": {"tags_dense_shape": [1]}}',
            with_value(**{"x" * 100_000: 1}),
        ]
    ),
    *(
        (V2, body, {400})
        for body in [
            b"",
            b"[1]",
            b'{"inputs": 1}',
            b'{"inputs": [1]}',
            b'{"inputs": [{}]}',
            b'{"inputs": []}',
            b"\x80" * 1000,
            v2("dense", "FP32", [1, 3], [0, 0]),
            v2("dense", "FP32", [3, 1], [0, 0, 0]),
            v2("dense", "FP32", [-1, 3], [0, 0, 0]),
            v2("dense", "FP32", [10**12, 3], [0, 0, 0]),
            v2("dense", "FP32", [0, 3], []),
            v2("dense", "FP32", [1.0, 3], [0, 0, 0]),
            v2("dense", "FP32", None, [0, 0, 0]),
            v2("dense", "FP32", [1, 3], [1e39, 0, 0]),
            v2("dense", "FP64", [1, 3], [1e300, 0, 0]),
            v2("dense", "FP32", [1, 3], ["0", 0, 0]),
            v2("dense", "WHAT", [1, 3], [0, 0, 0]),
            v2("dense", "BYTES", [1, 3], ["a", "b", "c"]),
            v2("dense", 7, [1, 3], [0, 0, 0]),
            v2("other", "FP32", [1, 3], [0, 0, 0]),
            v2("items_values", "FP32", [1], [1.5]),
            v2("items_values", "INT32", [1], [2**31]),
            v2("items_row_lengths", "INT64", [1], [2]),
            v2("items_row_lengths", "INT64", [2], [2, -1]),
            v2("tags_indices", "INT64", [1, 2], [9, 0]),
            v2("tags_dense_shape", "INT64", [2], [1, 2**60]),
            v2("tags_dense_shape", "INT64", [2], [2**40, 1]),
            v2("tags_values", "BYTES", [1], [1]),
            v2("place", "INT64", [1], [100]),  # which the model refuses
            v2("user", "UINT64", [1], [1], outputs=[{"name": "no"}]),
            v2("user", "UINT64", [1], [1], outputs=[1]),
            v2("user", "UINT64", [1], [1], outputs=[{"name": []}]),
            v2("user", "UINT64", [1], [1], outputs=[{"name": "score"}] * 5000),
            v2("user", "UINT64", [1], [1], outputs=[{"name": "score", "parameters": "x"}]),
            v2("user", "UINT64", [1], [1], parameters=[1]),
            v2("user", "UINT64", [1], [1], id=[1]),
            v2("tags_values", "BYTES", [1], {}),
            v2("tags_values", "BYTES", [1], False),
            v2("tags_values", "INT64", [1], [1]),
            v2("tags_dense_shape", "INT64", [1], [1]),
            v2("x" * 100_000, "FP32", [1, 3], [0, 0, 0]),
        ]
    ),
    (V1, b'{"instances": [' + b"1," * 600_000 + b"1]}", {413}),
    (V2, b" " * 2_000_000, {413}),
    ("/v1/models/other:predict", with_value(), {404}),
    ("/v1/models/model/versions/99:predict", with_value(), {404}),
    ("/v1/models/model/versions/" + "9" * 3000 + ":predict", with_value(), {404}),
    ("/v1/models/model:explain", b"x" * 100_000, {404}),
    ("/v1/models/model:predict/..", b"{}", {404, 405}),
    ("/v2/models/model/load", b"{}", {404}),
    ("/v2/repository/models/model/unload", b"{}", {501}),
    ("/v2/repository/models/model/load", b"{}", {501, 503}),
    ("/v2/health/ready", b"{}", {405}),
]


def binary(body: bytes, length: bytes) -> bytes:
    """Returns the bytes of a request with binary data."""
    return request(V2, body, b"inference-header-content-length: " + length + b"\r\n")


def request(path: str, body: bytes, headers: bytes = b"") -> bytes:
    """Returns the bytes of a request."""
    size = b"content-length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\nhost: x\r\n%s%s\r\n%s" % (path.encode(), size, headers, body)


_BINARY = json.dumps(
    {
        "inputs": [
            {"name": "tags_values", "shape": [1], "datatype": "BYTES",
             "parameters": {"binary_data_size": 8}},
        ]
    }
).encode()  # fmt: skip


def again_and_again() -> bytes:
    """Returns a request whose sizes go back and forth over the same bytes."""
    inputs = [
        {"name": f"x{number}", "shape": [50_000], "datatype": "UINT8",
         "parameters": {"binary_data_size": 50_000 - 100_000 * (number % 2)}}
        for number in range(400)
    ]  # fmt: skip
    text = json.dumps({"inputs": inputs}).encode()
    return binary(text + b"\0" * 50_000, b"%d" % len(text))


# The bytes of odd requests, and the statuses that are right; `None`: the connection is closed.
ODD: list[tuple[bytes, set[int | None]]] = [
    (binary(b"{}", b"-1"), {400}),
    (binary(b"{}", b"x"), {400}),
    (binary(b"{}", b"99999999999999999999"), {400}),
    (binary(_BINARY + struct.pack("<I", 2**31) + b"abcd", b"%d" % len(_BINARY)), {400}),
    (again_and_again(), {400}),
    (binary(_BINARY + b"ab", b"%d" % len(_BINARY)), {400}),
    (request(V1, b"{}", b"content-encoding: gzip\r\n"), {400}),
    (b"GET / HTTP/9.9\r\n\r\n", {400}),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, {400}),
    (b"POST " + V1.encode() + b" HTTP/1.1\r\ncontent-length: -5\r\n\r\n", {400}),
    (b"POST " + V1.encode() + b" HTTP/1.1\r\ncontent-length: 999999999999\r\n\r\n", {413}),
    (b"POST " + V1.encode() + b" HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
     {400, None}),
    (b"POST " + V1.encode() + b" HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
     + b"186a0\r\n" + b"x" * 100_000 + b"\r\n0\r\n\r\n", {400}),
    (b"POST " + V1.encode() + b" HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
     + b"1e8480\r\n" + b"x" * 2_000_000 + b"\r\n0\r\n\r\n", {413}),
    (b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", {200, 400, 431, None}),
    (b"GET /ws HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", {404}),
]  # fmt: skip


class Client:
    """A connection to a server, which is made anew when the server closes it."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, data: bytes) -> tuple[int | None, bytes]:
        """Returns the status and the body of an answer; `None`: the connection was closed."""
        fresh = self._writer is None or self._writer.is_closing()
        if fresh:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        try:
            self._writer.write(data)
            head = await self._reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            (length,) = (line[16:] for line in lines if line.startswith(b"content-length: "))
            body = await self._reader.readexactly(int(length))
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            # The server may have closed a connection that it had refused a request of.
            return (None, b"") if fresh else await self.ask(data)
        if b"connection: close" in lines:
            self.close()
        return int(head[9:12]), body

    def close(self) -> None:
        """Closes the connection."""
        if self._writer is not None:
            self._writer.close()


async def attack(address: str, count: int, rate: float, clients: int = 8) -> Counter[str]:
    """Sends hostile requests, so many a second, and returns what was answered wrongly."""
    wrong: Counter[str] = Counter()
    numbers = iter(range(count))
    begun, seed = time.perf_counter(), 0
    choose = random.Random(seed)
    cases = [(request(path, body), right) for path, body, right in HOSTILE] + ODD

    async def send() -> None:
        client = Client(address)
        for number in numbers:
            await asyncio.sleep(max(0, begun + number / rate - time.perf_counter()))
            data, right = cases[choose.randrange(len(cases))]
            kind = choose.randrange(20)
            if kind == 0:  # hangs up
                hasty = Client(address)
                _, writer = await asyncio.open_connection(hasty._host, hasty._port)
                writer.write(data[: choose.randrange(len(data) + 1)])
                await asyncio.sleep(0)
                writer.transport.abort()
                continue
            status, body = await client.ask(data)
            if status not in right or len(body) > 600:
                wrong[f"{status} in place of {right} for {data[:200]!r}: {body[:200]!r}"] += 1
        client.close()

    await asyncio.gather(*(send() for _ in range(clients)))
    return wrong


async def ask_well(address: str, clients: int, until: asyncio.Event) -> tuple[list[float], int]:
    """Asks as good clients do, until an event; returns their seconds, and how many failed."""
    seconds: list[float] = []
    failed = 0
    data = request(V1, with_value())

    async def send() -> None:
        nonlocal failed
        client = Client(address)
        while not until.is_set():
            begun = time.perf_counter()
            status, body = await client.ask(data)
            seconds.append(time.perf_counter() - begun)
            if status != 200 or len(json.loads(body)["predictions"]) != 2:
                failed += 1
            await asyncio.sleep(0.01)
        client.close()

    await asyncio.gather(*(send() for _ in range(clients)))
    return seconds, failed


async def attacked(address: str, count: int, rate: float, clients: int = 16) -> tuple[Any, ...]:
    """Returns seconds of good clients without and with an attack, failures, and wrong answers.

    The attack comes from another process, whose work good clients do not wait for.
    """
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(3, until.set)
    alone, failed_alone = await ask_well(address, clients, until)
    until = asyncio.Event()
    asking = asyncio.create_task(ask_well(address, clients, until))
    command = [sys.executable, __file__, address, "--only-attack"]
    options = ["--requests", str(count), "--rate", str(rate)]
    process = await asyncio.create_subprocess_exec(*command, *options, stdout=subprocess.PIPE)
    text, _ = await process.communicate()
    until.set()
    beside, failed = await asking
    return alone, beside, failed_alone + failed, Counter(json.loads(text))


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("address")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=500, help="hostile requests a second")
    parser.add_argument("--only-attack", action="store_true", help="print the wrong answers")
    options = parser.parse_args()
    if options.only_attack:
        print(json.dumps(asyncio.run(attack(options.address, options.requests, options.rate))))
        return
    alone, beside, failed, wrong = asyncio.run(
        attacked(options.address, options.requests, options.rate)
    )
    for name, seconds in (("alone", alone), ("beside the attack", beside)):
        seconds.sort()
        p50, p99 = (1e3 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        print(
            f"16 good clients {name}: {len(seconds)} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        )
    print(f"{options.requests} hostile requests, {options.rate:.0f} a second: {failed} good ones "
          f"failed, {sum(wrong.values())} hostile ones were answered wrongly")  # fmt: skip
    for text, times in wrong.most_common(20):
        print(times, text)


if __name__ == "__main__":
    main()
