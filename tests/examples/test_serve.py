"""The HTTP service of an exported model: what it answers, refuses, counts and takes up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from limits import HANG_S

import sok_embed as sok
from sok_embed.callbacks import PublishDeltas
from sok_embed.serving import export

pytest.importorskip("aiohttp", reason="examples/serve/requirements.txt is not installed")
pytest.importorskip("prometheus_client", reason="examples/serve/requirements.txt is not installed")

FOLDER = Path(__file__).parents[2] / "examples/serve"
sys.path.insert(0, str(FOLDER))

from fields import InvalidRequest, fields_of  # noqa: E402


def make_model() -> tuple[keras.Model, list[sok.DynamicEmbedding]]:
    items = keras.Input((None,), dtype="int64", ragged=True, name="items")
    user = keras.Input((), dtype="int64", name="user")
    table = sok.TableConfig("users", 100, 4, seed=1)  # of positions: others are refused
    users = sok.DistributedEmbedding(sok.FeatureConfig("user", table))
    bags = sok.DynamicEmbedding(4, combiner="mean", name="items_embedding")
    joined = keras.layers.Concatenate()([bags(items), users(user)])
    score = keras.layers.Dense(1, activation="sigmoid", name="score")(joined)
    bags.table.assign(np.arange(1000), np.random.default_rng(0).normal(size=(1000, 4)))
    return keras.Model([items, user], {"score": score, "vector": joined}), bags


def instances_of(seed: int, count: int) -> list[dict[str, object]]:
    random = np.random.default_rng(seed)
    return [
        {
            "items": random.integers(0, 1100, random.integers(0, 6)).tolist(),
            "user": int(random.integers(0, 100)),
        }
        for _ in range(count)
    ]


def expected_of(model: keras.Model, instances: list[dict[str, object]]) -> dict[str, np.ndarray]:
    items = tf.ragged.constant([each["items"] for each in instances], tf.int64, 1)
    users = tf.constant([each["user"] for each in instances], tf.int64)
    data = tf.data.Dataset.from_tensors(((items, users),))
    return model.predict(data, verbose=0)


class Service:
    """A service in a process of its own, on a free port."""

    def __init__(self, path: Path, *options: str) -> None:
        command = forked.command(FOLDER / "serve.py", path, "--port", "0", *options)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self._listening = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._listening.wait(HANG_S), self.log

    def _read(self) -> None:
        for line in self.process.stderr:
            self.log.append(line)
            match = re.search(r"listening on (\S+)", line)
            if match:
                self.url = match[1]
                self._listening.set()

    def get(self, path: str) -> tuple[int, str]:
        return self._ask(urllib.request.Request(self.url + path))

    def predict(self, body: object) -> tuple[int, dict[str, object]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text = self._ask(urllib.request.Request(f"{self.url}/predict", data))
        return status, json.loads(text)

    def _ask(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(value)

    def version(self) -> int:
        return json.loads(self.get("/health/ready")[1])["version"]

    def wait_for(self, version: int) -> None:
        end = time.monotonic() + 60
        while self.version() != version:
            assert time.monotonic() < end, self.log
            time.sleep(0.05)


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """Returns a model, its layer of items, the folder of its exports, and a service of it."""
    path = tmp_path_factory.mktemp("served")
    model, bags = make_model()
    export(model, path)
    service = Service(path, "--poll-s", "0.1", "--max-batch", "64", "--max-wait-ms", "5")
    yield model, bags, path, service
    service.process.kill()
    service.process.wait()


WRONG = [
    (b"{", "Expected JSON"),
    ({"inputs": []}, 'Expected {"instances"'),
    ({"instances": []}, 'Expected {"instances"'),
    ({"instances": [{"items": [1]}]}, "expected the inputs ['items', 'user']"),
    ({"instances": [3]}, "expected an object"),
    ({"instances": [{"items": [1], "user": 2}, {"items": 1, "user": 2}]}, "Instance 1: 'items'"),
    ({"instances": [{"items": [1.5], "user": 2}]}, "expected values of int64. Received: 1.5"),
    ({"instances": [{"items": [True], "user": 2}]}, "expected values of int64. Received: True"),
    ({"instances": [{"items": [2**64], "user": 2}]}, "expected values of int64"),
    ({"instances": [{"items": [-(2**63) - 1], "user": 2}]}, "expected values of int64"),
    ({"instances": [{"items": [[1]], "user": 2}]}, "expected a list of values"),
    ({"instances": [{"items": [1], "user": [2]}]}, "expected one value"),
    ({"instances": [{"items": [1], "user": 100}]}, "expected keys in [0, 100)"),
    ({"instances": [{"items": [], "user": 0}] * 65}, "Expected at most 64 instances"),
]


def test_good_and_bad_requests_at_the_same_time_get_their_own_answers(serving):
    model, _, _, service = serving
    requests = [("good", instances_of(seed, 1 + seed % 5)) for seed in range(150)]
    requests += [("bad", wrong) for wrong in WRONG] * 3
    order = np.random.default_rng(0).permutation(len(requests))
    before = service.metric("serve_batch_examples_count")

    def ask(number):
        kind, given = requests[number]
        return service.predict({"instances": given} if kind == "good" else given[0])

    with ThreadPoolExecutor(16) as pool:
        answers = dict(zip(order, pool.map(ask, order), strict=True))
    predictions = []
    for number, (kind, given) in enumerate(requests):
        status, answer = answers[number]
        if kind == "bad":
            assert status == 400 and given[1] in answer["error"], answer
            continue
        assert status == 200 and answer["version"] == 1, answer
        assert len(answer["predictions"]) == len(given)
        predictions += answer["predictions"]
    expected = expected_of(model, [each for kind, given in requests if kind == "good"
                                   for each in given])  # fmt: skip
    for name in ("score", "vector"):
        found = [each[name] for each in predictions]
        # Products of matrices round otherwise in batches of other sizes.
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6)
    good = sum(kind == "good" for kind, _ in requests)
    batches = service.metric("serve_batch_examples_count") - before
    assert 0 < batches < good
    assert service.metric('serve_requests_total{status="200"}') == good
    assert service.metric('serve_errors_total{kind="invalid"}') == len(requests) - good
    assert service.metric('serve_errors_total{kind="internal"}') == 0
    assert service.metric("serve_request_seconds_count") == len(requests)
    assert service.metric("serve_waiting_examples") == 0


def parts_of(examples, **specs):
    """Returns the tensors that the service makes of examples of one input."""
    (field,) = fields_of({name: tf.TensorSpec(*spec) for name, spec in specs.items()})
    return field, field.tensors([field.parse(each) for each in examples])


def test_inputs_of_each_form_have_the_parts_that_tensorflow_makes():
    nested = [[[1], [2, 3]], [], [[], [4]]]
    count = ([None], tf.int64)
    _, parts = parts_of(nested, a_values=count, a_row_lengths_0=count, a_row_lengths_1=count)
    ragged = tf.ragged.constant(nested, tf.int64)
    np.testing.assert_array_equal(parts["a_values"], ragged.flat_values)
    for number, lengths in enumerate(ragged.nested_row_lengths()):
        np.testing.assert_array_equal(parts[f"a_row_lengths_{number}"], lengths)
    field, parts = parts_of([[[0.5, 1]], []], a_values=([None, 2], tf.float32), a_row_lengths=count)
    np.testing.assert_array_equal(parts["a_values"], [[0.5, 1]])
    np.testing.assert_array_equal(parts["a_row_lengths"], [1, 0])
    assert field.examples(parts) == [[[0.5, 1.0]], []]
    bags = [["x", "y"], [], ["z"]]
    _, parts = parts_of(
        bags, a_values=([None], tf.string), a_indices=([None, 2], tf.int64),
        a_dense_shape=([2], tf.int64),
    )  # fmt: skip
    sparse = tf.ragged.constant(bags).to_sparse()
    assert parts["a_values"].tolist() == [each.decode() for each in sparse.values.numpy()]
    np.testing.assert_array_equal(parts["a_indices"], sparse.indices)
    np.testing.assert_array_equal(parts["a_dense_shape"], sparse.dense_shape)
    _, parts = parts_of([[1, 2], [3, 4]], a_values=([None, 2], tf.uint64))  # only its name is so
    np.testing.assert_array_equal(parts["a_values"], [[1, 2], [3, 4]])
    for dtype in (tf.int64, tf.uint64):  # a key may be signed or unsigned
        keys = [[2**64 - 1, -1, 2**63], [-(2**63), 0, 7]]
        _, parts = parts_of(keys, a=([None, 3], dtype))
        bits = [[each % 2**64 for each in row] for row in keys]
        np.testing.assert_array_equal(parts["a"].view(np.uint64), np.array(bits, np.uint64))
        assert parts["a"].dtype == dtype.as_numpy_dtype
    field, _ = parts_of([1], a=([None], tf.int32))
    with pytest.raises(InvalidRequest, match="int32"):
        field.parse(2**31)
    field, _ = parts_of([0.0], a=([None], tf.float32))
    for wrong in (float("nan"), float("inf"), 10**400, "1", None, {}, [1.0]):
        with pytest.raises(InvalidRequest):
            field.parse(wrong)


def test_the_service_says_how_it_is(serving):
    service = serving[3]
    assert service.get("/health/live") == (200, '{"live": true}')
    assert service.get("/health/ready")[0] == 200
    status, text = service.get("/model")
    told = json.loads(text)
    assert status == 200 and told["version"] == 1
    assert told["inputs"]["items"] == {"kind": "ragged", "depth": 1, "shape": [], "dtype": "int64"}
    assert told["outputs"]["score"]["shape"] == [1]
    assert service.get("/predict")[0] == 405 and service.get("/no")[0] == 404


def test_a_new_version_is_taken_up_without_a_pause_and_a_broken_one_is_not(serving):
    model, bags, path, service = serving
    instances = instances_of(7, 3)
    expected = {1: expected_of(model, instances)["vector"]}
    bags.table.assign(np.arange(1000), np.random.default_rng(9).normal(size=(1000, 4)))
    expected[2] = expected_of(model, instances)["vector"]
    seen, done = [], threading.Event()

    def ask():
        while not done.is_set():
            seen.append(service.predict({"instances": instances}))

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            export(model, path)
            service.wait_for(2)
            (path / "3").mkdir()
            (path / "3/saved_model.pb").write_bytes(b"torn")
            end = time.monotonic() + 60
            while not service.metric('serve_loads_total{result="failed"}'):
                assert time.monotonic() < end
                time.sleep(0.05)
        finally:
            done.set()
        for each in asking:
            each.result()
    assert {answer["version"] for _, answer in seen} == {1, 2}
    for status, answer in seen:
        assert status == 200
        found = [each["vector"] for each in answer["predictions"]]
        np.testing.assert_allclose(found, expected[answer["version"]], rtol=1e-6, atol=1e-7)
    assert service.version() == 2 and service.metric("serve_model_version") == 2
    told = [line for line in service.log if "3 is not served" in line]
    assert len(told) == 1


def test_it_follows_a_training(tmp_path):
    model, _ = make_model()
    model.compile("adagrad", {"score": "binary_crossentropy", "vector": None})
    export(model, tmp_path / "served")
    service = Service(tmp_path / "served", "--follow", "--poll-s", "0.05")
    try:
        instances = instances_of(3, 5)
        status, answer = service.predict({"instances": instances})
        assert (status, answer["version"], answer["delta"]) == (200, 1, 0)
        items = tf.ragged.constant([each["items"] for each in instances], tf.int64, 1)
        users = tf.constant([each["user"] for each in instances], tf.int64)
        data = tf.data.Dataset.from_tensors(((items, users), {"score": tf.ones([5, 1])})).repeat(4)
        model.fit(data, verbose=0, callbacks=[PublishDeltas(tmp_path / "served", every=2)])
        end = time.monotonic() + 60
        while answer["delta"] < 2:
            assert time.monotonic() < end, service.log
            answer = service.predict({"instances": instances})[1]
        trained = [each["vector"] for each in answer["predictions"]]
        expected = expected_of(model, instances)["vector"]
        np.testing.assert_allclose(trained, expected, rtol=1e-6, atol=1e-7)
        assert service.metric("serve_model_delta") == answer["delta"]
        # A delta that is stuck.
        (tmp_path / "served/1/deltas/CURRENT.json").write_text('{"delta": 9}')
        end = time.monotonic() + 60
        while service.metric("serve_model_deltas_behind") != 7:
            assert time.monotonic() < end, service.log
            time.sleep(0.05)
        assert service.metric("serve_model_delta") == 2
        assert any("00000003 is left alone" in line for line in service.log)
    finally:
        service.process.kill()
        service.process.wait()


def test_requests_that_were_taken_are_answered_when_the_service_ends(serving):
    service = serving[3]
    instances = instances_of(5, 20)
    statuses = []
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(
            lambda number: ask_until_refused(service, instances, number), range(8)
        ):
            statuses += answer
    assert set(statuses) == {200}
    assert service.process.wait(30) == 0


def ask_until_refused(service, instances, number):
    """Returns the statuses of requests until the service takes no more; the first one ends it."""
    statuses = []
    for count in range(20_000):
        if number == 0 and count == 5:
            service.process.send_signal(signal.SIGTERM)
        try:
            statuses.append(service.predict({"instances": instances})[0])
        except (urllib.error.URLError, ConnectionError) as error:
            refused = (ConnectionRefusedError, ConnectionResetError)
            assert isinstance(getattr(error, "reason", error), refused), error
            return statuses
    raise AssertionError("The service did not end.")
