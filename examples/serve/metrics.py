"""Keeps the metrics of the service, in the form that Prometheus reads."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_EXAMPLES = tuple(2**power for power in range(13))


class Metrics:
    """Metrics of one service, in a registry of their own.

    Attributes:
        requests: Requests for predictions, by their status.
        errors: Requests that failed: `invalid`, `overloaded` or `internal`.
        request_seconds: The seconds of a request.
        predict_seconds: The seconds of a call of the model.
        batch_examples: The examples of a call of the model.
        waiting: Examples that wait for a call.
        version: The version that serves.
        delta: The number of the last delta in this version; 0: no delta.
        behind: The number of published deltas that are not served; NaN if it is unknown.
        loads: Loads of versions, by their result.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.requests = Counter(
            "serve_requests", "Requests for predictions.", ["status"], registry=registry
        )
        self.errors = Counter("serve_errors", "Failed requests.", ["kind"], registry=registry)
        for kind in ("invalid", "overloaded", "internal"):
            self.errors.labels(kind)
        self.request_seconds = Histogram(
            "serve_request_seconds", "Seconds of a request.", buckets=_SECONDS, registry=registry
        )
        self.predict_seconds = Histogram(
            "serve_predict_seconds", "Seconds of a batch.", buckets=_SECONDS, registry=registry
        )
        self.batch_examples = Histogram(
            "serve_batch_examples", "Examples of a batch.", buckets=_EXAMPLES, registry=registry
        )
        self.waiting = Gauge("serve_waiting_examples", "Examples that wait.", registry=registry)
        self.version = Gauge("serve_model_version", "The version that serves.", registry=registry)
        self.delta = Gauge("serve_model_delta", "The delta that serves.", registry=registry)
        self.behind = Gauge(
            "serve_model_deltas_behind", "Published deltas that are not served.", registry=registry
        )
        self.loads = Counter("serve_loads", "Loads of versions.", ["result"], registry=registry)
        for result in ("done", "failed"):
            self.loads.labels(result)

    def text(self) -> bytes:
        """Returns all metrics as Prometheus reads them."""
        return bytes(generate_latest(self.registry))
