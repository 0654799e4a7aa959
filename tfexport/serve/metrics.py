"""Metrics of a server, in the text format of Prometheus."""

from collections.abc import Callable, Iterator
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tfexport.runtime.scheduler import Observer, SchedulerStats

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Stats = Callable[[], dict[str, SchedulerStats]]  # per model, by name


class Metrics:
    """The metrics of one server.

    Attributes:
        characters: the number of characters of all texts that were translated.
    """

    def __init__(self, stats: Stats) -> None:
        """Start at zero.

        Args:
            stats: returns the state of the schedulers when the metrics are read.
        """
        self.characters = 0
        self._registry = registry = CollectorRegistry()
        registry.register(_Queues(stats))
        ProcessCollector(registry=registry)  # memory, processor time and open files, on Linux
        labels = ["route", "code", "model"]
        self._requests = Counter(
            "tfexport_requests", "Requests that were answered.", labels, registry=registry
        )
        self._seconds = Histogram(
            "tfexport_request_seconds",
            "From a request's arrival to the end of its response.",
            ["route"], buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        # prometheus_client looks a series up more slowly: it makes texts of labels, with a lock.
        self._request_count = cache(
            lambda route, code, model: self._requests.labels(route, str(code), model)
        )
        self._request_seconds = cache(self._seconds.labels)
        self.active = Gauge(
            "tfexport_active_requests", "Requests that are being answered.", registry=registry
        )
        self.reloads = Counter(
            "tfexport_reloads", "Bundles that were opened again.", ["model", "outcome"],
            registry=registry,
        )  # fmt: skip
        self._add_rows()

    def _add_rows(self) -> None:
        """Add the metrics of rows, with a series for each model; ``ModelObserver`` counts them."""

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ["model"], buckets=buckets, registry=self._registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model"], registry=self._registry)

        self.batch = histogram("tfexport_batch_rows", "Rows of a step.", _ROWS)
        self.queued = histogram("tfexport_queue_seconds", "A row's wait before decoding.", _SECONDS)
        self.first = histogram(
            "tfexport_time_to_first_token_seconds", "From a row's arrival to its token.", _SECONDS
        )
        self.generated = counter("tfexport_generated_tokens", "Tokens of translations.")
        self.encoded = counter("tfexport_source_tokens", "Tokens of sources.")
        self.unknown = counter(
            "tfexport_unknown_tokens", "Tokens of sources that the model does not know."
        )
        self.cut = counter(
            "tfexport_cut_rows", "Translations that ended at the longest length, not by themselves."
        )
        self.heard = counter("tfexport_sound_seconds", "Seconds of sound to transcribe.")

    def answered(self, route: str, code: int, model: str, seconds: float) -> None:
        """Count a request."""
        self._request_count(route, code, model).inc()
        self._request_seconds(route).observe(seconds)

    def text(self) -> bytes:
        """All metrics, in the text format of Prometheus."""
        return generate_latest(self._registry)


class ModelObserver(Observer):
    """Counts the events of a model's scheduler."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._batch, self._queued = metrics.batch.labels(model), metrics.queued.labels(model)
        self._first, self._generated = metrics.first.labels(model), metrics.generated.labels(model)
        self._encoded, self._unknown = metrics.encoded.labels(model), metrics.unknown.labels(model)
        self._cut, self._heard = metrics.cut.labels(model), metrics.heard.labels(model)

    def batch(self, rows: int) -> None:
        """See ``Observer``."""
        self._batch.observe(rows)

    def queued(self, seconds: float) -> None:
        """See ``Observer``."""
        self._queued.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """See ``Observer``."""
        self._first.observe(seconds)

    def generated(self, tokens: int) -> None:
        """See ``Observer``."""
        self._generated.inc(tokens)

    def encoded(self, tokens: int) -> None:
        """See ``Observer``."""
        self._encoded.inc(tokens)

    def unknown(self, tokens: int) -> None:
        """Count source tokens that the model does not know."""
        self._unknown.inc(tokens)

    def cut(self, rows: int) -> None:
        """Count rows that were cut."""
        self._cut.inc(rows)

    def heard(self, seconds: float) -> None:
        """Count the seconds of a sound."""
        self._heard.inc(seconds)


class _Queues(Collector):
    """The rows of all schedulers when the metrics are read."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing: no models are open yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One gauge with a value for every model."""
        figures = {
            "tfexport_queue_requests": ("Requests with rows that wait.", "waiting_requests"),
            "tfexport_queue_rows": ("Rows that wait.", "waiting_rows"),
            "tfexport_running_rows": ("Rows that are being decoded.", "running_rows"),
            "tfexport_slots": ("Rows that can be decoded at a time.", "slots"),
        }
        found = self._stats()
        for name, (text, attribute) in figures.items():
            family = GaugeMetricFamily(name, text, labels=["model"])
            for model, stats in found.items():
                family.add_metric([model], getattr(stats, attribute))
            yield family
