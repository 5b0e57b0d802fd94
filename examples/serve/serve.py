"""Serves the newest version of an exported model over HTTP, and loads new versions.

    pip install -r examples/serve/requirements.txt
    python examples/serve/serve.py served --port 8000
    curl localhost:8000/predict -d '{"instances": [{"items": [4, 7]}, {"items": []}]}'

`served` is the folder that `sok_embed.serving.export` has made, with versions in numbered folders.
Requests that come at the same time are answered by one call of the model.

    POST /predict        {"instances": [...]}: an object for each example, with each input by name
                         -> {"predictions": [...], "version": 3}, and "delta" with --follow
    GET /model           the version, and the inputs and outputs of the model
    GET /health/live     200 while the process runs
    GET /health/ready    200 while it has a model and is not ending; 503
    GET /metrics         for Prometheus

A wrong request has the status 4xx and says what was expected. SIGTERM ends the service once all
requests that it has taken are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from batching import Batcher, Overloaded
from fields import InvalidRequest
from metrics import Metrics
from served import Exports, FollowedExports, Served

_LOG = logging.getLogger("serve")


class Service:
    """The service: its handlers, and the version that serves.

    Args:
        options: The options of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._metrics = Metrics()
        self._served: Served | None = None
        self._batcher: Batcher
        self.ending = False
        exports = FollowedExports if options.follow else Exports
        self._exports = exports(options.path, self._refused)

    def app(self) -> web.Application:
        """Returns the application."""
        app = web.Application(client_max_size=self._options.max_bytes)
        app.router.add_post("/predict", self.predict)
        app.router.add_get("/model", self.model)
        app.router.add_get("/health/live", self.live)
        app.router.add_get("/health/ready", self.ready)
        app.router.add_get("/metrics", self.metrics)
        app.cleanup_ctx.append(self._run)
        return app

    async def predict(self, request: web.Request) -> web.Response:
        """Answers examples."""
        begun = time.perf_counter()
        kind = ""
        try:
            predicted = await self._predicted(request)
            text, status = json.dumps(predicted, allow_nan=False), 200  # JSON does not have NaN
        except InvalidRequest as error:
            text, status, kind = str(error), 400, "invalid"
        except web.HTTPRequestEntityTooLarge as error:
            text, status, kind = str(error.text), 413, "invalid"
        except Overloaded as error:
            text, status, kind = str(error), 503, "overloaded"
        except Exception:
            _LOG.exception("A request failed.")
            text, status, kind = (
                "The model failed. The log of the service says why.",
                500,
                "internal",
            )
        self._metrics.requests.labels(status).inc()
        if kind:
            self._metrics.errors.labels(kind).inc()
            text = json.dumps({"error": text})
        self._metrics.request_seconds.observe(time.perf_counter() - begun)
        return web.Response(text=text, status=status, content_type="application/json")

    async def _predicted(self, request: web.Request) -> dict[str, Any]:
        body = await request.read()
        try:
            given = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"Expected JSON. Received: {error}.") from error
        instances = given.get("instances") if isinstance(given, dict) else None
        if not isinstance(instances, list) or not instances:
            raise InvalidRequest(
                'Expected {"instances": [...]} with an entry for each example. Received: '
                f"{str(given)[:80]}."
            )
        most = self._options.max_batch
        if len(instances) > most:
            raise InvalidRequest(
                f"Expected at most {most} instances. Received: {len(instances)}. Send them in "
                "several requests."
            )
        served = self._served
        if served is None:
            raise Overloaded("No version is loaded yet. Ask again later.")
        examples = []
        for number, instance in enumerate(instances):
            try:
                examples.append(served.parse(instance))
            except InvalidRequest as error:
                raise InvalidRequest(f"Instance {number}: {error}") from error
        predictions = await self._batcher.answer(served, examples)
        return {"predictions": predictions, **served.version}

    async def model(self, request: web.Request) -> web.Response:
        """Returns the inputs and outputs of the model."""
        served = self._served
        if served is None:
            return web.json_response({"error": "No version is loaded yet."}, status=503)
        return web.json_response(
            {
                **served.version,
                "inputs": {each.name: each.describe() for each in served.inputs},
                "outputs": {each.name: each.describe() for each in served.outputs},
            }
        )

    async def live(self, request: web.Request) -> web.Response:
        """Answers that the process runs."""
        return web.json_response({"live": True})

    async def ready(self, request: web.Request) -> web.Response:
        """Answers whether requests should be sent to this service."""
        served = self._served
        ready = served is not None and not self.ending
        version = served.version if served else {"version": None}
        return web.json_response({"ready": ready, **version}, status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Returns the metrics."""
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.text(), headers=headers)

    async def _run(self, app: web.Application) -> AsyncIterator[None]:
        options = self._options
        self._batcher = Batcher(
            self._metrics,
            options.max_batch,
            options.max_wait_ms / 1e3,
            options.threads,
            options.max_queue,
        )
        await self._take_up()
        watching = asyncio.create_task(self._watch())
        yield
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await self._batcher.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._options.poll_s)
            await self._take_up()

    async def _take_up(self) -> None:
        """Loads the newest version that can be loaded, and then lets the old one go.

        Requests go on meanwhile. A batch that has begun ends with the version that it began with.
        """
        served = await asyncio.to_thread(self._exports.newest)
        self._metrics.behind.set(await asyncio.to_thread(self._exports.behind))
        if served is None or served is self._served:
            return
        self._served = served
        self._metrics.version.set(served.version["version"])
        self._metrics.delta.set(served.version.get("delta", 0))
        self._metrics.loads.labels("done").inc()
        _LOG.info("%s is served", served.version)

    def _refused(self, folder: str, error: Exception) -> None:
        self._metrics.loads.labels("failed").inc()
        _LOG.warning("%s is not served: %s", folder, error)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("path", help="the folder of all versions")
    add("--host", default="127.0.0.1", help="0.0.0.0 for other machines too")
    add("--port", type=int, default=8000, help="0 for a free one, which is logged")
    add("--max-batch", type=int, default=512, metavar="N", help="examples of a batch or a request")
    add("--max-wait-ms", type=float, default=1.0, metavar="MS", help="wait for others to join")
    add("--threads", type=int, default=1, metavar="N", help="batches at a time")
    add("--max-queue", type=int, default=8192, metavar="N", help="examples that may wait")
    add("--max-bytes", type=int, default=16 << 20, metavar="N", help="bytes of a request")
    add("--poll-s", type=float, default=1.0, metavar="S", help="look for a version so often")
    add("--follow", action="store_true", help="take up what PublishDeltas publishes, too")
    add("--drain-s", type=float, default=0.0, metavar="S", help="serve on at the end, not ready")
    add("--end-s", type=float, default=30.0, metavar="S", help="wait for requests at the end")
    options = parser.parse_args(arguments)
    if not os.path.isdir(options.path):
        parser.error(f"expected the folder of an export. Received: '{options.path}'")
    return options


async def run(options: argparse.Namespace) -> None:
    """Serves until SIGTERM or SIGINT."""
    service = Service(options)
    runner = web.AppRunner(service.app(), access_log=None, shutdown_timeout=options.end_s)
    await runner.setup()
    site = web.TCPSite(runner, options.host, options.port)
    await site.start()
    host, port = runner.addresses[0][:2]
    _LOG.info("listening on http://%s:%d", host, port)
    ended = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    await ended.wait()
    _LOG.info("ending")
    service.ending = True
    await asyncio.sleep(options.drain_s)
    await runner.cleanup()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(run(parse()))
