"""Figures of loads as a table, and as a chart."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.cli.bench.serving.load_chart import Panel, Points, draw_panels
from quire.cli.bench.serving.load_figures import METRICS, values
from quire.cli.bench.serving.load_run import LoadResult
from quire.cli.bench.tables import table_lines

NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}
SHOWN = ("p50", "p99")
MAX_POINTS = 200


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table with a row for each load, and what is to be known about it."""
    loads = figures["loads"]
    yield (
        f"{figures['url']}, model {figures['model']}, {figures['endpoint']}, "
        f"{figures['num_prompts']} requests a load"
    )
    yield ""
    has_goals = bool(figures["goodput_goals_ms"])
    headers = ["rate", "at once", "done", "failed", "req/s", "output tok/s", "total tok/s"]
    headers += ["goodput/s"] if has_goals else []
    yield from table_lines(headers, [_throughput(load, has_goals) for load in loads])
    yield ""
    yield "milliseconds: mean / p50 / p90 / p99"
    times = ["rate", "at once", *(name.upper() for name in METRICS)]
    yield from table_lines(
        times, [[*_key(load), *(_times(load[f"{name}_ms"]) for name in METRICS)] for load in loads]
    )
    for load in loads:
        yield from _remarks(load)


def chart(results: Sequence[LoadResult]) -> str:
    """Return a chart over the loads; of a single load, the distribution of each metric."""
    if len(results) == 1:
        return draw_panels([_distribution(name, results[0]) for name in METRICS])
    x_name, x_label = _axis(results)
    panels = [_over_loads(name, results, x_name, x_label) for name in ("ttft", "itl", "e2el")]
    rates = {"output tokens": "output_tokens_per_s"}
    lines = {
        name: [(float(r.figures[x_name]), float(r.figures[key])) for r in results]
        for name, key in rates.items()
    }
    return draw_panels([*panels, Panel("throughput", x_label, "tokens/s", lines)])


def _throughput(load: Mapping[str, Any], has_goals: bool) -> list[str]:
    rates = [load["requests_per_s"], load["output_tokens_per_s"], load["total_tokens_per_s"]]
    rates += [load["goodput_requests_per_s"]] if has_goals else []
    counts = [str(load["completed"]), str(load["failed"])]
    return [*_key(load), *counts, *(f"{rate:,.2f}" for rate in rates)]


def _key(load: Mapping[str, Any]) -> list[str]:
    rate, limit = load["request_rate"], load["max_concurrency"]
    return [rate if rate == "inf" else f"{rate:g}", "-" if limit is None else str(limit)]


def _times(summary: Mapping[str, float] | None) -> str:
    return "-" if summary is None else " / ".join(f"{value:,.1f}" for value in summary.values())


def _remarks(load: Mapping[str, Any]) -> Iterator[str]:
    name = f"rate {' at once '.join(_key(load))}"
    if load["errors"]:
        counts = ", ".join(f"{error}: {count}" for error, count in load["errors"].items())
        yield f"\n{name}: failed requests by status: {counts}"
    if load["request_rate"] != "inf" and load["waited_for_turn"]:
        yield f"\n{name}: the offered rate was not reached: {_turns(load)}"
    if load["completed"] and not load["tokens_are_counted"]:
        yield f"\n{name}: the server reports no usage; parts of streams are counted as tokens"
    for complaint in load["complaints"]:
        yield f"\n{name}: NOT TRUSTWORTHY: {complaint}"


def _turns(load: Mapping[str, Any]) -> str:
    """Return how the limit of concurrency delayed requests, which no other figure includes."""
    count = load["completed"] + load["failed"]
    wait = load["turn_wait_ms"]
    return (
        f"{load['waited_for_turn']} of {count} requests waited for one of the "
        f"{load['max_concurrency']} under way to end, before they were sent (of all: mean "
        f"{wait['mean']:,.1f} ms, p99 {wait['p99']:,.1f} ms); times begin with the sending"
    )


def _axis(results: Sequence[LoadResult]) -> tuple[str, str]:
    """Return what the loads differ by: the offered rate, else the limit of concurrency."""
    rates = {result.figures["request_rate"] for result in results}
    if len(rates) == len(results) and "inf" not in rates:
        return "request_rate", "offered requests/s"
    limits = {result.figures["max_concurrency"] for result in results}
    if len(limits) == len(results) and None not in limits:
        return "max_concurrency", "requests at once"
    return "requests_per_s", "completed requests/s"


def _over_loads(metric: str, results: Sequence[LoadResult], x_name: str, x_label: str) -> Panel:
    found = [r.figures for r in results if r.figures[f"{metric}_ms"] is not None]
    lines = {
        percent: [(float(f[x_name]), float(f[f"{metric}_ms"][percent])) for f in found]
        for percent in SHOWN
    }
    return Panel(f"{NAMES[metric]} ({metric.upper()})", x_label, "ms", lines)


def _distribution(metric: str, result: LoadResult) -> Panel:
    good = [outcome for outcome in result.outcomes if not outcome.error]
    samples = values(good, metric)
    step = max(1, len(samples) // MAX_POINTS)
    last = max(1, len(samples) - 1)
    points: Points = [(100 * i / last, samples[i]) for i in range(0, len(samples), step)]
    return Panel(f"{NAMES[metric]} ({metric.upper()})", "percent of all", "ms", {metric: points})
