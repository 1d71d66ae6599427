"""Whether figures are to be trusted."""

import asyncio
import gc
import time

import pytest

from quire.cli.bench.serving.client_health import ClientHealth, complaints
from quire.cli.bench.serving.outcome import Outcome

FINE = {"cpu_share": 0.2, "loop_lag_p99_ms": 1.0, "loop_lag_max_ms": 9.0, "sent_late_p99_ms": 0.0}


def watched(work):
    async def run():
        health = ClientHealth()
        async with health.watch():
            await work()
        return health.figures([])

    return asyncio.run(run())


def test_a_loop_that_is_blocked_is_late():
    async def block():
        await asyncio.sleep(0.05)
        time.sleep(0.3)
        await asyncio.sleep(0.05)

    assert watched(block)["loop_lag_max_ms"] > 200


def test_a_busy_client_has_a_share_of_a_core():
    async def burn():
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass

    async def rest():
        await asyncio.sleep(0.5)

    assert watched(burn)["cpu_share"] > watched(rest)["cpu_share"]


def test_garbage_is_collected_before_and_not_during_a_load():
    async def work():
        assert not gc.isenabled()

    watched(work)
    assert gc.isenabled()


def test_lateness_is_the_time_between_plan_and_sending():
    late = [Outcome(planned_s=1.0, sent_s=1.0), Outcome(planned_s=2.0, sent_s=2.1)]
    assert ClientHealth().figures(late)["sent_late_p99_ms"] == pytest.approx(99.0)


def times(ttft, itl):
    return {"ttft_ms": {"p50": ttft}, "itl_ms": None if itl is None else {"p50": itl}}


def test_a_client_that_keeps_up_is_trusted():
    assert complaints(FINE, times(100.0, 10.0)) == []


@pytest.mark.parametrize(
    ("lag", "ttft", "itl", "is_late"),
    [
        (9.9, 100.0, None, False),
        (10.1, 100.0, None, True),
        (9.9, 100.0, 20.0, True),
        (4.9, 100.0, 20.0, False),
        (1.9, 1.0, 1.0, False),  # too little to matter
    ],
)
def test_a_lag_that_shows_in_the_times_is_complained_of(lag, ttft, itl, is_late):
    found = complaints(FINE | {"loop_lag_p99_ms": lag}, times(ttft, itl))
    assert bool(found) is is_late


def test_a_client_that_computes_all_the_time_is_complained_of():
    (complaint,) = complaints(FINE | {"cpu_share": 0.93}, times(100.0, 10.0))
    assert complaint.startswith("the client used 93% of a core")


def test_a_load_in_which_nothing_was_completed_is_judged_too():
    assert complaints(FINE, {"ttft_ms": None, "itl_ms": None}) == []
