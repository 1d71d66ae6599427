"""`quire bench cluster`: routing policies over many simulated replicas, in virtual time.

Each policy runs the same load on the same cluster: the real scheduler, block pool and router, with
steps whose duration is computed instead of measured. The oracle knows each change of a cache
at once; it is the limit of what routing by cached prefix can reach.

`split` and `split_events` are routing by cached prefix with several routers, each with its part of
the requests. In `split` a router knows what it has sent; in `split_events` it receives the changes,
late and with losses, and one of the routers starts anew in the middle.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.cli.bench.bench_arguments import at_least_one
from quire.cli.bench.cluster.cluster_figures import PolicyFigures, checks
from quire.cli.bench.cluster.cluster_load import ClusterLoad
from quire.cli.bench.cluster.router_views import Knowledge
from quire.cli.bench.cluster.step_time import StepTime
from quire.cli.bench.cluster.virtual_cluster import ClusterShape, VirtualCluster
from quire.cli.bench.null_engine import EngineParts
from quire.cli.bench.tables import machine_info, markdown_lines, table_lines
from quire.cli.command_parser import CommandParser
from quire.launch.replicas.routing.routing_policy import (
    CachedPrefix,
    LeastLoaded,
    RoundRobin,
    RoutingPolicy,
)

POLICIES: dict[str, Callable[[], RoutingPolicy]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "prefix": CachedPrefix,
    "oracle": CachedPrefix,
    "split": CachedPrefix,
    "split_events": CachedPrefix,
}
NUM_ROUTERS = 8  # of the policies with several
DELAY_S = 1.0  # of events, as in Ray Serve
LOSS = 0.05  # of the batches of events
RATE_EACH = 0.6  # requests per second and replica
MS = 1e-3


def add_arguments(parser: CommandParser) -> None:
    """Declare the measure's arguments."""
    add = parser.add_argument
    add("--replicas", type=at_least_one, default=1000, metavar="N")
    add("--requests", type=at_least_one, default=20_000, metavar="N", help="in all")
    add("--blocks", type=at_least_one, default=320, metavar="N", help="KV blocks of a replica")
    add("--rate", type=_positive, default=RATE_EACH, metavar="X", help="requests/s and replica")
    add(
        "--deaths", type=_count, default=50, metavar="N", help="replicas that die and are restarted"
    )
    add("--routers", type=at_least_one, default=NUM_ROUTERS, metavar="N", help="of split policies")
    add("--delay", type=_not_negative, default=DELAY_S, metavar="X", help="of events, in seconds")
    add("--policies", choices=POLICIES, nargs="+", default=list(POLICIES))
    add("--seed", type=int, default=0, metavar="N", help="of load and deaths")
    add(
        "--step-ms",
        type=_not_negative,
        nargs=3,
        default=[seconds / MS for seconds in _seconds(StepTime())],
        metavar=("STEP", "TOKEN", "CACHED"),
        help="milliseconds of a step, of a token in it, of a cached token read",
    )
    add("--output", type=Path, metavar="FILE", help="also write the table, as Markdown")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the load with each policy."""
    step_time = StepTime(*(milliseconds * MS for milliseconds in arguments.step_ms))
    shape = ClusterShape(
        num_replicas=arguments.replicas,
        num_blocks=arguments.blocks,
        num_deaths=arguments.deaths,
        step_time=step_time,
        seed=arguments.seed,
    )
    load = ClusterLoad(num_requests=arguments.requests, rate=arguments.rate * arguments.replicas)
    started = time.process_time()
    figures = simulate(shape, load, arguments.policies, arguments.routers, delay_s=arguments.delay)
    found = {
        "num_replicas": shape.num_replicas,
        "num_blocks": shape.num_blocks,
        "num_deaths": shape.num_deaths,
        "num_requests": load.num_requests,
        "requests_per_s": load.rate,
        "step_ms": list(arguments.step_ms),
        "seed": shape.seed,
        "num_routers": arguments.routers,
        "delay_s": arguments.delay,
        "loss": LOSS,
        "policies": {name: each.as_dict() for name, each in figures.items()},
        "checks": checks(figures),
        "cpu_s": time.process_time() - started,
        "machine": machine_info(),
    }
    if arguments.output is not None:
        arguments.output.write_text("\n".join([*_markdown(found), ""]), encoding="utf-8")
    return found


def simulate(
    shape: ClusterShape,
    load: ClusterLoad,
    policies: list[str],
    num_routers: int = NUM_ROUTERS,
    delay_s: float = DELAY_S,
) -> dict[str, PolicyFigures]:
    """Run a load with each of some policies; return the figures by policy.

    Args:
        shape: Sizes of the cluster.
        load: Load to run.
        policies: Names of the policies.
        num_routers: Number of routers of the policies with several.
        delay_s: Seconds until events arrive there.
    """
    known = {
        "oracle": Knowledge(has_events=True),
        "split": Knowledge(num_routers),
        "split_events": Knowledge(num_routers, True, delay_s, LOSS),
    }
    parts = EngineParts.load()
    figures = {}
    for name in policies:
        knowledge = known.get(name, Knowledge())
        cluster = VirtualCluster(shape, load, parts, POLICIES[name](), knowledge)
        figures[name] = PolicyFigures.of(cluster.run())
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the table, and what holds."""
    return [_title(figures), *table_lines(HEADERS, _rows(figures)), "", *_check_lines(figures)]


# -- tables ----------------------------------------------------------------------------------------

HEADERS = (
    "policy", "hit rate", "first token, s", "99 %", "load above mean, tokens",
    "finished", "failed", "run again", "lost", "virtual s",
)  # fmt: skip


def _title(figures: dict[str, Any]) -> str:
    step, token, cached = figures["step_ms"]
    return (
        f"{figures['num_requests']:,} requests, {figures['requests_per_s']:,.0f} a second, on "
        f"{figures['num_replicas']:,} replicas of {figures['num_blocks']:,} KV blocks, "
        f"{figures['num_deaths']} deaths; a step takes {step:g} ms + {token:g} ms a token + "
        f"{cached:g} ms a cached token; in split, {figures['num_routers']} routers have an equal "
        f"part of the requests each, and events arrive {figures['delay_s']:g} s late and "
        f"{figures['loss']:.0%} of the batches never; {figures['cpu_s']:.0f} s of CPU time"
    )


def _rows(figures: dict[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            f"{each['hit_rate']:.1%}",
            f"{each['first_token_s_median']:.2f}",
            f"{each['first_token_s_99']:.2f}",
            f"{each['imbalance']:,.0f}",
            f"{each['num_finished']:,}",
            str(each["num_failed"]),
            str(each["num_run_again"]),
            str(each["num_lost"]),
            f"{each['end_s']:.0f}",
        ]
        for name, each in figures["policies"].items()
    ]


def _check_lines(figures: dict[str, Any]) -> list[str]:
    return [f"{'yes' if holds else 'NO '}  {what}" for what, holds in figures["checks"].items()]


def _markdown(figures: dict[str, Any]) -> list[str]:
    return [
        "# Routing over simulated replicas",
        "",
        f"`quire bench cluster`, {figures['machine']['date']}, seed {figures['seed']}: "
        f"{_title(figures)}.",
        "",
        *markdown_lines(HEADERS, _rows(figures)),
        "",
        *markdown_lines(
            ("check", "holds"),
            [[what, "yes" if holds else "no"] for what, holds in figures["checks"].items()],
        ),
    ]


def _seconds(step_time: StepTime) -> tuple[float, float, float]:
    return step_time.fixed_s, step_time.token_s, step_time.cached_s


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def _not_negative(text: str) -> float:
    number = float(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number
