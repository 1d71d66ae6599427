"""Figures of a load, from the outcomes of its requests; the definitions are vLLM's."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.cli.bench.serving.outcome import Outcome
from quire.cli.bench.serving.percentiles import percentile
from quire.errors import SettingsError

METRICS = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (50, 90, 99)
GOALS = ("ttft", "tpot", "e2el")  # a request has one of each
MS = 1e3


def load_figures(
    outcomes: Sequence[Outcome], duration_s: float, goals_ms: Mapping[str, float]
) -> dict[str, Any]:
    """Return the figures of a load.

    Args:
        outcomes: Outcome of each request.
        duration_s: From the start of the load to the end of its last request.
        goals_ms: Limits of a good request, by metric, in milliseconds; empty: no goodput.
    """
    good = [outcome for outcome in outcomes if not outcome.error]
    num_input = sum(outcome.num_prompt_tokens for outcome in good)
    num_output = sum(outcome.num_output_tokens for outcome in good)
    figures: dict[str, Any] = {
        "duration_s": duration_s,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        "input_tokens": num_input,
        "output_tokens": num_output,
        "tokens_are_counted": all(outcome.is_counted for outcome in good),
        "peak_concurrency": peak_concurrency(outcomes),
        "waited_for_turn": sum(outcome.turn_wait_s > 0 for outcome in outcomes),
        "turn_wait_ms": summary(sorted(outcome.turn_wait_s * MS for outcome in outcomes)),
        "requests_per_s": len(good) / duration_s,
        "output_tokens_per_s": num_output / duration_s,
        "total_tokens_per_s": (num_input + num_output) / duration_s,
    }
    if goals_ms:
        num_met = sum(meets(outcome, goals_ms) for outcome in good)
        figures |= {"goodput_requests_per_s": num_met / duration_s, "met_goals": num_met}
    return figures | {f"{name}_ms": summary(values(good, name)) for name in METRICS}


def values(outcomes: Iterable[Outcome], metric: str) -> list[float]:
    """Return all values of a metric in milliseconds, in ascending order."""
    found: list[float] = []
    for outcome in outcomes:
        if metric == "itl":
            found += outcome.itls_s
        else:
            value = _value(outcome, metric)
            found += [] if value is None else [value]
    return sorted(value * MS for value in found)


def summary(samples: Sequence[float]) -> dict[str, float] | None:
    """Return mean and percentiles of sorted samples; None if there are none."""
    if not samples:
        return None
    points = {f"p{percent}": percentile(samples, percent) for percent in PERCENTILES}
    return {"mean": statistics.fmean(samples)} | points


def meets(outcome: Outcome, goals_ms: Mapping[str, float]) -> bool:
    """Return whether a request meets all goals; a completion of one token has no TPOT to miss."""
    return all((_value(outcome, name) or 0.0) * MS <= goal for name, goal in goals_ms.items())


def peak_concurrency(outcomes: Iterable[Outcome]) -> int:
    """Return the largest number of requests that were under way at one time."""
    changes = [(outcome.sent_s, 1) for outcome in outcomes]
    changes += [(outcome.end_s, -1) for outcome in outcomes]
    running = peak = 0
    for _, change in sorted(changes):  # at equal times an end comes first
        running += change
        peak = max(peak, running)
    return peak


def parse_goals(texts: Iterable[str]) -> dict[str, float]:
    """Read goals such as `ttft:200`, in milliseconds.

    Raises:
        SettingsError: A metric does not exist, or a limit is no number above 0.
    """
    goals = {}
    for text in texts:
        name, _, limit = text.partition(":")
        try:
            goals[name] = float(limit)
        except ValueError:
            goals[name] = 0.0
        if name not in GOALS or not goals[name] > 0:
            raise SettingsError(
                f"--goodput takes {', '.join(f'{goal}:MILLISECONDS' for goal in GOALS)}, got "
                f"{text!r}"
            )
    return goals


def _value(outcome: Outcome, metric: str) -> float | None:
    match metric:
        case "ttft":
            return outcome.ttft_s
        case "tpot":
            return outcome.tpot_s
        case _:
            return outcome.e2el_s
