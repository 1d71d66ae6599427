"""All that metrics are read from, at the moment of a scrape."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.metrics.engine_facts import EngineFacts
from quire.frontend.metrics.engine_metrics import ReplicaMetrics
from quire.frontend.metrics.histogram import SHORT_TIMES_S, Histogram
from quire.messages import EngineStats, ReplicaStats
from quire.server.http.lifecycle import Lifecycle
from quire.server.keys.account import Account
from quire.server.observe.http_metrics import HTTPMetrics
from quire.server.observe.tool_call_metrics import ToolCallMetrics

ENGINE_STATES = ("ready", "failing", "stalled", "draining", "dead")


@dataclass(frozen=True, slots=True)
class EngineReading:
    """An engine, or one of several replicas.

    Attributes:
        label: Its index, as a label.
        gauges: Its load.
        metrics: What it did.
    """

    label: str
    gauges: ReplicaStats
    metrics: ReplicaMetrics


@dataclass(frozen=True, slots=True)
class Readings:
    """The sources of the metrics of one server.

    Attributes:
        frontend: Frontend, which has the metrics of requests and steps.
        lifecycle: Lifecycle, which has the requests and connections.
        http: Metrics of HTTP requests.
        tool_calls: Metrics of calls of tool servers.
        loop_lag_s: Delay of the event loop.
        num_lines_dropped: Function that returns the number of lines that the access log has lost.
        key_accounts: Function that returns the accounts of the API keys.
    """

    frontend: AsyncFrontend
    lifecycle: Lifecycle
    http: HTTPMetrics = field(default_factory=HTTPMetrics)
    tool_calls: ToolCallMetrics = field(default_factory=ToolCallMetrics)
    loop_lag_s: Histogram = field(default_factory=lambda: Histogram(SHORT_TIMES_S))
    num_lines_dropped: Callable[[], int] = int
    key_accounts: Callable[[], Sequence[Account]] = list

    @property
    def model(self) -> str:
        """Name of the model that clients use."""
        return self.frontend.model_name

    @property
    def stats(self) -> EngineStats:
        """Statistics of the engine after its last step, or of all replicas together."""
        return self.frontend.dispatch.stats

    @property
    def connections(self) -> Collection[object]:
        """The open connections."""
        return self.lifecycle.connections

    @property
    def engine_state(self) -> str:
        """The state of the engine, one of `ENGINE_STATES`."""
        if self.frontend.thread.death is not None:
            return "dead"
        if self.lifecycle.is_draining:
            return "draining"
        if self.frontend.is_stalled:
            return "stalled"
        return "failing" if self._is_failing else "ready"

    @property
    def facts(self) -> EngineFacts:
        """Settings of the engine that metrics show."""
        return self.frontend.observer.facts

    def adapters(self) -> tuple[list[str], list[str]]:
        """Return the names of the adapters of open requests: with output, and still without."""
        states = [stream.completions for stream in self.frontend.dispatch.streams()]
        named = {(s.is_waiting, s.adapter_name) for s in states if s.adapter_name is not None}
        return (
            sorted(name for is_waiting, name in named if not is_waiting),
            sorted(name for is_waiting, name in named if is_waiting),
        )

    def engines(self) -> list[EngineReading]:
        """Return the engine, or each replica."""
        stats, metrics = self.stats, self.frontend.observer.metrics
        gauges = stats.replicas or [self._single(stats)]
        return [
            EngineReading(str(index), each, metrics.of(index)) for index, each in enumerate(gauges)
        ]

    @property
    def _is_failing(self) -> bool:
        """Whether every request fails, as `/readyz` says it."""
        frontend = self.frontend
        return bool(frontend.intake.failing_hooks) or frontend.dispatch.watched_steps.is_failing

    def _single(self, stats: EngineStats) -> ReplicaStats:
        """Return the load of an engine without replicas.

        An abort between two steps is in no statistics until the next step; without open requests
        there is no load.
        """
        dispatch = self.frontend.dispatch
        is_idle = not dispatch.is_shared and not dispatch.streams()
        return ReplicaStats(
            is_up=self.frontend.thread.death is None,
            num_running=0 if is_idle else stats.num_running,
            num_waiting=0 if is_idle else stats.num_waiting,
            is_silent=self.frontend.is_stalled,
            num_blocks=stats.num_blocks,
            num_used_blocks=0 if is_idle else stats.num_used_blocks,
            num_preemptions=stats.num_preemptions,
            num_prefix_queries=stats.num_prefix_queries,
            num_prefix_hits=stats.num_prefix_hits,
        )
