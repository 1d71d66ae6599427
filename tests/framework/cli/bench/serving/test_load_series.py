"""Several loads on a server that answers by a script."""

import asyncio

import pytest
from scripted_server import scripted_server, streamed, text_events, whole

from quire.cli.bench.serving.load_client import LoadTarget
from quire.cli.bench.serving.load_run import LoadPlan
from quire.cli.bench.serving.load_series import LoadSeries, run_series
from quire.cli.bench.serving.prompts import RandomPrompts, length_of
from quire.errors import BenchmarkError

PROMPTS = RandomPrompts(length_of(6, "fixed", 0.0), length_of(2, "fixed", 0.0))


def answer(first, headers, body):
    if first.startswith("GET"):
        return whole(200, {"data": [{"id": "served"}]})
    return streamed(*text_events("a", "b"))


def series(**changes):
    plain = {
        "num_prompts": 5,
        "loads": [LoadPlan()],
        "capacity_shares": (),
        "num_warmup": 0,
        "seed": 0,
        "goals_ms": {},
    }
    return LoadSeries(**plain | changes)


def measured(wanted, reply=answer, model=""):
    """Run a series; return the model, the results, those reported, and the bodies sent."""

    async def run():
        async with scripted_server(reply) as server:
            target = LoadTarget(server.url, "completions", model)
            reported = []
            name, results = await run_series(wanted, target, PROMPTS, reported.append)
            bodies = [body for first, _, body in server.requests if first.startswith("POST")]
            return name, results, reported, bodies

    return asyncio.run(run())


def test_each_load_has_prompts_of_its_own():
    _, results, reported, bodies = measured(series(loads=[LoadPlan(), LoadPlan()], num_warmup=2))
    assert results == reported
    assert len({tuple(body["prompt"]) for body in bodies}) == 12


def test_the_model_is_the_first_that_the_server_lists_unless_it_is_named():
    assert measured(series())[0] == "served"
    name, _, _, bodies = measured(series(), model="mine")
    assert name == "mine"
    assert {body["model"] for body in bodies} == {"mine"}


def test_shares_are_of_what_the_first_load_completed():
    wanted = series(capacity_shares=(0.5, 2.0), loads=[LoadPlan(max_concurrency=3)])
    _, (full, half, double), _, _ = measured(wanted)
    capacity = full.figures["requests_per_s"]
    rates = [result.figures["request_rate"] for result in (half, double)]
    assert rates == pytest.approx([capacity / 2, capacity * 2])
    assert {result.figures["max_concurrency"] for result in (full, half, double)} == {3}


def test_a_server_that_completes_nothing_has_no_capacity():
    refusal = whole(503, {})
    _, results, _, _ = measured(series(capacity_shares=(0.5,)), lambda *_: refusal, "mine")
    assert [result.figures["failed"] for result in results] == [5]


def test_a_warm_up_that_is_refused_ends_it():
    refusal = whole(400, {"error": "no such model"})
    with pytest.raises(BenchmarkError, match=r"the server refuses the requests: 400 .*no such"):
        measured(series(num_warmup=1), lambda *_: refusal, "mine")
