"""The metrics of several processes of one server as those of one.

Counters, histograms and most gauges are added. What the engine has counted for all is taken once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, str, Labels, float]  # names of its metric and its own, labels, and value
Values = dict[tuple[str, Labels], float]

# Of a process; the sum of these would say nothing.
OF_ONE_PROCESS = frozenset({"process_start_time_seconds", "process_max_fds"})


def samples_of(families: Iterable[Family]) -> list[Sample]:
    """Return the samples of metrics in a form that can be sent."""
    return [
        (family.name, sample.name, tuple(sample.labels.items()), sample.value)
        for family in families
        for sample in family.samples
    ]


class MergedFamilies(Collector):
    """The metrics of a server with several processes.

    Args:
        own: Metrics of the process that merges.
        others: Samples of the other processes.
        ended: Samples of processes that are gone; only what they have counted remains.
        shared: Names of the metrics that are taken from `own` alone.
    """

    def __init__(
        self,
        own: Iterable[Family],
        others: Iterable[Sequence[Sample]],
        ended: Iterable[Sequence[Sample]],
        shared: frozenset[str],
    ) -> None:
        self._own = list(own)
        self._others = _by_family(others)
        self._ended = _by_family(ended)
        self._shared = shared | OF_ONE_PROCESS

    def collect(self) -> Iterator[Family]:
        """Yield the merged metrics."""
        return map(self._merged, self._own)

    def _merged(self, family: Family) -> Family:
        full_name = f"{family.name}_total" if family.type == "counter" else family.name
        if full_name in self._shared:
            return family
        values: Values = {}
        _add(values, samples_of([family]))
        _add(values, self._others[family.name])
        if family.type != "gauge":
            _add(values, self._ended[family.name])
        merged = Family(family.name, family.documentation, family.type, family.unit)
        for (name, labels), value in values.items():
            merged.add_sample(name, dict(labels), value)
        return merged


def _by_family(processes: Iterable[Sequence[Sample]]) -> defaultdict[str, list[Sample]]:
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for samples in processes:
        for sample in samples:
            found[sample[0]].append(sample)
    return found


def _add(values: Values, samples: Iterable[Sample]) -> None:
    """Add the values of samples to those with the same name and labels."""
    for _, name, labels, value in samples:
        values[name, labels] = values.get((name, labels), 0.0) + value
