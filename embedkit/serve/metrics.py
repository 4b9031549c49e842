"""What Prometheus reads at /metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["Metrics", "ModelMetrics"]

_LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_TOKENS = tuple(16 * size for size in _SIZES)


class _Queues(Protocol):
    def queues(self) -> Iterable[tuple[str, int, int]]:
        """Name, waiting requests and waiting tokens of each model."""

    def searches(self) -> int:
        """Searches that run or wait."""

    def truncated(self) -> Iterable[tuple[str, int]]:
        """Name of each model, and how many texts or pairs it has truncated."""


class _QueueCollector(Collector):
    """Reads the queues when it is asked, so that requests do not have to count."""

    def __init__(self, queues: _Queues) -> None:
        self._queues = queues

    def collect(self) -> Iterable[Metric]:
        requests = GaugeMetricFamily(
            "embedkit_queue_requests", "Requests waiting for a model", labels=["model"]
        )
        tokens = GaugeMetricFamily("embedkit_queue_tokens", "Tokens waiting for a model", labels=["model"])
        for name, waiting, size in self._queues.queues():
            requests.add_metric([name], waiting)
            tokens.add_metric([name], size)
        searches = GaugeMetricFamily(
            "embedkit_searches", "Searches that run or wait", self._queues.searches()
        )
        truncated = CounterMetricFamily(
            "embedkit_truncated", "Texts or pairs that were truncated", labels=["model"]
        )
        for name, count in self._queues.truncated():
            truncated.add_metric([name], count)
        return [requests, tokens, searches, truncated]


class ModelMetrics:
    """What one model counts."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        """Label the server's metrics with the name of a model."""
        self.waited = metrics.waited.labels(model)
        self._texts = metrics.texts.labels(model)
        self._tokens = metrics.tokens.labels(model)
        self._batch_texts = metrics.batch_texts.labels(model)
        self._batch_tokens = metrics.batch_tokens.labels(model)
        self._batch_seconds = metrics.batch_seconds.labels(model)

    def observe(self, texts: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self._texts.inc(texts)
        self._tokens.inc(tokens)
        self._batch_texts.observe(texts)
        self._batch_tokens.observe(tokens)
        self._batch_seconds.observe(seconds)


class Metrics:
    """All metrics of a server, in a registry of its own."""

    def __init__(self) -> None:
        """Start from zero."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.requests = Counter(
            "embedkit_requests", "Requests by route and status", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "embedkit_request_seconds",
            "Time from a request's head to its answer",
            ["route"],
            buckets=_LATENCIES,
            registry=registry,
        )
        self.rejected = Counter(
            "embedkit_rejected", "Requests and connections refused", ["reason"], registry=registry
        )
        self.texts = Counter("embedkit_texts", "Texts or pairs computed", ["model"], registry=registry)
        self.tokens = Counter("embedkit_tokens", "Tokens computed", ["model"], registry=registry)
        self.waited = Histogram(
            "embedkit_queue_seconds",
            "Time that a request waits for its first batch",
            ["model"],
            buckets=_LATENCIES,
            registry=registry,
        )
        self.batch_texts = Histogram(
            "embedkit_batch_texts", "Texts of a batch", ["model"], buckets=_SIZES, registry=registry
        )
        self.batch_tokens = Histogram(
            "embedkit_batch_tokens", "Tokens of a batch", ["model"], buckets=_TOKENS, registry=registry
        )
        self.batch_seconds = Histogram(
            "embedkit_batch_seconds", "Time of a batch", ["model"], buckets=_LATENCIES, registry=registry
        )

    def watch(self, queues: _Queues) -> None:
        """Report the lengths of these queues."""
        self.registry.register(_QueueCollector(queues))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
