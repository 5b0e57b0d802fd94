"""Asks a server by the clients of Triton, whose messages KServe's cannot be beside in a process.

    python triton_client.py HTTP-ADDRESS GRPC-ADDRESS FILE

FILE has tensors by name, by `numpy.savez`. It is replaced by the outputs of each way to ask.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

TYPES = {"f": "FP32", "i": "INT64", "u": "UINT64", "O": "BYTES"}


def asked(kind: Any, client: Any, tensors: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Returns the outputs of a server, and checks what else it answers."""
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("model")
    inputs = []
    for name, array in tensors.items():
        inputs.append(kind.InferInput(name, array.shape, TYPES[array.dtype.kind]))
        inputs[-1].set_data_from_numpy(array, **options)
    names = ["each_row_lengths", "each_values", "score", "vector"]
    outputs = [kind.InferRequestedOutput(name, **options) for name in names]
    found = client.infer("model", inputs, model_version="1", request_id="7", outputs=outputs)
    response = found.get_response()
    if not isinstance(response, dict):
        response = {name: getattr(response, name) for name in ("id", "model_version")}
    assert (response["id"], response["model_version"]) == ("7", "1.0"), response
    (only,) = client.infer("model", inputs, outputs=outputs[2:3]).get_response_outputs()
    assert only == "score", only
    for name, version, given, text in [
        ("other", "", inputs, "Model with name other does not exist"),
        ("model", "2", inputs, "Expected version 1.0 of 'model', which is served"),
        ("model", "", inputs[1:], "Expected the inputs ['dense'"),
    ]:
        try:
            client.infer(name, given, version)
        except tritonclient.grpc.InferenceServerException as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)
    for change in (client.load_model, client.unload_model):
        try:
            change("model")
        except tritonclient.grpc.InferenceServerException:
            continue
        raise AssertionError(change)
    assert client.is_model_ready("model")
    return {name: found.as_numpy(name) for name in names}


def names_of(result: Any) -> list[str]:
    """Returns the names of the outputs of an answer."""
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    return [each["name"] if isinstance(each, dict) else each.name for each in outputs]


for _kind in (tritonclient.http, tritonclient.grpc):
    _kind.InferResult.get_response_outputs = names_of

if __name__ == "__main__":
    _, address, grpc_address, path = sys.argv
    with np.load(path, allow_pickle=True) as file:
        given = dict(file)
    http = tritonclient.http.InferenceServerClient(address)
    answers = {
        "http": asked(tritonclient.http, http, given, binary_data=False),
        "binary": asked(tritonclient.http, http, given, binary_data=True),
        "grpc": asked(
            tritonclient.grpc, tritonclient.grpc.InferenceServerClient(grpc_address), given
        ),
    }
    metadata = {each["name"]: each for each in http.get_model_metadata("model")["inputs"]}
    for name, array in given.items():
        assert metadata[name]["datatype"] == TYPES[array.dtype.kind], metadata
        assert len(metadata[name]["shape"]) == array.ndim, metadata
    np.savez(
        path,
        **{f"{way} {name}": each for way, found in answers.items() for name, each in found.items()},
    )
