"""Reads requests of the Open Inference Protocol over HTTP, with tensors in JSON or as bytes.

KServe's own reader makes lists of bytes, decodes strings, and takes sizes that are negative.
"""

from __future__ import annotations

from typing import Any

import orjson
from kserve import InferInput, InferRequest
from kserve.protocol.infer_type import RequestedOutput

from sok_embed.server.values import InvalidRequest, short


def read_request(body: bytes, json_length: str | None, model_name: str) -> InferRequest:
    """Returns the request in a body: JSON, and then the bytes of tensors that are not in it.

    Args:
        body: The body.
        json_length: The number of bytes of the JSON, in decimal; `None`: all of the body.
        model_name: The name of the model.

    Raises:
        InvalidRequest: For bodies of another form.
    """
    end = len(body)
    if json_length is not None:
        digits = json_length.isascii() and json_length.isdigit() and len(json_length) < 19
        if not digits or int(json_length) > len(body):
            raise InvalidRequest(
                f"Expected a length of the JSON up to {len(body)}. Received: {short(json_length)}."
            )
        end = int(json_length)
    try:
        given = orjson.loads(body[:end])
    except ValueError as error:
        raise InvalidRequest(f"Expected JSON. Received: {error}.") from error
    if type(given) is not dict:
        raise InvalidRequest(f"Expected an object. Received: {short(given)}.")
    inputs = []
    for each in _objects(given, "inputs"):
        data, size = each.get("data"), _parameters(each).get("binary_data_size")
        tensor = InferInput(each["name"], each.get("shape"), _text(each, "datatype"), data)
        if data is None:
            if type(size) is not int or not 0 <= size <= len(body) - end:
                raise InvalidRequest(
                    f"'{short(each['name'])}': expected data, or a binary_data_size of at most "
                    f"{len(body) - end}. Received: {short(size)}."
                )
            tensor._raw_data = body[end : end + size]
            end += size
        elif type(data) is not list:
            raise InvalidRequest(
                f"'{short(each['name'])}': expected data in a list. Received: {short(data)}."
            )
        inputs.append(tensor)
    if json_length is not None and end != len(body):
        raise InvalidRequest(
            f"Expected binary data of {len(body)} bytes with the JSON. Received: {end}."
        )
    identifier = given.get("id")
    return InferRequest(
        model_name=model_name,
        infer_inputs=inputs,
        request_id=None if identifier is None else _text(given, "id"),
        parameters=_parameters(given),
        request_outputs=[
            RequestedOutput(each["name"], _parameters(each))
            for each in (_objects(given, "outputs") if given.get("outputs") else [])
        ],
    )


def _objects(given: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Returns a list of objects that have a name."""
    objects = given.get(key)
    if type(objects) is not list or any(
        type(each) is not dict or type(each.get("name")) is not str for each in objects
    ):
        raise InvalidRequest(
            f"Expected '{key}' to be a list of objects with a name. Received: {short(objects)}."
        )
    return objects


def _parameters(given: dict[str, Any]) -> dict[str, Any]:
    parameters = given.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise InvalidRequest(
            f"Expected 'parameters' to be an object. Received: {short(parameters)}."
        )
    return parameters


def _text(given: dict[str, Any], key: str) -> str:
    text = given.get(key)
    if type(text) is not str:
        raise InvalidRequest(f"Expected '{key}' to be a string. Received: {short(text)}.")
    return text
