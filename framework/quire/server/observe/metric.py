"""A metric: its name, its type, its labels, and how it is read."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from quire.frontend.metrics.histogram import Histogram
from quire.server.observe.readings import EngineReading, Readings

Labels = tuple[str, ...]
Rows = Iterable[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric without its values.

    Attributes:
        name: Name as a query spells it, with `_total` if it is a counter.
        help: What it measures.
        labels: Names of its labels.
        is_shared: Whether all processes that serve one engine have the same values, as of what the
            engine has counted; otherwise theirs are added.
    """

    name: str
    help: str
    labels: Labels
    is_shared: bool = field(default=False, kw_only=True)

    kind = "untyped"

    def family(self, readings: Readings) -> Family:
        """Return its current values."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A value that rises and falls."""

    read: Callable[[Readings], Rows]

    kind = "gauge"

    def family(self, readings: Readings) -> Family:
        """Return its current values."""
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in self.read(readings):
            family.add_metric(labels, value)
        return family


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A value that only grows."""

    read: Callable[[Readings], Rows]

    kind = "counter"

    def family(self, readings: Readings) -> Family:
        """Return its current values."""
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in self.read(readings):
            family.add_metric(labels, value)
        return family


@dataclass(frozen=True, slots=True)
class Summary(Metric):
    """A number of observations and their sum."""

    read: Callable[[Readings], Iterable[tuple[Labels, int, float]]]

    kind = "summary"

    def family(self, readings: Readings) -> Family:
        """Return its current values."""
        family = SummaryMetricFamily(self.name, self.help, labels=self.labels)
        for labels, count, total in self.read(readings):
            family.add_metric(labels, count, total)
        return family


@dataclass(frozen=True, slots=True)
class Buckets(Metric):
    """A histogram."""

    read: Callable[[Readings], Iterable[tuple[Labels, Histogram]]]

    kind = "histogram"

    def family(self, readings: Readings) -> Family:
        """Return its current values."""
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, histogram in self.read(readings):
            bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
            counts = zip(bounds, histogram.cumulative_counts(), strict=True)
            family.add_metric(labels, list(counts), histogram.total)
        return family


def of_engines(read: Callable[[EngineReading], float]) -> Callable[[Readings], Rows]:
    """Return a function that reads a value of each engine."""
    return lambda readings: [((each.label,), read(each)) for each in readings.engines()]


def histogram_of_engines(
    read: Callable[[EngineReading], Histogram],
) -> Callable[[Readings], Iterator[tuple[Labels, Histogram]]]:
    """Return a function that reads a histogram of each engine."""
    return lambda readings: (((each.label,), read(each)) for each in readings.engines())


def counts_of_engines(
    read: Callable[[EngineReading], dict[str, int]],
) -> Callable[[Readings], Rows]:
    """Return a function that reads the counts of each engine, by a further label."""
    return lambda readings: [
        ((each.label, key), count)
        for each in readings.engines()
        for key, count in sorted(read(each).items())
    ]
