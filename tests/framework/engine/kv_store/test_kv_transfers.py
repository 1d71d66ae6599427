"""An outside KV store, seen from the engine; the trial checks every block and token on the way."""

import logging

import pytest
from engine_trial import EngineTrial
from trial_requests import TrialRequest
from trial_scene import Scene

from quire.engine.request import Status
from quire.interfaces.kv_transfer import KVLookup

PROMPT = TrialRequest(
    length=24, max_tokens=1
)  # six blocks; the last token of the completion is not computed
LONGER = TrialRequest(length=24, tail=(3, 3, 3, 3, 1, 1, 1, 1), max_tokens=1)


def make_trial(**scene):
    return EngineTrial(Scene(has_store=True, **{"num_blocks": 40, "budget": 100, **scene}))


def finish(trial):
    """Step until every request is over, and nothing is left."""
    trial.drain()
    trial.check()


def stored_trial(**scene):
    """A trial whose store has the prompt, and whose pool has forgotten it."""
    trial = make_trial(**scene)
    trial.add(PROMPT)
    finish(trial)
    trial.kv.reset()
    return trial


def status(trial, index=0):
    return list(trial.scheduler.requests.values())[index].status


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_what_was_computed_is_saved(async_scheduling):
    trial = make_trial(async_scheduling=async_scheduling)
    trial.add(PROMPT)
    finish(trial)
    assert (trial.store.num_written, trial.store.num_skipped) == (6, 0)
    assert len(trial.store.stored) == 6


def test_what_is_stored_already_is_skipped():
    """Of 32 tokens with 24 known only 8 are written."""
    trial = stored_trial()
    trial.add(
        TrialRequest(**{**vars(LONGER), "has_prompt_logprobs": True})
    )  # computes all, reads nothing
    finish(trial)
    assert (trial.store.num_written, trial.store.num_skipped) == (6 + 2, 6)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("latency", [0, 3])
def test_a_load_saves_computing(async_scheduling, latency):
    trial = stored_trial(async_scheduling=async_scheduling)
    trial.set_mood("latency", latency)
    trial.add(LONGER)
    trial.step()
    if latency:
        assert status(trial) is Status.WAITING_FOR_REMOTE_KV
    finish(trial)
    assert trial.transfers.num_hits == 24
    assert trial.core.stats().num_store_hits == 24
    assert trial.core.stats().num_prefix_hits == 24, "it is found like any other's"


def test_a_lookup_may_be_pending_and_others_run_meanwhile():
    trial = stored_trial()
    trial.set_mood("is_pending", 1)
    trial.add(LONGER)
    trial.add(TrialRequest(length=1, max_tokens=4))  # too short to ask
    trial.step()
    assert status(trial) is Status.WAITING_FOR_KV_LOOKUP
    assert status(trial, 1) is Status.RUNNING
    trial.set_mood("is_pending", 0)
    finish(trial)
    assert trial.transfers.num_hits == 24


def test_a_load_that_fails_is_computed_and_the_request_does_not_notice():
    trial = stored_trial()
    trial.set_mood("fails", 1)
    trial.add(LONGER)
    finish(trial)
    assert trial.counts["ends"] == 2
    assert trial.transfers.num_hits == 0


def test_a_load_that_takes_too_long_is_computed_and_its_blocks_are_held(caplog):
    trial = stored_trial()
    trial.store.moods.latency = 20
    trial.add(PROMPT)
    trial.step()
    trial.pass_time(trial.scene.store_timeout_s)
    with caplog.at_level(logging.WARNING):
        trial.step()
    assert "did not load within 1000 s; computing the prefix instead" in caplog.text
    assert trial.counts["ends"] == 2
    assert trial.transfers.num_open > 0
    assert trial.kv.pool.num_used >= 5, "the store may still write them"
    finish(trial)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_store_that_ends_nothing_is_switched_off_and_frees_every_block(async_scheduling, caplog):
    trial = stored_trial(async_scheduling=async_scheduling)
    trial.set_mood("latency", 4)
    trial.add(LONGER)  # its load never ends
    trial.add(TrialRequest(family=1, length=12, max_tokens=3))  # nor does its save
    finish(trial)
    assert trial.counts["ends"] == 3
    assert "fickle has ended none of 2 open transfers for 1000 s" in caplog.text
    assert trial.executor.store.worker_side.is_stopped
    assert trial.kv.pool.num_used == 0


def test_a_store_that_ends_some_is_slow_and_stays(caplog):
    trial = make_trial()
    trial.set_mood("latency", 4)
    trial.add(PROMPT)
    trial.step()
    trial.step()  # its save begins
    trial.set_mood("latency", 0)
    for tail in range(1, 4):
        trial.pass_time(0.9 * trial.scene.store_timeout_s)
        trial.add(TrialRequest(length=0, tail=(tail,) * 5, max_tokens=1))
        for _ in range(3):
            trial.step()
    assert not trial.executor.store.worker_side.is_stopped
    finish(trial)
    assert trial.executor.store.worker_side.is_stopped, "at the end nothing else was open"


def test_one_step_that_takes_long_is_not_the_fault_of_the_store():
    trial = stored_trial()
    trial.set_mood("latency", 1)
    trial.add(TrialRequest(family=1, length=12, max_tokens=3))
    trial.step()
    trial.pass_time(10 * trial.scene.store_timeout_s)
    finish(trial)
    assert not trial.executor.store.worker_side.is_stopped


def test_saves_hold_a_fraction_of_the_pool_and_the_rest_is_counted():
    trial = make_trial(num_blocks=41, budget=200)
    trial.store.moods.latency = 20
    for family in range(3):
        trial.add(TrialRequest(family=family, length=24, max_tokens=1))
    trial.step()
    trial.step()
    assert trial.transfers.num_unsaved == 8, "of 18 blocks, a fourth of the pool has room for 10"
    assert trial.kv.pool.num_used == 10
    finish(trial)


def test_a_load_beyond_the_fraction_is_cut_and_the_rest_loaded_next():
    trial = stored_trial(num_blocks=33)
    trial.transfers._open.max_blocks = 4
    trial.set_mood("latency", 2)
    trial.add(LONGER)
    trial.step()
    assert trial.kv.pool.num_used == 4
    finish(trial)
    assert trial.transfers.num_hits == 24
    assert trial.core.stats().num_prefix_hits == 24


def test_nothing_is_loaded_for_a_request_that_has_no_room_beside_those_that_run():
    trial = stored_trial(num_blocks=12)
    trial.add(TrialRequest(family=1, length=16, max_tokens=8))
    trial.step()
    trial.set_mood("latency", 3)
    trial.add(PROMPT)  # its six blocks are free, but the other request needs one of them soon
    trial.step()
    assert status(trial, 1) is Status.WAITING
    finish(trial)


def test_where_a_window_needs_no_block_none_is_loaded():
    """Of six blocks the hit needs two in a window of five tokens."""
    trial = make_trial(mix=1, num_blocks=64)
    trial.add(PROMPT)
    finish(trial)
    trial.kv.reset()
    trial.set_mood("latency", 2)
    trial.add(LONGER)
    trial.step()
    assert status(trial) is Status.WAITING_FOR_REMOTE_KV
    assert trial.kv.pool.num_used == 6 + 1
    finish(trial)
    assert trial.core.stats().num_prefix_hits == 24


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("method", ["lookup", "start_load", "start_save", "plan_step", "finish"])
def test_a_store_that_raises_is_switched_off(method, async_scheduling, caplog):
    trial = stored_trial(async_scheduling=async_scheduling)
    trial.store.moods.raising.add(method)
    trial.add(LONGER)
    finish(trial)
    written = trial.store.num_written
    trial.add(TrialRequest(family=1, length=20, max_tokens=3))
    finish(trial)
    assert trial.counts["ends"] == 3
    assert trial.store.num_written == written, "it is not asked any more"
    assert "fickle failed and is switched off" in caplog.text


def test_a_worker_side_that_died_fails_what_is_open():
    trial = stored_trial()
    trial.store.moods.latency = 3
    trial.add(LONGER)
    trial.step()
    assert status(trial) is Status.WAITING_FOR_REMOTE_KV
    trial.set_mood("is_dead", 1)
    finish(trial)
    assert trial.counts["ends"] == 2


def test_an_aborted_request_leaves_its_load_to_end_by_itself():
    trial = stored_trial()
    trial.store.moods.latency = 3
    trial.add(LONGER)
    trial.step()
    trial.abort(0)
    assert trial.transfers.num_open == 1
    assert trial.kv.pool.num_used == 6
    finish(trial)
    assert trial.kv.pool.num_cached == 6, "what was loaded can be found"


def test_a_reset_reaches_what_is_on_its_way():
    trial = stored_trial()
    trial.store.moods.latency = 3
    trial.add(LONGER)
    trial.step()
    trial.reset()
    finish(trial)
    assert trial.transfers.num_hits == 0


def test_a_save_holds_its_blocks_after_the_request_is_over():
    trial = make_trial()
    trial.store.moods.latency = 3
    trial.add(PROMPT)
    while trial.completions:
        trial.step()
        trial.check()
    assert trial.kv.pool.num_used == 6
    finish(trial)


def test_a_prompt_that_looks_at_itself_is_not_loaded():
    trial = stored_trial()
    trial.add(TrialRequest(length=24, max_tokens=1, has_prompt_logprobs=True))
    finish(trial)
    assert trial.transfers.num_hits == 0


@pytest.mark.parametrize(
    "result", [KVLookup(-3), None, 5, KVLookup(None), KVLookup(2.5), KVLookup("2")]
)
def test_a_lookup_that_makes_no_sense_switches_the_store_off(result, monkeypatch, caplog):
    trial = stored_trial()
    monkeypatch.setattr(trial.store, "lookup", lambda request_id, block_hashes: result)
    trial.add(LONGER)
    finish(trial)
    assert trial.counts["ends"] == 2
    assert trial.transfers.num_hits == 0
    assert "fickle failed and is switched off" in caplog.text


@pytest.mark.parametrize(
    ("method", "result"), [("start_save", None), ("start_save", -1), ("plan_step", 7)]
)
def test_other_nonsense_switches_it_off_too(method, result, monkeypatch, caplog):
    trial = make_trial()
    monkeypatch.setattr(trial.store, method, lambda *_: result)
    trial.add(PROMPT)
    finish(trial)
    assert trial.counts["ends"] == 1
    assert "fickle failed and is switched off" in caplog.text


def test_more_than_was_asked_for_is_not_loaded(monkeypatch):
    trial = stored_trial()
    monkeypatch.setattr(trial.store, "lookup", lambda request_id, block_hashes: KVLookup(99))
    trial.add(PROMPT)
    finish(trial)
    assert trial.transfers.num_hits == 20


def test_a_failed_store_is_tried_again_by_the_next_request_and_not_by_this_one():
    trial = stored_trial()
    trial.set_mood("fails", 1)
    trial.add(LONGER)
    finish(trial)
    trial.set_mood("fails", 0)
    trial.kv.reset()
    trial.add(LONGER)
    finish(trial)
    assert trial.transfers.num_hits == 24


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("verb", ["execute", "sample", "collect"])
@pytest.mark.parametrize("latency", [0, 2])
def test_an_interrupt_costs_no_transfer_of_a_busy_store(verb, async_scheduling, latency):
    """What is lost is, by the verb, the order to load or the report that it is done."""
    trial = stored_trial(async_scheduling=async_scheduling)
    trial.set_mood("latency", latency)
    trial.add(LONGER)
    trial.interrupt(verb)
    trial.step()
    if not trial.counts["interrupts"]:
        trial.step()
    assert trial.counts["interrupts"] == 1
    finish(trial)
    assert trial.counts["ends"] == 2
    assert not trial.transfers.store.is_off
    assert (trial.transfers.num_hits, trial.store.num_written) == (24, 8)
    assert (trial.transfers.num_open, trial.kv.pool.num_used) == (0, 0)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_store_that_fails_after_an_interrupt_leaves_no_transfer_open(async_scheduling):
    """The worker side has not received the load, and will not."""
    trial = stored_trial(async_scheduling=async_scheduling)
    trial.add(LONGER)
    trial.interrupt("execute")
    trial.step()
    assert (trial.counts["interrupts"], trial.transfers.num_open) == (1, 1)
    trial.store.moods.raising.add("plan_step")
    finish(trial)
    assert trial.transfers.store.is_off
    assert (trial.transfers.num_open, trial.kv.pool.num_used) == (0, 0)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_step_that_fails_as_a_whole_costs_no_store(async_scheduling):
    """Its transfers end, also those whose reports came with steps that are dropped."""
    trial = stored_trial(async_scheduling=async_scheduling)
    trial.set_mood("latency", 2)
    others = [TrialRequest(family=family, length=9, max_tokens=3) for family in (1, 2)]
    for request in (LONGER, *others):
        trial.add(request)
    trial.fail_step()
    trial.step()
    trial.step()
    assert trial.executor.num_failed_steps == 1
    assert trial.transfers.num_open > 0
    finish(trial)
    assert trial.counts["ends"] == 4
    assert not trial.transfers.store.is_off
    assert trial.transfers.num_hits == 24
    assert (trial.transfers.num_open, trial.kv.pool.num_used) == (0, 0)


def test_an_interrupt_costs_no_store_that_is_idle():
    trial = stored_trial()
    trial.add(TrialRequest(family=1, length=9, max_tokens=9))
    trial.step()
    while trial.transfers.num_open:
        trial.step()
    trial.interrupt("execute")
    trial.step()
    assert trial.counts["interrupts"] == 1
    trial.add(LONGER)
    finish(trial)
    assert trial.transfers.num_hits == 24
