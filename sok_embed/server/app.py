"""The HTTP application of a server, and its gRPC service."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
import orjson
from fastapi import FastAPI
from grpc_interceptor import AsyncExceptionToStatusInterceptor
from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from tensorflow.core.framework import types_pb2

from sok_embed.server.batching import Overloaded
from sok_embed.server.values import InvalidRequest, short

_arguments, sys.argv = sys.argv, sys.argv[:1]
try:  # KServe reads the command line when it is imported
    from kserve import ModelRepository
    from kserve.errors import (
        InferenceError,
        InvalidInput,
        ModelNotFound,
        ModelNotReady,
        ServerNotReady,
    )
    from kserve.protocol.dataplane import DataPlane
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import (
        add_GRPCInferenceServiceServicer_to_server,
    )
    from kserve.protocol.grpc.servicer import InferenceServicer
    from kserve.protocol.model_repository_extension import ModelRepositoryExtension
    from kserve.protocol.rest.server import metrics_handler
    from kserve.protocol.rest.v2_endpoints import register_v2_endpoints

    from sok_embed.server.inference_protocol import read_request
    from sok_embed.server.model import ServedModel
finally:
    sys.argv = _arguments

_log = logging.getLogger("sok_embed.server")

_JSON_LENGTH = "inference-header-content-length"
_REFUSED = Counter("sok_embed_refused", "Requests that were refused, by their status.", ["status"])
_STATUSES: dict[type[Exception], tuple[int, grpc.StatusCode]] = {
    InvalidRequest: (400, grpc.StatusCode.INVALID_ARGUMENT),
    InvalidInput: (400, grpc.StatusCode.INVALID_ARGUMENT),
    InferenceError: (500, grpc.StatusCode.INTERNAL),
    ModelNotFound: (404, grpc.StatusCode.NOT_FOUND),
    FloatingPointError: (500, grpc.StatusCode.INTERNAL),
    NotImplementedError: (501, grpc.StatusCode.UNIMPLEMENTED),
    ModelNotReady: (503, grpc.StatusCode.UNAVAILABLE),
    ServerNotReady: (503, grpc.StatusCode.UNAVAILABLE),
    Overloaded: (503, grpc.StatusCode.RESOURCE_EXHAUSTED),
}


def make_app(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    version: tuple[int, int] | None = None,
    poll_seconds: float = 1.0,
    max_batch: int = 1024,
    max_waiting: int = 8192,
    max_bytes: int = 2**20,
    threads: int = 1,
    grpc_address: str | None = None,
) -> Starlette:
    """Returns an ASGI application that serves the newest version in a folder.

    It speaks TensorFlow Serving's REST protocol, which KServe calls V1, and the Open Inference
    Protocol, V2, and answers SageMaker's `/ping` and `/invocations`. The version is loaded when
    the application starts.

    Args:
        path: The folder of all versions, as `sok_embed.serving.load` takes it.
        name: The name of the model in both protocols; `None`: the name of the folder.
        version: The version to answer from, such as `(1, 7)`; `None`: the newest, which is
            followed.
        poll_seconds: The seconds between two looks for newer versions and deltas.
        max_batch: The most examples of a request, and of a batch of several requests.
        max_waiting: The most examples that wait for an answer; more are refused.
        max_bytes: The most bytes of a request.
        threads: The number of batches that the model works on at a time.
        grpc_address: The address for the gRPC service of the Open Inference Protocol, such as
            `"127.0.0.1:8081"`; `None`: there is none.

    Returns:
        The application.

    Raises:
        ImportError: Without KServe: `pip install "sok-embed[serve]"`.
    """
    root = os.fspath(path)
    name = name or os.path.basename(os.path.abspath(root.partition("://")[2] or root))
    model = ServedModel(name, root, version, poll_seconds, max_batch, max_waiting, threads)
    models = ModelRepository()
    models.update(model)
    plane, extension = _Plane(models), _Extension(models)

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(model.run())
        server = None
        if grpc_address is not None:
            server = await _serve_grpc(plane, extension, model, grpc_address, max_bytes)
        yield
        loading.cancel()
        if server is not None:
            await server.stop(grace=10)
        model.stop()

    # FastAPI takes a third of a millisecond for a request: it has the routes that are seldom asked.
    others = FastAPI(openapi_url=None)
    others.add_api_route("/", plane.live)
    others.add_api_route("/metrics", metrics_handler, response_model=None)
    register_v2_endpoints(others, plane, extension)
    routes = _Routes(plane, model, max_bytes)
    handlers = dict.fromkeys((*_STATUSES, HTTPException, ClientDisconnect, Exception), _refuse)
    for kind, handler in handlers.items():
        others.add_exception_handler(kind, handler)
    return Starlette(
        routes=[*routes.all(), Mount("/", others)], exception_handlers=handlers, lifespan=running
    )


class _Plane(DataPlane):
    """KServe's access to models, which is ready when its model is."""

    async def ready(self) -> bool:
        return all([await each.healthy() for each in self.model_registry.get_models().values()])


class _Extension(ModelRepositoryExtension):
    """Refuses to load and unload models by requests."""

    async def load(self, model_name: str) -> None:
        raise NotImplementedError("The model is the newest version in its folder.")

    async def unload(self, model_name: str) -> None:
        raise NotImplementedError("The model is the newest version in its folder.")


class _Routes:
    """The routes that KServe does not have, or has without versions.

    Args:
        plane: KServe's access to models.
        model: The model.
        most: The most bytes of a request.
    """

    def __init__(self, plane: DataPlane, model: ServedModel, most: int) -> None:
        self._plane, self._model, self._most = plane, model, most

    def all(self) -> list[Route]:
        """Returns the routes."""
        v1, v2 = "/v1/models/{model_name:str}", "/v2/models/{model_name:str}"
        of_versions = [
            route
            for version in ("", "/versions/{model_version:str}")
            for route in (
                Route(f"{v1}{version}:predict", self.predict, methods=["POST"]),
                Route(f"{v2}{version}/infer", self.infer, methods=["POST"]),
                Route(f"{v1}{version}", self.status),
                Route(f"{v1}{version}/metadata", self.metadata),
            )
        ]
        of_version = f"{v2}/versions/{{model_version:str}}"
        return [
            *of_versions,
            Route(of_version, self.tensors),
            Route(f"{of_version}/ready", self.is_ready),
            Route("/v1/models", self.models),
            Route("/invocations", self.predict, methods=["POST"]),
            Route("/ping", self.ping),
        ]

    async def predict(self, request: Request) -> Response:
        """Answers `:predict` of TensorFlow Serving's protocol, and SageMaker's `/invocations`."""
        body = await self._content(request)
        try:
            given = orjson.loads(body)
        except ValueError as error:
            raise InvalidRequest(f"Expected JSON. Received: {error}.") from error
        if type(given) is not dict:
            raise InvalidRequest(f"Expected an object. Received: {short(given)}.")
        given["model_version"] = request.path_params.get("model_version")
        name = request.path_params.get("model_name", self._model.name)
        answer, _ = await self._plane.infer(name, given, {"content-length": str(len(body))})
        return _json(answer)

    async def infer(self, request: Request) -> Response:
        """Answers `infer` of the Open Inference Protocol."""
        body = await self._content(request)
        name = request.path_params["model_name"]
        asked = read_request(body, request.headers.get(_JSON_LENGTH), name)
        asked.model_version = request.path_params.get("model_version")
        answer, _ = await self._plane.infer(name, asked, {"content-length": str(len(body))})
        content, json_length = answer.to_rest()
        if json_length is None:
            return _json(content)
        headers = {_JSON_LENGTH: str(json_length)}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def models(self, request: Request) -> Response:
        """Answers the names of models, in the form of KServe."""
        return _json({"models": [self._model.name]})

    async def status(self, request: Request) -> Response:
        """Answers whether the model is ready, in the forms of TensorFlow Serving and of KServe."""
        model_name, version = self._version(request)
        status = {"error_code": "OK", "error_message": ""}
        state = {"version": version, "state": "AVAILABLE", "status": status}
        return _json({"name": model_name, "ready": True, "model_version_status": [state]})

    async def metadata(self, request: Request) -> Response:
        """Answers the signature, in the form of TensorFlow Serving."""
        model_name, version = self._version(request)
        specs = self._model.signature().specs
        signature: dict[str, Any] = {
            kind: {
                name: {
                    "dtype": types_pb2.DataType.Name(spec.dtype.as_datatype_enum),
                    "tensor_shape": {
                        "dim": [
                            {"size": str(-1 if size is None else size), "name": ""}
                            for size in spec.shape.as_list()
                        ],
                        "unknown_rank": False,
                    },
                    "name": f"serving_default_{name}:0",
                }
                for name, spec in given.items()
            }
            for kind, given in specs.items()
        }
        signature["method_name"] = "tensorflow/serving/predict"
        return _json(
            {
                "model_spec": {"name": model_name, "signature_name": "", "version": version},
                "metadata": {"signature_def": {"signature_def": {"serving_default": signature}}},
            }
        )

    async def tensors(self, request: Request) -> Response:
        """Answers the inputs and outputs of a version, in the form of the other protocol."""
        name, _ = self._version(request)
        return _json(await self._plane.model_metadata(name))

    async def is_ready(self, request: Request) -> Response:
        """Answers whether a version is served."""
        name, _ = self._version(request)
        return _json({"name": name, "ready": True})

    async def ping(self, request: Request) -> Response:
        """Answers SageMaker whether the model is ready."""
        return Response(status_code=200 if self._model.ready else 503)

    def _version(self, request: Request) -> tuple[str, str]:
        """Returns the name of the model, and the number of the export that is served."""
        name: str = request.path_params["model_name"]
        model = self._plane.get_model_from_registry(name)
        model.check_version(request.path_params.get("model_version"))
        return name, model.version.partition(".")[0]

    async def _content(self, request: Request) -> bytes:
        """Returns the body of a request, if it is not too long."""
        length = request.headers.get("content-length", "0")
        chunks, size = [], int(length) if length.isdigit() and len(length) < 20 else self._most + 1
        if size <= self._most:
            size = 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > self._most:
                    break
                chunks.append(chunk)
        if size > self._most:
            raise HTTPException(
                413,
                f"Expected at most {self._most} bytes. Received: more. Send several requests.",
                {"connection": "close"},
            )
        return b"".join(chunks)


class _Servicer(InferenceServicer):
    """KServe's gRPC service, with the versions that it leaves out."""

    def __init__(self, plane: DataPlane, extension: ModelRepositoryExtension) -> None:
        super().__init__(plane, extension)
        self._plane = plane

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Answers whether a model, or a version of it, is served."""
        self._check(request)
        return await super().ModelReady(request, context)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Answers the inputs and outputs."""
        self._check(request)
        return await super().ModelMetadata(request, context)

    def _check(self, request: Any) -> None:
        if request.version:
            self._plane.get_model_from_registry(request.name).check_version(request.version)


class _Errors(AsyncExceptionToStatusInterceptor):
    """Gives errors their status in gRPC."""

    async def handle_exception(
        self, ex: Exception, request_or_iterator: Any, context: Any, method_name: str
    ) -> NoReturn:
        """Ends a call with the status of an error."""
        await context.abort(_statuses(ex)[1], _said(ex, method_name))
        raise ex  # not reached


async def _serve_grpc(
    plane: DataPlane,
    extension: ModelRepositoryExtension,
    model: ServedModel,
    address: str,
    most: int,
) -> grpc.aio.Server:
    server = grpc.aio.server(
        interceptors=[_Errors()],
        # Two servers would share a port, and answer in turns.
        options=[("grpc.max_receive_message_length", most), ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=1024,
    )
    add_GRPCInferenceServiceServicer_to_server(_Servicer(plane, extension), server)
    if importlib.util.find_spec("tensorflow_serving") is not None:
        from sok_embed.server.tensorflow_serving import add_services

        add_services(server, model)
    port = server.add_insecure_port(address)
    await server.start()
    _log.info("gRPC listens on %s:%d", address.rpartition(":")[0], port)
    return server


async def _refuse(request: Request, error: Exception) -> Response:
    """Returns the answer to a request that has failed."""
    text = _said(error, request.url.path)
    status, headers = _statuses(error)[0], None
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers
    elif isinstance(error, Overloaded):
        headers = {"retry-after": "1"}
    if not isinstance(error, ClientDisconnect):
        _REFUSED.labels(status).inc()
    return _json({"error": text}, status, headers)


def _statuses(error: Exception) -> tuple[int, grpc.StatusCode]:
    for kind, statuses in _STATUSES.items():
        if isinstance(error, kind):
            return statuses
    return 500, grpc.StatusCode.INTERNAL


def _said(error: Exception, where: str) -> str:
    """Returns the text of an error for a client; logs an error that is not the client's."""
    if isinstance(error, HTTPException):
        return str(error.detail)
    if isinstance(error, tuple(_STATUSES)):
        # Those of KServe repeat what was sent.
        return str(error)[: 200 if type(error).__module__.startswith("kserve") else 1000]
    if not isinstance(error, ClientDisconnect):
        _log.error("%s has failed", where[:100], exc_info=error)
    return "The server has failed. Its log says how."


def _json(content: Any, status: int = 200, headers: Any = None) -> Response:
    body = orjson.dumps(content)
    return Response(body, status, headers, media_type="application/json")
