"""A model with inputs and outputs of all kinds, and a server of its exports in a process."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import forked
import keras
import numpy as np
import tensorflow as tf
from limits import HANG_S

import sok_embed as sok

USERS = 100
WORDS = ["", "cat", "dög", "\U0001f600", "x" * 300]


def make_model() -> keras.Model:
    """Returns a model of bags of integers and of strings, unsigned keys, and numbers."""
    items = keras.Input((None,), dtype="int64", ragged=True, name="items")
    tags = keras.Input((None,), dtype="string", sparse=True, name="tags")
    user = keras.Input((), dtype="uint64", name="user")
    place = keras.Input((), dtype="int64", name="place")
    dense = keras.Input((3,), name="dense")
    bags = sok.DynamicEmbedding(4, combiner="mean", seed=1, name="bags")
    each = sok.DynamicEmbedding(2, seed=2, name="each")
    users = sok.DynamicEmbedding(4, seed=3, name="users")
    words = sok.DynamicEmbedding(4, combiner="sum", seed=4, name="words")
    # It refuses keys that are not positions.
    places = sok.DistributedEmbedding(
        sok.FeatureConfig("place", sok.TableConfig("places", USERS, 4, seed=5)), name="places"
    )
    parts = [bags(items), words(tags), users(user), places(place), dense]
    joined = keras.layers.Concatenate()(parts)
    score = keras.layers.Dense(1, activation="sigmoid", name="score")(joined)
    bags.table.assign(np.arange(1000), np.random.default_rng(0).normal(size=(1000, 4)))
    outputs = {"score": score, "vector": joined, "each": each(items)}
    return keras.Model([items, tags, user, place, dense], outputs)


def instances_of(seed: int, count: int) -> list[dict[str, Any]]:
    """Returns random examples, as JSON has them."""
    random = np.random.default_rng(seed)
    return [
        {
            "items": random.integers(-5, 1100, random.integers(0, 6)).tolist(),
            "tags": random.choice(WORDS, random.integers(0, 4)).tolist(),
            "user": int(random.integers(0, 2**64, dtype=np.uint64)),
            "place": int(random.integers(0, USERS)),
            "dense": random.normal(size=3).tolist(),
        }
        for _ in range(count)
    ]


def inputs_of(instances: list[dict[str, Any]]) -> list[Any]:
    """Returns the tensors that the model takes."""
    columns = {name: [each[name] for each in instances] for name in instances[0]}
    return [
        tf.ragged.constant(columns["items"], tf.int64, 1),
        tf.ragged.constant(columns["tags"], tf.string, 1).to_sparse(),
        tf.constant(columns["user"], tf.uint64),
        tf.constant(columns["place"], tf.int64),
        tf.constant(columns["dense"], tf.float32),
    ]


def expected_of(model: keras.Model, instances: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what the model answers to each example."""
    found = model(inputs_of(instances))
    columns = {name: each.to_list() if isinstance(each, tf.RaggedTensor) else each.numpy()
               for name, each in found.items()}  # fmt: skip
    return [
        {name: np.array(column[number]) for name, column in columns.items()}
        for number in range(len(instances))
    ]


def assert_answers(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Raises unless predictions are those of a model.

    Products of matrices round otherwise in batches of other sizes, hence the tolerances.
    """
    assert len(found) == len(expected)
    for one, wanted in zip(found, expected, strict=True):
        assert one.keys() == wanted.keys()
        for name, value in wanted.items():
            array = np.array(one[name]).reshape(value.shape)
            np.testing.assert_allclose(array, value, rtol=1e-5, atol=1e-6, err_msg=name)


class Server:
    """A server in a process of its own, on free ports.

    Args:
        path: The folder that it serves, or its URL.
        options: Options of the command.
        wait: True to wait until it is ready.
        descriptors: The most open files that it may have; `None`: as many as this process.
    """

    def __init__(
        self, path: Path | str, *options: str, wait: bool = True, descriptors: int | None = None
    ) -> None:
        code = "import sys; from sok_embed.cli import main; main(sys.argv[1:])"
        if descriptors is not None:
            limit = f"({descriptors}, {descriptors})"
            code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limit}); {code}"
        command = forked.program(
            code, "serve", path, "--port", "0", "--grpc-port", "0", "--poll-seconds", "0.1",
            "--name", "model", *options,
        )  # fmt: skip
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self._listening = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._listening.wait(HANG_S), self.log
        if wait:
            self.wait_for(lambda: self.get("/v2/health/ready")[0] == 200)

    def _read(self) -> None:
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"gRPC listens on (\S+)", line):
                self.grpc = match[1]
            if match := re.search(r"running on http://(\S+)", line):
                self.address = match[1]
                self._listening.set()
        self._listening.set()

    def get(self, path: str) -> tuple[int, Any]:
        """Returns the status and the body of an answer."""
        return self._ask(urllib.request.Request(f"http://{self.address}{path}"))

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Returns the status and the body of the answer to a body, which may be bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask(urllib.request.Request(f"http://{self.address}{path}", data, headers))

    def predict(self, instances: Any) -> tuple[int, Any]:
        """Returns the status and the body of the answer to examples."""
        return self.post("/v1/models/model:predict", {"instances": instances})

    def _ask(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode("latin-1")

    def metric(self, name: str) -> float:
        """Returns the value of a metric."""
        text = self.get("/metrics")[1]
        (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(value)

    def version(self) -> str:
        """Returns the number of the export that is served."""
        return self.get("/v1/models/model")[1]["model_version_status"][0]["version"]

    def wait_for(self, condition: Any) -> None:
        """Returns when a condition holds."""
        end = time.monotonic() + HANG_S
        while not condition():
            assert time.monotonic() < end and self.process.poll() is None, self.log
            time.sleep(0.05)

    def close(self) -> None:
        """Kills the server."""
        self.process.kill()
        self.process.wait()
