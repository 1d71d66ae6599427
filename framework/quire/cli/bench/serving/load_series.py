"""Loads on one server, one after another, each with prompts of its own."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.cli.bench.serving.load_client import LoadClient, LoadTarget
from quire.cli.bench.serving.load_run import LoadPlan, LoadResult, run_load
from quire.cli.bench.serving.prompts import FilePrompts, RandomPrompts
from quire.errors import BenchmarkError


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """What is measured.

    Attributes:
        num_prompts: Requests of a load.
        loads: The loads, in order.
        capacity_shares: Shares of the rate that the first load completed, which are offered next.
        num_warmup: Requests before the loads, which do not count.
        seed: Seed of prompts and arrivals.
        goals_ms: Limits of a good request, by metric.
    """

    num_prompts: int
    loads: Sequence[LoadPlan]
    capacity_shares: Sequence[float]
    num_warmup: int
    seed: int
    goals_ms: Mapping[str, float]


async def run_series(
    series: LoadSeries,
    target: LoadTarget,
    prompts: RandomPrompts | FilePrompts,
    on_result: Callable[[LoadResult], None],
) -> tuple[str, list[LoadResult]]:
    """Run the loads; return the name of the model, and the result of each.

    Args:
        series: The loads.
        target: The server; without the name of a model the first that it lists is used.
        prompts: Source of the prompts.
        on_result: Function called after each load.

    Raises:
        BenchmarkError: There is no server, or it refuses all requests of the warm-up.
    """
    if not target.model:
        target = replace(target, model=await _first_model(target))
    client = LoadClient(target)
    results: list[LoadResult] = []

    async def run(load: LoadPlan) -> None:
        rng = random.Random(f"{series.seed} {len(results)}")  # new prompts: none is cached
        requests = prompts.requests(series.num_prompts, rng)
        results.append(await run_load(client, requests, load, series.goals_ms, rng))
        on_result(results[-1])

    try:
        await _warm_up(client, series, prompts)
        for load in series.loads:
            await run(load)
        capacity = results[0].figures["requests_per_s"]
        for share in series.capacity_shares if capacity else ():
            await run(replace(series.loads[0], request_rate=share * capacity))
    finally:
        client.close()
    return target.model, results


async def _first_model(target: LoadTarget) -> str:
    client = LoadClient(target)
    try:
        return await client.first_model()
    finally:
        client.close()


async def _warm_up(
    client: LoadClient, series: LoadSeries, prompts: RandomPrompts | FilePrompts
) -> None:
    if not series.num_warmup:
        return
    rng = random.Random(f"{series.seed} warm-up")
    requests = prompts.requests(series.num_warmup, rng)
    result = await run_load(client, requests, LoadPlan(), {}, rng)
    if not result.figures["completed"]:
        first = result.outcomes[0]
        raise BenchmarkError(f"the server refuses the requests: {first.error} {first.detail}")
