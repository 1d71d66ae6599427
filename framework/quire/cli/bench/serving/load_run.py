"""One load: requests sent at their times, at most so many at once, and what came of them."""

import asyncio
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.cli.bench.serving.arrivals import arrival_times
from quire.cli.bench.serving.client_health import ClientHealth, complaints
from quire.cli.bench.serving.load_client import LoadClient
from quire.cli.bench.serving.load_figures import load_figures
from quire.cli.bench.serving.outcome import Outcome
from quire.cli.bench.serving.prompts import LoadRequest


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """When the requests of a load are sent.

    Attributes:
        request_rate: Requests per second; infinite: all at once.
        burstiness: Shape of the gaps between them, see `arrival_times`.
        max_concurrency: Requests under way at most; None: no limit.
    """

    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Outcomes of a load, and its figures."""

    outcomes: Sequence[Outcome]
    figures: Mapping[str, Any]


async def run_load(
    client: LoadClient,
    requests: Sequence[LoadRequest],
    load: LoadPlan,
    goals_ms: Mapping[str, float],
    rng: random.Random,
) -> LoadResult:
    """Send the requests, and wait for the end of all of them."""
    arrivals = arrival_times(len(requests), load.request_rate, load.burstiness, rng)
    outcomes = [Outcome() for _ in requests]
    health = ClientHealth()
    async with health.watch():
        started = time.perf_counter()
        await _send_all(client, requests, outcomes, arrivals, load.max_concurrency)
        duration_s = time.perf_counter() - started
    figures = load_figures(outcomes, duration_s, goals_ms)
    own = health.figures(outcomes)
    about = {
        "request_rate": load.request_rate if math.isfinite(load.request_rate) else "inf",
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
    }
    complaining = {"client": own, "complaints": complaints(own, figures)}
    return LoadResult(outcomes, about | figures | complaining)


async def _send_all(
    client: LoadClient,
    requests: Sequence[LoadRequest],
    outcomes: Sequence[Outcome],
    arrivals: Sequence[float],
    max_concurrency: int | None,
) -> None:
    room = asyncio.Semaphore(max_concurrency or len(requests))
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for request, outcome, arrival in zip(requests, outcomes, arrivals, strict=True):
            wait_s = started + arrival - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            outcome.planned_s = started + arrival
            tasks.create_task(_send(client, request, outcome, room))


async def _send(
    client: LoadClient, request: LoadRequest, outcome: Outcome, room: asyncio.Semaphore
) -> None:
    if room.locked():  # it waits for its turn, and is not late
        async with room:
            now = time.perf_counter()
            outcome.turn_wait_s, outcome.planned_s = now - outcome.planned_s, now
            await client.complete(request, outcome)
    else:
        async with room:
            await client.complete(request, outcome)
