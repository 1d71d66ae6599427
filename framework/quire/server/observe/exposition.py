"""The metrics in the formats of Prometheus, from a registry of their own."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from quire.server.observe.metric import Metric
from quire.server.observe.quire_metrics import QUIRE_METRICS
from quire.server.observe.readings import Readings
from quire.server.observe.vllm_metrics import VLLM_METRICS

METRICS = {
    "quire": QUIRE_METRICS,
    "vllm": VLLM_METRICS,
    "both": (*QUIRE_METRICS, *VLLM_METRICS),
}


class Exposition:
    """Renders the metrics of a server. May be used by any thread.

    Args:
        readings: Sources of the values.
        names: Key of `METRICS`.

    Attributes:
        registry: Registry with these metrics and those of the process.
        shared: Names of the metrics that are the same in all processes of a server.
    """

    def __init__(self, readings: Readings, names: str = "quire") -> None:
        self.shared = frozenset(each.name for each in METRICS[names] if each.is_shared)
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Metrics(METRICS[names], readings))
        ProcessCollector(registry=self.registry)

    def render(self, accept: str = "", collected: Collector | None = None) -> tuple[bytes, str]:
        """Return the metrics, and their content type.

        Args:
            accept: `Accept` header of the request: Prometheus' text format, or OpenMetrics.
            collected: Metrics to render in place of the registry's.
        """
        encoder, content_type = choose_encoder(accept)
        return encoder(collected or self.registry), content_type


class _Metrics(Collector):
    def __init__(self, metrics: tuple[Metric, ...], readings: Readings) -> None:
        self._metrics = metrics
        self._readings = readings

    def collect(self) -> Iterator[Family]:
        return (metric.family(self._readings) for metric in self._metrics)
