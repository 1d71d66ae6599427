"""Loads against a server that answers by a script."""

import asyncio
import math
import random

from scripted_server import scripted_server, streamed, text_events, whole

from quire.cli.bench.serving.load_client import LoadClient, LoadTarget
from quire.cli.bench.serving.load_run import LoadPlan, run_load
from quire.cli.bench.serving.prompts import LoadRequest

REPLY = streamed(*text_events("a", "b", usage=(4, 2)))


def loaded(load, count=12, answer=lambda *_: REPLY, delay_s=0.0):
    async def run():
        async with scripted_server(answer, delay_s) as server:
            client = LoadClient(LoadTarget(server.url, "completions", "m"))
            requests = [LoadRequest([index], 2) for index in range(count)]
            result = await run_load(client, requests, load, {"ttft": 60_000}, random.Random(0))
            client.close()
            return result, server

    return asyncio.run(run())


def test_all_requests_are_sent_once_and_counted():
    result, server = loaded(LoadPlan())
    assert sorted(body["prompt"][0] for _, _, body in server.requests) == [*range(12)]
    figures = result.figures
    assert (figures["completed"], figures["failed"], figures["met_goals"]) == (12, 0, 12)
    assert (figures["input_tokens"], figures["output_tokens"]) == (48, 24)
    assert figures["request_rate"] == "inf"


def test_without_a_limit_all_are_under_way_at_once():
    result, server = loaded(LoadPlan(), delay_s=0.2)
    assert server.most_at_once == 12
    assert result.figures["peak_concurrency"] == 12


def test_a_closed_loop_has_so_many_under_way_and_no_more():
    result, server = loaded(LoadPlan(max_concurrency=3), delay_s=0.02)
    assert server.most_at_once == 3
    assert result.figures["peak_concurrency"] == 3
    assert server.num_connections == 3


def test_requests_are_sent_at_their_times_and_not_before():
    result, _ = loaded(LoadPlan(request_rate=40.0))
    sent = [outcome.sent_s for outcome in result.outcomes]
    planned = [outcome.planned_s for outcome in result.outcomes]
    assert all(now >= then for now, then in zip(sent, planned, strict=True))
    assert planned[-1] - planned[0] < 12 / 40
    assert result.figures["duration_s"] >= 12 / 40


def test_waiting_for_a_turn_is_not_lateness():
    result, _ = loaded(LoadPlan(max_concurrency=1), delay_s=0.05)
    assert result.figures["client"]["sent_late_p99_ms"] < 12 * 50 / 2


def test_waiting_for_a_turn_is_a_figure_of_its_own():
    result, _ = loaded(LoadPlan(request_rate=1000.0, max_concurrency=1), delay_s=0.05)
    assert result.figures["waited_for_turn"] == 11
    assert result.figures["turn_wait_ms"]["p99"] > 5 * 50
    unlimited, _ = loaded(LoadPlan(request_rate=1000.0), delay_s=0.05)
    assert unlimited.figures["waited_for_turn"] == 0
    assert unlimited.figures["turn_wait_ms"]["p99"] == 0


def test_errors_are_counted_by_their_status():
    statuses = iter([200, 503, 200, 429, 503] + [200] * 7)

    def answer(*_):
        status = next(statuses)
        return REPLY if status == 200 else whole(status, {})

    result, _ = loaded(LoadPlan(), answer=answer)
    assert result.figures["errors"] == {"503": 2, "429": 1}
    assert result.figures["completed"] == 9


def test_an_open_loop_does_not_wait_for_replies():
    _, server = loaded(LoadPlan(request_rate=200.0), delay_s=1.0)
    assert server.most_at_once == 12


def test_an_infinite_rate_is_no_number_of_json():
    assert loaded(LoadPlan(math.inf), count=1)[0].figures["request_rate"] == "inf"
