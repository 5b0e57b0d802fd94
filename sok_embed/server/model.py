"""The model that a server of KServe answers from: the newest version in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from kserve import InferOutput, InferRequest, InferResponse, Model
from kserve.errors import ModelNotFound, ModelNotReady
from kserve.metrics import PREDICT_HIST_TIME, get_labels
from kserve.model import InferenceVerb
from prometheus_client import Gauge

from sok_embed import serving
from sok_embed.server.batching import Answer, Batcher
from sok_embed.server.requests import Examples, Signature
from sok_embed.server.values import (
    Array,
    InvalidRequest,
    Values,
    check_finite,
    listed,
    short,
)

_log = logging.getLogger("sok_embed.server")

_Found = TypeVar("_Found")

_SIGNATURE = "serving_default"
# The seconds between two looks for deltas that are published and not served.
_BEHIND_S = 5.0
# The bytes from which on a request is read in a thread.
_LONG = 1 << 16
# The names of types in the Open Inference Protocol.
_DATATYPES = {
    tf.string: "BYTES",
    tf.bool: "BOOL",
    tf.float16: "FP16",
    tf.bfloat16: "FP32",  # KServe has no name for it; values are rounded
    tf.float32: "FP32",
    tf.float64: "FP64",
    **{tf.as_dtype(f"{sign}int{bits}"): f"{sign}int{bits}".upper()
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_VALUES = {text: Values(dtype) for dtype, text in _DATATYPES.items() if dtype != tf.bfloat16}
_OF_ARRAYS = {np.dtype(dtype.as_numpy_dtype): text for dtype, text in _DATATYPES.items()}

_VERSION = Gauge("sok_embed_model_version", "The number of the export that is served.")
_DELTA = Gauge("sok_embed_model_delta", "The number of the last delta that is served.")
_BEHIND = Gauge("sok_embed_deltas_behind", "Published deltas that are not served; NaN: unknown.")


class VersionNotFound(ModelNotFound):
    """A request for a version that is not the one that is served."""

    def __init__(self, name: str, served: str, wanted: str) -> None:
        super().__init__(name)
        self.reason = (
            f"Expected version {served} of '{name}', which is served. Received: {short(wanted)}."
        )


class ServedModel(Model):
    """Answers requests of both protocols of KServe from the newest version in a folder.

    Args:
        name: The name of the model in the protocols.
        path: The folder of all versions, as `sok_embed.serving.load` takes it.
        version: The version to answer from; `None`: the newest, which is followed.
        poll_seconds: The seconds between two looks for newer versions and deltas.
        max_batch: The most examples of a batch.
        max_waiting: The most examples that wait for an answer.
        threads: The number of batches that the model works on at a time.
    """

    def __init__(
        self,
        name: str,
        path: str,
        version: tuple[int, int] | None,
        poll_seconds: float,
        max_batch: int,
        max_waiting: int,
        threads: int,
    ) -> None:
        super().__init__(name)
        self._path, self._version, self._poll_seconds = path, version, poll_seconds
        self._limits = (max_batch, max_waiting, threads)
        self._said = ""
        self._live: serving.LiveModel
        self._signature: Signature
        self._batcher: Batcher
        self._seconds = PREDICT_HIST_TIME.labels(**get_labels(name))

    def load(self) -> bool:
        """Returns whether a version is loaded; `run` loads it."""
        return bool(self.ready)

    async def run(self) -> None:
        """Loads a version as soon as one can be loaded, and then watches that it is the newest."""
        await self.try_to_load()
        while not self.ready:
            await asyncio.sleep(self._poll_seconds)
            await self.try_to_load()
        export = self._live.version.export
        while self.ready:  # an object store may take its time to say it
            if export != (export := self._live.version.export):
                _log.info("version %s of %s is served", tuple(self._live.version), self._path)
            _BEHIND.set(await asyncio.to_thread(_behind, self._live))
            await asyncio.sleep(_BEHIND_S)

    async def try_to_load(self) -> None:
        """Loads a version, which is then followed; logs what is in the way, once."""
        try:
            await asyncio.to_thread(self._load)
        except Exception as error:
            if self._said != str(error):
                self._said = str(error)
                _log.warning("no version is served yet: %s", error)
            return
        # Python looks through all objects now and then, which takes a quarter of a second with
        # those of TensorFlow.
        gc.collect()
        gc.freeze()
        _log.info("version %s of %s is served", tuple(self._live.version), self._path)

    def _load(self) -> None:
        follow = self._version is None
        live = serving.load(
            self._path, version=self._version, follow=follow, poll_seconds=self._poll_seconds
        )
        try:
            signature = Signature(live.snapshot.inputs, live.snapshot.outputs, self._limits[0])
            with contextlib.suppress(tf.errors.InvalidArgumentError):  # a model may refuse zeros
                live(**signature.zeros())
        except BaseException:
            live.close()
            raise
        self._live, self._signature = live, signature
        self._batcher = Batcher(signature, lambda: live.snapshot, *self._limits)
        _VERSION.set_function(lambda: live.version.export)
        _DELTA.set_function(lambda: live.version.delta)
        self.ready = True

    def stop(self) -> None:
        """Stops following."""
        if self.ready:
            self.ready = False
            self._live.close()
            self._batcher.close()

    def signature(self) -> Signature:
        """Returns the inputs and outputs; raises ModelNotReady before a version is loaded."""
        if not self.ready:
            raise ModelNotReady(self.name)
        return self._signature

    @property
    def version(self) -> str:
        """The version that is served now, as `"1.7"` of an export and a delta."""
        self.signature()
        return _text(self._live.version)

    def get_input_types(self) -> list[dict[str, Any]]:
        """Returns the inputs for the metadata of the Open Inference Protocol."""
        return _types(self.signature().specs["inputs"])

    def get_output_types(self) -> list[dict[str, Any]]:
        """Returns the outputs for the metadata of the Open Inference Protocol."""
        return _types(self.signature().specs["outputs"])

    async def __call__(
        self,
        body: dict[str, Any] | InferRequest,
        headers: dict[str, str] | None = None,
        verb: InferenceVerb = InferenceVerb.PREDICT,
    ) -> tuple[dict[str, Any] | InferResponse, dict[str, str]]:
        """Answers a request; `kserve.Model` measures two times more, and has room to change it."""
        if verb != InferenceVerb.PREDICT:
            raise NotImplementedError("The model has predictions alone.")
        with self._seconds.time():
            return await self.predict(body, headers), {}

    async def predict(
        self, payload: dict[str, Any] | InferRequest, headers: dict[str, str] | None = None
    ) -> dict[str, Any] | InferResponse:
        """Answers a request of TensorFlow Serving's protocol, or of the Open Inference Protocol.

        Args:
            payload: The request; in a dict `"model_version"` is the version of its address.
            headers: The headers of the request; a long one is read in a thread, so that others
                go on.

        Raises:
            InvalidRequest: For a request that the client has to change.
            sok_embed.server.batching.Overloaded: If too many examples wait.
            VersionNotFound: If another version is served than is asked for.
            kserve.errors.ModelNotReady: If no version is loaded yet.
            FloatingPointError: For NaN and infinity in an answer in JSON.
        """
        signature = self.signature()
        if isinstance(payload, InferRequest):
            signature.check_names([each.name for each in payload.inputs])
            signature.check_outputs([each.name for each in payload.request_outputs or []])
            tensors = await _aside(_length(payload, headers), _tensors, payload)
            examples = signature.from_tensors(tensors)
            return _response(payload, await self.answer(examples, payload.model_version))
        self.check_signature_name(payload.get("signature_name", _SIGNATURE))
        if ("instances" in payload) == ("inputs" in payload):
            raise InvalidRequest(
                'Expected either "instances": [...], with an entry for each example, or "inputs": '
                f"{{...}}. Received: {short([*payload])}."
            )
        by_rows = "instances" in payload
        parse = signature.from_rows if by_rows else signature.from_columns
        given = payload["instances" if by_rows else "inputs"]
        examples = await _aside(_length(payload, headers), parse, given)
        answer = await self.answer(examples, payload.get("model_version"))
        version = _text(answer.version)
        if by_rows:
            return {"predictions": signature.rows(answer.outputs), "model_version": version}
        outputs: Any = {name: listed(name, each) for name, each in answer.outputs.items()}
        return {
            "outputs": outputs if len(outputs) > 1 else next(iter(outputs.values())),
            "model_version": version,
        }

    async def answer(self, examples: Examples, wanted: str | None) -> Answer:
        """Returns the answer to examples, if it is from the version that is wanted.

        Raises:
            VersionNotFound: If it is from another version.
        """
        answer = await self._batcher.answer(examples)
        self._check(answer.version, wanted)
        return answer

    def check_version(self, wanted: str | None) -> None:
        """Raises VersionNotFound unless a version is served, as `"1"` or `"1.7"`."""
        self.signature()
        self._check(self._live.version, wanted)

    def check_signature_name(self, name: Any) -> None:
        """Raises InvalidRequest for another signature than that of exports."""
        if name not in (_SIGNATURE, "serve", ""):
            raise InvalidRequest(f"Expected the signature '{_SIGNATURE}'. Received: {short(name)}.")

    def _check(self, version: serving.Version, wanted: str | None) -> None:
        if wanted and wanted not in (str(version.export), _text(version)):
            raise VersionNotFound(self.name, _text(version), wanted)


def _behind(live: serving.LiveModel) -> float:
    try:
        return live.deltas_behind()
    except Exception:  # CURRENT.json cannot be read
        return float("nan")


def _text(version: serving.Version) -> str:
    return f"{version.export}.{version.delta}"


def _types(specs: dict[str, tf.TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": _DATATYPES[spec.dtype],
            "shape": [-1 if size is None else size for size in spec.shape.as_list()],
        }
        for name, spec in specs.items()
    ]


def _tensors(request: InferRequest) -> dict[str, Array]:
    """Returns the tensors of a request of the Open Inference Protocol by their names."""
    tensors: dict[str, Array] = {}
    for each in request.inputs:
        name, values, shape = each.name, _VALUES.get(each.datatype), each.shape
        if values is None:
            raise InvalidRequest(
                f"'{name}': expected one of {', '.join(_VALUES)}. Received: {short(each.datatype)}."
            )
        if type(shape) is not list or any(type(n) is not int or n < 0 for n in shape):
            raise InvalidRequest(f"'{name}': expected a shape. Received: {short(shape)}.")
        try:
            if each._raw_data is None:
                array = values.array(_flat(each.data), name).reshape(shape)
            else:
                array = each.as_numpy()
        except InvalidRequest:
            raise
        except Exception as error:  # of NumPy and of KServe, by many classes
            raise InvalidRequest(
                f"'{name}': expected as many values as the shape {short(shape)} has. Received: "
                f"{str(error)[:100]}."
            ) from error
        tensors[name] = array
    return tensors


def _length(payload: Any, headers: Mapping[str, str] | None) -> int:
    """Returns about how many bytes a request has."""
    if isinstance(payload, InferRequest) and payload.from_grpc:
        return sum(len(each._raw_data or ()) + 8 * len(each.data or ()) for each in payload.inputs)
    return int((headers or {}).get("content-length", 0))


async def _aside(length: int, function: Callable[..., _Found], *arguments: Any) -> _Found:
    """Calls a function, for a long request in a thread, so that other requests go on."""
    if length < _LONG:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _flat(data: Any) -> list[Any]:
    """Returns the values of a list, which may be nested, in their order."""
    while type(data) is list and data and set(map(type, data)) == {list}:
        data = [value for each in data for value in each]
    return data if type(data) is list else [data]


def _response(request: InferRequest, answer: Answer) -> InferResponse:
    wanted = request.request_outputs
    names = [each.name for each in wanted] if wanted else [*answer.outputs]
    outputs = []
    for name in names:
        array = answer.outputs[name]
        if not (request.from_grpc or _is_binary(request, name)):
            check_finite(name, array)
        datatype = _OF_ARRAYS[array.dtype]
        if datatype == "FP32":  # bfloat16 too
            array = array.astype(np.float32, copy=False)
        output = InferOutput(name, list(array.shape), datatype)
        if request.from_grpc:
            output.set_data_from_numpy(array)
        else:
            output.data = array
        outputs.append(output)
    return InferResponse(
        response_id=request.id or "",
        model_name=request.model_name,
        model_version=_text(answer.version),
        infer_outputs=outputs,
        use_binary_outputs=request.use_binary_outputs and not request.from_grpc,
        requested_outputs=wanted,
        from_grpc=request.from_grpc,
    )


def _is_binary(request: InferRequest, name: str) -> bool:
    for each in request.request_outputs or []:
        if each.name == name:
            return bool(each.binary_data)
    return bool(request.use_binary_outputs)
