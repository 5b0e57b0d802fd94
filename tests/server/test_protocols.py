"""A server answers what the model answers, in each protocol and by the clients of others."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked
import grpc
import keras
import numpy as np
import pytest
import tensorflow as tf
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from limits import HANG_S
from served_folder import (
    Server,
    assert_answers,
    expected_of,
    inputs_of,
    instances_of,
    make_model,
)
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from sok_embed.callbacks import PublishDeltas
from sok_embed.serving import export


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """Returns a model, the folder of its exports, and a server of it."""
    path = tmp_path_factory.mktemp("served")
    model = make_model()
    export(model, path)
    server = Server(path)
    yield model, path, server
    server.close()


def tensors_of(instances):
    """Returns the parts of the inputs by their names in the signature."""
    items, tags, user, place, dense = inputs_of(instances)
    return {
        "dense": dense.numpy(),
        "items_row_lengths": items.row_lengths().numpy(),
        "items_values": items.values.numpy(),
        "place": place.numpy(),
        "tags_dense_shape": tags.dense_shape.numpy(),
        "tags_indices": tags.indices.numpy(),
        "tags_values": tags.values.numpy(),
        "user": user.numpy(),
    }


def rows_of(outputs, count):
    """Returns the answer to each example, from the parts of the outputs."""
    each = tf.RaggedTensor.from_row_lengths(outputs["each_values"], outputs["each_row_lengths"])
    columns = {"score": outputs["score"], "vector": outputs["vector"], "each": each.to_list()}
    return [{name: column[number] for name, column in columns.items()} for number in range(count)]


TYPES = {"f": "FP32", "i": "INT64", "u": "UINT64", "O": "BYTES"}


def test_requests_of_many_clients_get_their_own_answers(serving):
    model, _, server = serving
    requests = [instances_of(seed, 1 + seed % 5) for seed in range(150)]
    before = server.metric("sok_embed_batch_examples_count")
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(server.predict, requests))
    for (status, answer), given in zip(answers, requests, strict=True):
        assert status == 200 and answer["model_version"] == "1.0", answer
        assert_answers(answer["predictions"], expected_of(model, given))
    assert 0 < server.metric("sok_embed_batch_examples_count") - before < len(requests)
    assert server.metric("sok_embed_waiting_examples") == 0


def test_columns_of_tensorflow_serving(serving):
    model, _, server = serving
    given = instances_of(1, 4)
    expected = expected_of(model, given)
    by_input = {name: [each[name] for each in given] for name in given[0]}
    by_part = {
        name: [each.decode() for each in part] if part.dtype == object else part.tolist()
        for name, part in tensors_of(given).items()
    }
    for inputs in (by_input, by_part):
        body = {"signature_name": "serving_default", "inputs": inputs}
        status, answer = server.post("/v1/models/model/versions/1:predict", body)
        assert status == 200, answer
        assert_answers(rows_of(answer["outputs"], 4), expected)


def test_the_clients_of_triton(serving, tmp_path):
    model, _, server = serving
    given = instances_of(2, 3)
    file = tmp_path / "tensors.npz"
    np.savez(file, **tensors_of(given))
    script = Path(__file__).with_name("triton_client.py")
    command = forked.command(script, server.address, server.grpc, file)
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr + "".join(server.log)
    expected = expected_of(model, given)
    with np.load(file, allow_pickle=True) as found:
        for way in ("http", "binary", "grpc"):
            outputs = {name.split()[1]: found[name] for name in found if name.startswith(way)}
            assert_answers(rows_of(outputs, 3), expected)


def test_the_clients_of_kserve(serving):
    model, _, server = serving
    given = instances_of(4, 2)
    expected = expected_of(model, given)
    url = f"http://{server.address}"

    async def ask():
        rest = InferenceRESTClient(RESTConfig(protocol="v1"))
        assert await rest.is_model_ready(url, "model")
        answer = await rest.infer(url, {"instances": given}, model_name="model")
        assert_answers(answer["predictions"], expected)
        inputs = []
        for name, array in tensors_of(given).items():
            inputs.append(InferInput(name, list(array.shape), TYPES[array.dtype.kind]))
            inputs[-1].set_data_from_numpy(array, binary_data=False)
        request = InferRequest("model", inputs)
        rest = InferenceRESTClient(RESTConfig(protocol="v2"))
        assert await rest.is_server_ready(url) and await rest.is_model_ready(url, "model")
        answers = [await rest.infer(url, request, model_name="model")]
        async with InferenceGRPCClient(server.grpc) as client:
            answers.append(await client.infer(request))
        for answer in answers:
            outputs = {each.name: each.as_numpy() for each in answer.outputs}
            assert_answers(rows_of(outputs, 2), expected)

    asyncio.run(ask())


def test_strings_that_are_no_text_go_by_bytes(serving):
    model, _, server = serving
    given = instances_of(8, 2)
    tensors = tensors_of(given)
    tensors["tags_values"] = np.array([b"\xff\0"] * len(tensors["tags_values"]) + [None])[:-1]
    inputs, data = [], b""
    for name, array in tensors.items():
        raw = array.tobytes()
        if array.dtype == object:
            raw = b"".join(len(each).to_bytes(4, "little") + each for each in array)
        inputs.append(
            {"name": name, "shape": list(array.shape), "datatype": TYPES[array.dtype.kind],
             "parameters": {"binary_data_size": len(raw)}}
        )  # fmt: skip
        data += raw
    text = json.dumps({"inputs": inputs}).encode()
    headers = {"inference-header-content-length": str(len(text))}
    status, answer = server.post("/v2/models/model/infer", text + data, **headers)
    assert status == 200, answer
    b64 = base64.b64encode(b"\xff\0").decode()
    for each in given:
        each["tags"] = [{"b64": b64} for _ in each["tags"]]
    rows = server.predict(given)[1]["predictions"]
    scores = [each["data"] for each in answer["outputs"] if each["name"] == "score"]
    np.testing.assert_allclose(scores[0], np.ravel([row["score"] for row in rows]), rtol=1e-5)


def test_sagemaker_and_the_other_routes(serving):
    model, _, server = serving
    given = instances_of(5, 2)
    assert server.get("/ping") == (200, "")
    status, answer = server.post("/invocations", {"instances": given})
    assert status == 200
    assert_answers(answer["predictions"], expected_of(model, given))
    assert server.get("/v1/models") == (200, {"models": ["model"]})
    for path in (
        "/v1/models/model",
        "/v1/models/model/versions/1",
        "/v1/models/model/versions/1.0",
    ):
        (state,) = server.get(path)[1]["model_version_status"]
        assert state == {
            "version": "1",
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
    signature = server.get("/v1/models/model/metadata")[1]["metadata"]["signature_def"]
    inputs = signature["signature_def"]["serving_default"]["inputs"]
    assert inputs["user"]["dtype"] == "DT_UINT64" and inputs["dense"]["dtype"] == "DT_FLOAT"
    assert [each["size"] for each in inputs["dense"]["tensor_shape"]["dim"]] == ["-1", "3"]
    assert server.get("/v2")[0] == 200 and server.get("/")[0] == 200
    for method, path, status in [
        (server.get, "/v1/models/other", 404),
        (server.get, "/v1/models/model/versions/2", 404),
        (server.get, "/v1/models/model:predict", 404),
        (server.get, "/no", 404),
        (server.get, "/v2/models/other", 404),
        (server.get, "/v2/models/other/ready", 404),
        (server.get, "/v2/models/model/versions/2", 404),
        (server.get, "/v2/models/model/versions/2/ready", 404),
    ]:
        found, answer = method(path)
        assert found == status and answer["error"], (path, found, answer)
    assert server.get("/v2/models/model/versions/1/ready")[1] == {"name": "model", "ready": True}
    told = server.get("/v2/models/model/versions/1.0")[1]
    assert told["inputs"] == server.get("/v2/models/model")[1]["inputs"]
    for path in ("load", "unload"):
        assert server.post(f"/v2/repository/models/model/{path}", {})[0] in (501, 503)
    assert server.get("/v2/models/model/ready")[0] == 200


def test_deltas_and_versions_are_taken_up_without_a_pause(tmp_path):
    model = make_model()
    model.compile("adagrad", {"score": "binary_crossentropy", "vector": None, "each": None})
    given = instances_of(6, 3)
    server = Server(tmp_path, wait=False)  # nothing is there yet
    try:
        for path in ("/v2/health/ready", "/ping", "/v2/models/model/ready", "/v2/models/model"):
            assert server.get(path)[0] == 503, path
        assert server.predict(given)[0] == 503
        assert server.get("/v2/health/live")[0] == 200
        export(model, tmp_path)
        server.wait_for(lambda: server.get("/ping")[0] == 200)
        expected = {"1.0": expected_of(model, given)}
        seen, done = [], threading.Event()

        def ask():
            while not done.is_set():
                seen.append(server.predict(given))

        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(ask) for _ in range(2)]
            try:
                data = tf.data.Dataset.from_tensors(
                    (tuple(inputs_of(given)), {"score": tf.ones([3, 1])})
                )
                model.fit(data.repeat(2), verbose=0, callbacks=[PublishDeltas(tmp_path, every=2)])
                expected["1.1"] = expected_of(model, given)
                server.wait_for(lambda: server.metric("sok_embed_model_delta") == 1)
                (tmp_path / "9").mkdir()
                (tmp_path / "9/saved_model.pb").write_bytes(b"torn")
                export(model, tmp_path, min_count=1)  # gets the number 10
                expected["10.0"] = expected["1.1"]
                server.wait_for(lambda: server.version() == "10")
            finally:
                done.set()
            for each in asking:
                each.result()
        assert {answer["model_version"] for _, answer in seen} == set(expected)
        for status, answer in seen:
            assert status == 200
            assert_answers(answer["predictions"], expected[answer["model_version"]])
        assert server.metric("sok_embed_model_version") == 10
        server.wait_for(lambda: any("version (10, 0)" in line for line in server.log))
        # A delta that is stuck.
        (tmp_path / "10/deltas").mkdir(exist_ok=True)
        (tmp_path / "10/deltas/CURRENT.json").write_text(json.dumps({"delta": 7}))
        server.wait_for(lambda: server.metric("sok_embed_deltas_behind") == 7)
    finally:
        server.close()
    back = Server(tmp_path, "--version", "1.1")
    try:
        status, answer = back.predict(given)
        assert (status, answer["model_version"]) == (200, "1.1")
        assert_answers(answer["predictions"], expected["1.1"])
    finally:
        back.close()


def test_an_answer_that_json_does_not_have_is_an_error_and_not_null(tmp_path):
    ids = keras.Input((1,), name="x")
    model = keras.Model(ids, keras.layers.Lambda(lambda x: tf.math.log(x), name="log")(ids))
    export(model, tmp_path)
    server = Server(tmp_path)
    try:
        assert server.predict([[1.0]])[1]["predictions"] == [[0.0]]
        status, answer = server.predict([[-1.0]])
        assert status == 500 and "NaN or infinity, which JSON does not have" in answer["error"]
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}
        status, answer = server.post("/v2/models/model/infer", body)
        assert status == 500 and "NaN" in answer["error"]
        body["parameters"] = {"binary_data_output": True}
        status, answer = server.post("/v2/models/model/infer", body)
        assert status == 200
        (value,) = np.frombuffer(answer.encode("latin-1")[-4:], np.float32)
        assert np.isneginf(value)
    finally:
        server.close()


def test_wrong_messages_over_grpc_are_refused(serving):
    _, _, server = serving
    pb = grpc_predict_v2_pb2
    tensor = pb.ModelInferRequest.InferInputTensor
    good = tensor(name="dense", datatype="FP32", shape=[1, 3])
    requests = [
        pb.ModelInferRequest(),
        pb.ModelInferRequest(model_name="model"),
        pb.ModelInferRequest(model_name="model", inputs=[good]),
        pb.ModelInferRequest(model_name="model", inputs=[good], raw_input_contents=[b"", b""]),
        pb.ModelInferRequest(model_name="model", inputs=[good], raw_input_contents=[b"\0" * 11]),
        pb.ModelInferRequest(model_name="model", inputs=[good, good]),
        *(
            pb.ModelInferRequest(model_name="model", inputs=[tensor(name="dense", **fields)])
            for fields in [
                {"datatype": "WHAT", "shape": [1]},
                {"datatype": "BYTES", "shape": [-1]},
                {"datatype": "FP32", "shape": [1, 3],
                 "contents": {"fp32_contents": [float("nan"), 0, 0]}},
                {"datatype": "FP32", "shape": [1, 3], "contents": {"int_contents": [1, 2, 3]}},
            ]
        ),
        pb.ModelInferRequest(
            model_name="model",
            inputs=[tensor(name="tags_values", datatype="BYTES", shape=[1])],
            raw_input_contents=[b"\xff\xff\xff\xff"],
        ),
    ]  # fmt: skip
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for request in requests:
            with pytest.raises(grpc.RpcError) as error:
                stub.ModelInfer(request)
            status = error.value.code()
            expected = "INVALID_ARGUMENT" if request.model_name else "NOT_FOUND"
            assert status.name == expected, (request, error.value)
        for version, expected in (("1", True), ("1.0", True), ("2", False)):
            try:
                ready = stub.ModelReady(pb.ModelReadyRequest(name="model", version=version)).ready
            except grpc.RpcError as error:
                ready = error.code() is not grpc.StatusCode.NOT_FOUND
            assert ready is expected, version
        huge = pb.ModelInferRequest(model_name="model", raw_input_contents=[b"x" * 2**21])
        with pytest.raises(grpc.RpcError) as error:
            stub.ModelInfer(huge)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.predict(instances_of(0, 1))[0] == 200


def test_the_client_of_tensorflow_serving(serving):
    model, _, server = serving
    given = instances_of(7, 3)
    with grpc.insecure_channel(server.grpc) as channel:
        predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "model"
        request.model_spec.signature_name = "serving_default"
        request.model_spec.version.value = 1
        for name, array in tensors_of(given).items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
        response = predictions.Predict(request)
        assert response.model_spec.version.value == 1
        outputs = {name: tf.make_ndarray(each) for name, each in response.outputs.items()}
        assert_answers(rows_of(outputs, 3), expected_of(model, given))
        request.output_filter.append("score")
        assert [*predictions.Predict(request).outputs] == ["score"]

        status = get_model_status_pb2.GetModelStatusRequest(model_spec=request.model_spec)
        (state,) = models.GetModelStatus(status).model_version_status
        assert state.version == 1 and state.state == state.AVAILABLE
        metadata = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=request.model_spec, metadata_field=["signature_def"]
        )
        answer = predictions.GetModelMetadata(metadata).metadata["signature_def"]
        signatures = get_model_metadata_pb2.SignatureDefMap()
        assert answer.Unpack(signatures)
        signature = signatures.signature_def["serving_default"]
        assert tf.TensorShape(signature.inputs["dense"].tensor_shape).as_list() == [None, 3]
        assert signature.inputs["user"].dtype == tf.uint64.as_datatype_enum

        def wrong(change, status):
            changed = predict_pb2.PredictRequest()
            changed.CopyFrom(request)
            change(changed)
            with pytest.raises(grpc.RpcError) as error:
                predictions.Predict(changed)
            assert error.value.code() is status, error.value

        def set_dense(*shape, **fields):
            def change(changed):
                tensor = tf.make_tensor_proto(np.zeros([3, 3], np.float32))
                tensor.tensor_shape.CopyFrom(tf.TensorShape(None).as_proto())
                tensor.tensor_shape.unknown_rank = False
                for size in shape:
                    tensor.tensor_shape.dim.add(size=size)
                tensor.ClearField("tensor_content")
                tensor.MergeFrom(type(tensor)(**fields))
                changed.inputs["dense"].CopyFrom(tensor)

            return change

        def set_spec(name, value):
            return lambda changed: setattr(changed.model_spec, name, value)

        missing, invalid = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
        wrong(set_spec("name", "other"), missing)
        wrong(set_spec("signature_name", "x"), invalid)
        wrong(set_spec("version_label", "stable"), invalid)
        wrong(lambda changed: setattr(changed.model_spec.version, "value", 2), missing)
        wrong(lambda changed: changed.output_filter.append("x"), invalid)
        wrong(lambda changed: changed.inputs.pop("dense"), invalid)
        wrong(set_dense(2**40, 2**20, float_val=[0]), invalid)
        wrong(set_dense(2**16, 3, float_val=[0]), invalid)
        wrong(lambda changed: changed.output_filter.extend(["score"] * 2), invalid)

        def add_inputs(changed):
            tensor = tf.make_tensor_proto(np.zeros([1], np.float32))
            tensor.tensor_shape.dim[0].size = 2**16
            for number in range(1000):
                changed.inputs[f"x{number}"].CopyFrom(tensor)

        wrong(add_inputs, invalid)
        wrong(set_dense(-1, 3, float_val=[0]), invalid)
        wrong(set_dense(3, 3, float_val=[float("nan")]), invalid)
        wrong(set_dense(3, 3, tensor_content=b"abc"), invalid)
        wrong(set_dense(3, 3, dtype=9999), invalid)
        set_dense(3, 3, float_val=[0])(request)  # the last value is repeated
        assert predictions.Predict(request).model_spec.version.value == 1
