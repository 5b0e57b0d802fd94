"""TensorFlow Serving's gRPC services, whose messages the package tensorflow-serving-api has."""

from __future__ import annotations

import math
from typing import Any

import grpc
import tensorflow as tf
from kserve.errors import ModelNotFound
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from sok_embed.server.model import ServedModel
from sok_embed.server.values import Array, InvalidRequest, Values, short

# A message may repeat its last value to fill a tensor, up to so many values.
_REPEATED_VALUES = 2**16


def add_services(server: grpc.aio.Server, model: ServedModel) -> None:
    """Adds `PredictionService` and `ModelService` of a model to a gRPC server."""
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(_Predictions(model), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(_Models(model), server)


class _Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers `Predict` and `GetModelMetadata`."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def Predict(self, request: Any, context: Any) -> Any:
        """Answers a request for predictions."""
        wanted = _version_of(request.model_spec, self._model)
        signature = self._model.signature()
        signature.check_names([*request.inputs])
        names = request.output_filter or sorted(signature.specs["outputs"])
        signature.check_outputs(names)
        tensors = {name: _array(name, each) for name, each in request.inputs.items()}
        answer = await self._model.answer(signature.from_tensors(tensors), wanted)
        response = predict_pb2.PredictResponse()
        _describe(response.model_spec, self._model, answer.version.export)
        for name in names:
            response.outputs[name].CopyFrom(tf.make_tensor_proto(answer.outputs[name]))
        return response

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:
        """Answers the signature."""
        _version_of(request.model_spec, self._model)
        if [*request.metadata_field] != ["signature_def"]:
            raise InvalidRequest(
                f"Expected metadata_field 'signature_def'. Received: "
                f"{short([*request.metadata_field])}."
            )
        signatures = get_model_metadata_pb2.SignatureDefMap()
        signature = signatures.signature_def["serving_default"]
        signature.method_name = "tensorflow/serving/predict"
        specs = self._model.signature().specs
        for kind, infos in (("inputs", signature.inputs), ("outputs", signature.outputs)):
            for name, spec in specs[kind].items():
                infos[name].name = f"serving_default_{name}:0"
                infos[name].dtype = spec.dtype.as_datatype_enum
                infos[name].tensor_shape.CopyFrom(spec.shape.as_proto())
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        _describe(response.model_spec, self._model)
        response.metadata["signature_def"].Pack(signatures)
        return response


class _Models(model_service_pb2_grpc.ModelServiceServicer):
    """Answers `GetModelStatus`."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def GetModelStatus(self, request: Any, context: Any) -> Any:
        """Answers the number of the export that is served."""
        _version_of(request.model_spec, self._model)
        response = get_model_status_pb2.GetModelStatusResponse()
        response.model_version_status.add(
            version=_export(self._model),
            state=get_model_status_pb2.ModelVersionStatus.AVAILABLE,
        )
        return response

    async def HandleReloadConfigRequest(self, request: Any, context: Any) -> Any:
        """Refuses to load other models."""
        raise NotImplementedError("The model is the newest version in its folder.")


def _version_of(spec: Any, model: ServedModel) -> str | None:
    """Returns the version that a message asks for, if it asks for the model."""
    if spec.name != model.name:
        raise ModelNotFound(short(spec.name))
    if spec.version_label:
        raise InvalidRequest("Expected a version, or none. Received: a version_label.")
    model.check_signature_name(spec.signature_name)
    wanted = str(spec.version.value) if spec.HasField("version") else None
    model.check_version(wanted)
    return wanted


def _describe(spec: Any, model: ServedModel, export: int | None = None) -> None:
    spec.name, spec.signature_name = model.name, "serving_default"
    spec.version.value = _export(model) if export is None else export


def _export(model: ServedModel) -> int:
    return int(model.version.partition(".")[0])


def _array(name: str, tensor: Any) -> Array:
    """Returns the array of a TensorProto."""
    shape = [each.size for each in tensor.tensor_shape.dim]
    most = max(_REPEATED_VALUES, tensor.ByteSize())
    if min(shape, default=0) < 0 or math.prod(max(1, size) for size in shape) > most:
        raise InvalidRequest(
            f"'{name}': expected a shape of at most {most} values. Received: {short(shape)}."
        )
    try:
        array = tf.make_ndarray(tensor)
    except Exception as error:  # of NumPy and TensorFlow, by many classes
        raise InvalidRequest(
            f"'{name}': expected a tensor. Received: {short(str(error))}."
        ) from error
    if array.dtype == object:
        array = Values(tf.string).array(array.ravel().tolist(), name).reshape(array.shape)
    return array
