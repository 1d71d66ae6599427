"""Figures of a simulated cluster, and the checks of a routing policy against them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quire.cli.bench.cluster.virtual_cluster import ClusterTrace

HIT_SHARE = 0.95  # of the oracle's hits, that a policy must have
HERD_FACTOR = 3.0  # of the fair share, that a restarted replica may get
HERD_FLOOR = 3.0  # requests beyond it, where the fair share is a few


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """Figures of one policy; times in virtual seconds.

    Attributes:
        num_lost: Number of requests that never ended.
        num_wrong: Number of requests that ended with another number of tokens than they asked
            for, were run more often than once and once again, or got outputs after their end.
        hit_rate: Fraction of the prompts' tokens that was found in a prefix cache.
        worst_excess: Largest excess of load over the least loaded replica, beyond the hit.
        worst_herd: Largest number of requests of a restarted replica in the next second, less
            the bound for its fair share; at most 0 if there was no herd.
        imbalance: Mean over time of the largest load less the mean load, in tokens.
    """

    num_requests: int
    num_finished: int
    num_failed: int
    num_run_again: int
    num_lost: int
    num_wrong: int
    hit_rate: float
    first_token_s_median: float
    first_token_s_99: float
    worst_excess: float
    worst_herd: float
    imbalance: float
    end_s: float

    @classmethod
    def of(cls, trace: ClusterTrace) -> "PolicyFigures":
        """Return the figures of a run."""
        requests = list(trace.requests.values())
        finished = [each for each in requests if each.end == "finished"]
        first = sorted(
            each.first_token_s - each.arrival_s
            for each in requests
            if each.first_token_s is not None
        )
        wrong = [each for each in finished if each.num_tokens != each.request.max_tokens]
        too_often = [each for each in requests if not 1 <= each.num_runs <= 2]
        return cls(
            num_requests=len(requests),
            num_finished=len(finished),
            num_failed=sum(each.end == "failed" for each in requests),
            num_run_again=sum(each.num_runs > 1 for each in requests),
            num_lost=sum(each.end is None for each in requests),
            num_wrong=len(wrong) + len(too_often) + trace.num_unexpected,
            hit_rate=trace.num_cached_tokens / max(1, trace.num_prompt_tokens),
            first_token_s_median=_quantile(first, 0.5),
            first_token_s_99=_quantile(first, 0.99),
            worst_excess=trace.worst_excess,
            worst_herd=max((_herd(*herd) for herd in trace.herds), default=0.0),
            imbalance=sum(trace.imbalances) / max(1, len(trace.imbalances)),
            end_s=trace.end_s,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


def checks(figures: Mapping[str, PolicyFigures]) -> dict[str, bool]:
    """Return what holds of the policies by cached prefix, and of all policies, by description."""
    ours, oracle = figures.get("prefix"), figures.get("oracle")
    found = {
        "no request is lost": all(each.num_lost == 0 for each in figures.values()),
        "no request runs twice": all(each.num_wrong == 0 for each in figures.values()),
    }
    if ours is not None:
        found["imbalance is bounded by the hit"] = ours.worst_excess <= 1e-6
        found["no herd after a restart"] = ours.worst_herd <= 0
    if ours is not None and oracle is not None:
        is_close = ours.hit_rate >= HIT_SHARE * oracle.hit_rate
        found["hits within 5 % of the oracle's"] = is_close
    split, told = figures.get("split"), figures.get("split_events")
    if told is not None and oracle is not None:
        is_close = told.hit_rate >= HIT_SHARE * oracle.hit_rate
        found["hits of several routers with events within 5 % of the oracle's"] = is_close
    if told is not None and split is not None:
        found["events raise the hits of several routers"] = told.hit_rate > split.hit_rate
    return found


def _herd(num_placed: int, fair_share: float) -> float:
    return num_placed - (HERD_FACTOR * fair_share + HERD_FLOOR)


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0
