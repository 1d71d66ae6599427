"""Several replicas as one core: nothing is lost, a death costs its own requests alone."""

import contextlib
import logging
import math
import os
import random
import threading
import time

import pytest
from engine_parts import make_message
from processes import eventually
from scripted_core import Reply
from served_replicas import MortalCore, ReplicaTrial

from quire.errors import (
    AdapterError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    ReplicaDeadError,
    RequestTimeoutError,
)
from quire.launch.replicas import replica, replicated_core
from quire.launch.replicas.replica import SILENCE_S, ReplicaLimits
from quire.launch.replicas.replicated_core import ENGINE_FIRST_S, MIN_DEADLINES
from quire.messages import AdapterRef, LoadAdapter, ReplicaStats, ResetPrefixCache, Started
from quire.process.children.restart_times import FIRST_PAUSE_S, MAX_STARTS

LIMIT_S = ReplicaLimits().stall_s


@pytest.fixture
def begin():
    trials = []

    def start(num_replicas=2, **options):
        trials.append(ReplicaTrial(num_replicas, **options))
        assert trials[-1].core.start() == Started(512)
        return trials[-1]

    yield start
    for trial in trials:
        trial.close()


def finish(core, timeout_s=20.0):
    """Step until nothing is left; the outputs of each request."""
    outputs = {}
    deadline = time.monotonic() + timeout_s
    while core.has_work():
        assert time.monotonic() < deadline, "still busy"
        stepped = core.step()
        for output in stepped.outputs if stepped else ():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def tokens_of(outputs):
    return [token for output in outputs for token in output.token_ids]


def add(core, *names, max_tokens=4, **options):
    for name in names:
        core.add(make_message(name, max_tokens=max_tokens, **options))


def has_request(trial, name):
    """Return the replicas that have a request and were not killed."""
    indices = [i for i, each in enumerate(trial.threads) if not each[-1].num_kills]
    return [i for i in indices if name in [r.request_id for r in trial.engine(i).requests]]


def step_until_dead(core, clock=None):
    for _ in range(10_000):
        if clock is not None:
            clock.now_s += 31.0
            core.check_health()
            time.sleep(0.001)
        else:
            core.step()


class HungControl:
    """A control that does not return until it is over."""

    def __init__(self):
        self.is_over = threading.Event()

    def control(self, command):
        del command
        self.is_over.wait(20)


def wait_until_up(trial, index, num_starts):
    trial.clock.now_s += 100.0
    eventually(
        lambda: (
            trial.core.check_health() or len(trial.threads[index]) == num_starts
        ) and trial.router.loads.is_up(index)
    )  # fmt: skip


def test_requests_are_shared_and_each_has_its_own_completion(begin):
    trial = begin(3)
    for number in range(30):
        add(trial.core, str(number), prompt=[100 * number])
    outputs = finish(trial.core)
    assert {name: tokens_of(parts) for name, parts in outputs.items()} == {
        str(number): [100 * number + i for i in range(1, 5)] for number in range(30)
    }
    assert [len(trial.engine(index).requests) for index in range(3)] == [10, 10, 10]


def test_a_conversation_stays_on_its_replica(begin):
    trial = begin(2)
    prompt = list(range(40))
    for name in "abc":
        add(trial.core, name, prompt=prompt)
        prompt += [*tokens_of(finish(trial.core)[name]), 7]
    assert sorted(len(trial.engine(index).requests) for index in range(2)) == [0, 3]


def test_an_id_that_is_in_use_is_refused_and_free_again_afterwards(begin):
    core = begin().core
    add(core, "a")
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        add(core, "a")
    finish(core)
    add(core, "a")
    assert tokens_of(finish(core)["a"]) == [13, 14, 15, 16]


def test_an_abort_finds_the_replica_of_the_request(begin):
    trial = begin(2, step_s=0.002)
    add(trial.core, "a", "b", "unsent", max_tokens=10_000)
    trial.core.abort(["unsent"])
    seen = set()
    while not seen >= {"a", "b"}:
        seen |= {output.request_id for output in trial.core.step().outputs}
    trial.core.abort(["a", "unknown"])
    owner = next(i for i in (0, 1) if [r.request_id for r in trial.engine(i).requests] == ["a"])
    eventually(lambda: trial.engine(owner).aborted == ["a"])
    trial.core.abort(["b"])
    assert not trial.core.has_work()
    eventually(lambda: trial.engine(1 - owner).aborted == ["b"])
    assert sum(trial.router.loads.tokens(index) for index in (0, 1)) == pytest.approx(0)


def test_a_request_that_cannot_be_sent_fails_alone(begin):
    core = begin().core
    add(core, "bad", prompt=[2**70])
    add(core, "worse", prompt=["x"])
    add(core, "good")
    outputs = finish(core)
    assert outputs["bad"][-1].error.code == InvalidRequestError.code
    assert outputs["worse"][-1].error.code == InvalidRequestError.code
    assert tokens_of(outputs["good"]) == [13, 14, 15, 16]


def test_controls_reach_every_replica_and_an_error_is_raised(begin):
    trial = begin(3)
    assert trial.core.control(ResetPrefixCache()) is None
    assert [trial.engine(index).controls for index in range(3)] == [[ResetPrefixCache()]] * 3
    with pytest.raises(AdapterError, match="no files of 'ghost'"):
        trial.core.control(LoadAdapter(AdapterRef("ghost", "nowhere")))
    assert trial.core._group.adapters == {}
    loaded = AdapterRef("x", "x")
    trial.core.control(LoadAdapter(loaded))
    with pytest.raises(AdapterError, match="no files of 'x'"):
        trial.core.control(LoadAdapter(AdapterRef("x", "nowhere")))
    assert trial.core._group.adapters == {"x": loaded}


def test_a_reset_clears_what_the_router_believes(begin):
    trial = begin(1)
    add(trial.core, "a", prompt=[1] * 20)
    finish(trial.core)
    trial.core.control(ResetPrefixCache())
    assert trial.router.place(make_message("b", prompt=[1] * 20), 0.0).num_cached_tokens == 0
    trial.router.abort(0, "b")


def test_statistics_are_sums_and_counters_outlive_a_death(begin):
    trial = begin(2, step_s=0.002)
    for index in (0, 1):
        trial.engine(index).num_preemptions = 5
    add(trial.core, "a", "b", "c", max_tokens=100_000)
    eventually(lambda: trial.core.stats().num_running == 3)
    stats = trial.core.stats()
    assert (stats.num_blocks, stats.num_preemptions) == (200, 10)
    assert sorted(replica.num_running for replica in stats.replicas) == [1, 2]
    trial.current(0).kill()
    eventually(lambda: trial.core.step() and not trial.router.loads.is_up(0))
    stats = trial.core.stats()
    assert (stats.num_blocks, stats.num_preemptions) == (100, 10)
    assert [replica.is_up for replica in stats.replicas] == [False, True]


def test_statistics_wait_for_a_replica_only_until_it_may_hang(begin, monkeypatch):
    monkeypatch.setattr(replica, "SILENCE_S", 0.2)
    trial = begin(2, step_s=0.001, clock=time.monotonic)
    hang(trial, 0, "a", "b")
    hung = trial.core.stats().replicas[0]
    assert (hung.is_up, hung.is_silent) == (True, True)


def test_statistics_leave_out_a_replica_that_hangs_and_name_it(begin, caplog):
    caplog.set_level(logging.INFO, "quire.launch.replicas")
    trial = begin(2, step_s=0.001)
    hung, other = trial.core._group.replicas
    hang(trial, 0, *"abcd")
    trial.core.abort([*"abcd"])
    num_asked = len(hung._questions)
    trial.clock.now_s += SILENCE_S
    for number, name in enumerate("ef", 1):
        eventually(lambda: trial.core.check_health() or not other.is_silent(trial.clock()))
        add(trial.core, name, max_tokens=10_000)
        stats = trial.core.stats()
        assert [each.is_silent for each in stats.replicas] == [True, False]
        busy = stats.replicas[1]
        assert busy.num_running + busy.num_waiting == number, "it is current"
    assert len(hung._questions) == num_asked
    assert f"replica 0 of 2, process {trial.core.pids[0]}, owes an answer" in caplog.text
    trial.engine(0).go.set()
    eventually(lambda: not trial.core.stats().replicas[0].is_silent)
    assert [each.num_running for each in trial.core.stats().replicas] == [0, 2]
    assert "replica 0 of 2" in caplog.text.splitlines()[-1]
    assert "answers again" in caplog.text.splitlines()[-1]


def test_statistics_do_not_wait_for_a_replica_to_start_again(begin):
    trial = begin(1)
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    assert trial.core.stats().replicas == [ReplicaStats(is_up=False)]


def test_statistics_of_a_replica_that_dies_meanwhile_are_none(begin):
    trial = begin(2)
    hung = HungControl()
    trial.engine(0).control = hung.control
    outcome = trial.core.begin_control(ResetPrefixCache())
    trial.core.check_health()
    threading.Timer(0.1, trial.current(0).kill).start()
    assert [each.is_up for each in trial.core.stats().replicas] == [False, True]
    hung.is_over.set()
    eventually(lambda: trial.core.check_health() or outcome.done())


def test_scheduled_tokens_are_those_of_the_steps_that_were_returned(begin):
    core = begin(2).core
    add(core, "a", "b", max_tokens=50)
    total = 0
    while core.has_work():
        total += core.step().stats.num_scheduled_tokens
    assert total == 100 - 2  # the script counts a request of a step while it goes on


def test_a_death_costs_the_requests_that_had_tokens_and_no_others(begin):
    trial = begin(2, step_s=0.002)
    add(trial.core, "a", "b", max_tokens=60)
    seen = {}
    while len(seen) < 2:
        for output in trial.core.step().outputs:
            seen.setdefault(output.request_id, []).append(output)
    victim = next(i for i in (0, 1) if trial.engine(i).requests[0].request_id == "a")
    pid = trial.core.pids[victim]
    trial.current(victim).kill()
    rest = finish(trial.core)
    error = rest["a"][-1].error
    assert error.code == ReplicaDeadError.code
    for part in (f"replica {victim} of 2", f"process {pid}", "killed by SIGKILL", "sent already"):
        assert part in error.message
    assert tokens_of(seen["b"] + rest["b"]) == [13 + i for i in range(60)]
    assert rest["b"][-1].finish_reason == "length"


def test_a_request_without_tokens_runs_again_on_another_replica(begin):
    trial = begin(2)
    for index in (0, 1):
        trial.engine(index).go.clear()
    add(trial.core, "a", "b")
    threading.Timer(0.1, trial.core.wake).start()
    assert trial.core.step() is None
    trial.current(0).kill()
    trial.engine(1).go.set()
    outputs = finish(trial.core)
    assert {name: tokens_of(parts) for name, parts in outputs.items()} == {
        name: [13, 14, 15, 16] for name in "ab"
    }
    assert sorted(request.request_id for request in trial.engine(1).requests) == ["a", "b"]


def test_a_request_with_which_two_replicas_die_is_not_tried_a_third_time(begin):
    trial = begin(3)
    for index in range(3):
        trial.engine(index).go.clear()
    add(trial.core, "poison")
    for _ in range(2):
        eventually(lambda: trial.core.check_health() or has_request(trial, "poison") != [])
        (index,) = has_request(trial, "poison")
        trial.current(index).kill()
    error = finish(trial.core)["poison"][-1].error
    assert error.code == ReplicaDeadError.code
    assert "second replica that died with it" in error.message
    assert sum(len(trial.engine(i).requests) for i in range(3)) == 2


def test_a_replica_whose_step_takes_too_long_is_ended_and_no_other_is(begin):
    trial = begin(2, step_s=0.001)
    trial.engine(0).go.clear()
    add(trial.core, "a", "b", max_tokens=4)
    seen = {}
    while "length" not in seen.values():
        for output in trial.core.step().outputs:
            seen[output.request_id] = output.finish_reason
    trial.clock.now_s += LIMIT_S - 1
    trial.core.check_health()
    assert trial.router.loads.is_up(0)
    trial.clock.now_s += 1
    add(trial.core, "c", max_tokens=1)  # an idle replica does not stall
    outputs = finish(trial.core)
    assert {name: len(tokens_of(parts)) for name, parts in outputs.items()} in (
        {"a": 4, "c": 1}, {"b": 4, "c": 1},
    )  # fmt: skip
    assert trial.router.loads.is_up(1)
    assert not trial.router.loads.is_up(0)


def test_steps_that_complete_in_time_are_no_stall_however_many(begin):
    trial = begin(1, step_s=0.001)
    add(trial.core, "a", max_tokens=10)
    while trial.core.has_work():
        trial.core.step()
        trial.clock.now_s += LIMIT_S - 1
    assert trial.router.loads.is_up(0)


def hang(trial, index, *names):
    """Let a replica take requests, and then hang; return the names of those that it has."""
    add(trial.core, *names, max_tokens=1000)
    eventually(lambda: trial.core.check_health() or trial.engine(index).requests)
    trial.engine(index).go.clear()
    core = trial.core._group.replicas[index].core
    time.sleep(0.01)  # for a step that has just begun
    eventually(
        lambda: core.poll_step() is None and trial.engine(index).num_steps == core.num_received - 1
    )
    return [request.request_id for request in trial.engine(index).requests]


def test_an_abort_of_all_its_requests_does_not_excuse_a_replica_that_hangs(begin):
    trial = begin(2, step_s=0.001)
    trial.core.abort(hang(trial, 0, "a", "b"))
    for number in range(4):
        trial.clock.now_s += LIMIT_S / 4 - 0.01
        add(trial.core, f"c{number}", max_tokens=1000)
        trial.core.check_health()
        trial.core.abort([f"c{number}"])
    assert trial.router.loads.is_up(0)
    trial.clock.now_s += 1
    trial.core.check_health()
    assert (trial.router.loads.is_up(0), trial.router.loads.is_up(1)) == (False, True)


def test_a_replica_that_hangs_gets_no_new_requests_while_another_one_answers(begin):
    trial = begin(2, step_s=0.001)
    hang(trial, 0, *"abcdef")
    trial.core.abort([*"abcdef"])
    eventually(lambda: trial.core.check_health() or trial.core._group.replicas[1].stall_s is None)
    trial.clock.now_s += SILENCE_S
    for number in range(4):
        name = f"c{number}"
        add(trial.core, name, max_tokens=4)
        assert len(tokens_of(finish(trial.core)[name])) == 4
    trial.engine(0).go.set()
    eventually(lambda: trial.core.check_health() or trial.core._group.replicas[0].stall_s is None)
    num_before = len(trial.engine(0).requests)
    add(trial.core, *[f"d{number}" for number in range(4)])
    finish(trial.core)
    assert len(trial.engine(0).requests) == num_before + 2


def test_requests_are_shared_while_no_replica_answers(begin):
    trial = begin(2, step_s=0.001)
    for index in (0, 1):
        trial.engine(index).go.clear()
    add(trial.core, "a", "b")
    trial.core.check_health()
    trial.clock.now_s += SILENCE_S
    add(trial.core, "c", "d")
    trial.core.check_health()
    assert [len(trial.router._placed[index]) for index in (0, 1)] == [2, 2]
    for index in (0, 1):
        trial.engine(index).go.set()
    assert sorted(finish(trial.core)) == ["a", "b", "c", "d"]


def test_a_replica_that_answers_after_an_abort_is_not_ended_however_long_it_idles(begin):
    trial = begin(2, step_s=0.001)
    add(trial.core, "a", "b", max_tokens=1000)
    eventually(lambda: trial.core.check_health() or trial.engine(0).requests)
    trial.core.abort(["a", "b"])
    add(trial.core, "bad", "worse", prompt=[2**70])  # refused here: nothing is owed for them
    assert len(finish(trial.core)) == 2
    eventually(
        lambda: trial.core.check_health() or not any(r.stall_s for r in trial.core._group.replicas)
    )
    trial.clock.now_s += LIMIT_S + 1
    trial.core.check_health()
    assert [trial.router.loads.is_up(index) for index in (0, 1)] == [True, True]


def test_a_request_that_cannot_be_sent_fails_although_it_waited_for_a_replica(begin, monkeypatch):
    monkeypatch.setattr(replicated_core, "HEARTBEAT_S", 60.0)
    trial = begin(1, clock=time.monotonic)
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    add(trial.core, "bad", prompt=[2**70])
    wake = threading.Timer(10, trial.core.wake)
    wake.start()
    assert trial.core.step().outputs[0].error.code == InvalidRequestError.code
    wake.cancel()


def test_the_limit_of_a_step_is_that_of_the_user_and_more_if_the_engine_watches_its_workers():
    assert (ReplicaLimits(7.0).stall_s, ReplicaLimits(7.0, own_watch_s=10.0).stall_s) == (7.0, 17.0)


def test_an_error_of_a_step_is_a_death_with_its_reason(begin):
    trial = begin(2)
    trial.engine(0).script = lambda request: Reply([1], RuntimeError("out of smoke"))
    add(trial.core, "a", "b", max_tokens=3)
    outputs = finish(trial.core)
    failed = [parts[-1].error for parts in outputs.values() if parts[-1].error]
    assert [error.code for error in failed] == [ReplicaDeadError.code]
    assert "RuntimeError: out of smoke" in failed[0].message
    assert not trial.router.loads.is_up(0)


def test_a_dead_replica_comes_back_after_a_pause_with_the_adapters_loaded_since(begin):
    trial = begin(2)
    first, second, third = (AdapterRef(name, name, name) for name in "xyz")
    trial.core.control(LoadAdapter(first))
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    trial.core.control(LoadAdapter(second))
    trial.core.check_health()
    assert len(trial.threads[0]) == 1
    trial.clock.now_s += FIRST_PAUSE_S
    trial.core.check_health()
    assert len(trial.threads[0]) == 2
    trial.core.control(LoadAdapter(third))  # while it starts
    eventually(lambda: trial.core.check_health() or trial.router.loads.is_up(0))
    assert list(dict.fromkeys(trial.engine(0).adapters)) == [first, second, third]
    assert trial.sizes == [None, None, 100]
    trial.router.loads.warm_up(trial.clock.now_s + 100)
    for number in range(8):
        add(trial.core, str(number))
    assert len(finish(trial.core)) == 8
    assert min(len(trial.engine(index).requests) for index in (0, 1)) == 4


def test_an_adapter_that_is_loaded_while_a_replica_loads_others_is_loaded_there_too(begin):
    trial = begin(2)
    first, second = (AdapterRef(name, name, name) for name in "xy")
    trial.core.control(LoadAdapter(first))
    may_load, load = threading.Event(), MortalCore.control

    def wait_and_load(core, command):
        may_load.wait(20)
        return load(core, command)

    trial.make_engine = lambda: type("Waiting", (MortalCore,), {"control": wait_and_load})(0.0)
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    trial.clock.now_s += FIRST_PAUSE_S
    eventually(lambda: trial.core.check_health() or trial.core._group.replicas[0]._preparing)
    trial.core.control(LoadAdapter(second))
    assert not trial.router.loads.is_up(0)
    may_load.set()
    eventually(lambda: trial.core.check_health() or trial.router.loads.is_up(0))
    assert trial.engine(0).adapters == [first, second]


def test_an_adapter_that_cannot_be_loaded_again_keeps_no_replica_down(begin, caplog):
    trial = begin(2)
    trial.core.control(LoadAdapter(AdapterRef("x", "x")))
    trial.core._group.adapters["x"] = AdapterRef("x", "nowhere")
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    wait_until_up(trial, 0, 2)
    assert "replica 0 was started again and cannot load the adapter 'x'" in caplog.text


def test_requests_wait_for_a_replica_while_all_start_again(begin):
    trial = begin(1)
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    add(trial.core, "a")
    threading.Timer(0.1, trial.core.wake).start()
    assert trial.core.step() is None
    trial.clock.now_s += FIRST_PAUSE_S
    assert tokens_of(finish(trial.core)["a"]) == [13, 14, 15, 16]


def test_a_control_waits_for_a_replica_while_all_start_again(begin):
    trial = begin(1, clock=time.monotonic)
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    trial.core.wake()
    assert trial.core.control(ResetPrefixCache()) is None
    assert trial.engine(0).controls == [ResetPrefixCache()]
    trial.engine(0).go.clear()
    add(trial.core, "a")
    assert trial.core.step() is None, "the wake was not lost"


def test_a_control_is_done_again_if_all_replicas_died_with_it(begin):
    trial = begin(1, clock=time.monotonic)
    hung = HungControl()
    trial.engine(0).control = hung.control
    outcome = trial.core.begin_control(ResetPrefixCache())
    trial.core.check_health()
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or outcome.done())
    assert outcome.result(0) is None
    assert (len(trial.threads[0]), trial.engine(0).controls) == (2, [ResetPrefixCache()])
    hung.is_over.set()


def test_a_death_during_a_control_is_no_error_of_the_control(begin):
    trial = begin(2)
    trial.current(0).kill()
    assert trial.core.control(ResetPrefixCache()) is None
    assert trial.engine(1).controls == [ResetPrefixCache()]


def test_while_a_control_waits_for_a_replica_that_hangs_the_others_go_on(begin):
    trial = begin(2, step_s=0.001)
    hung = HungControl()
    trial.engine(0).control = hung.control
    add(trial.core, "a", "b", max_tokens=50)
    outcome = trial.core.begin_control(ResetPrefixCache())
    seen = []
    while not any(output.finish_reason for output in seen):
        seen += trial.core.step().outputs
    add(trial.core, "c", "d", max_tokens=4)  # one of them goes to each
    while len([output for output in seen if output.finish_reason]) < 2:
        seen += trial.core.step().outputs
    assert (outcome.done(), trial.engine(1).controls) == (False, [ResetPrefixCache()])
    trial.clock.now_s += LIMIT_S
    finish(trial.core)
    assert outcome.result(0) is None
    assert not trial.router.loads.is_up(0)
    hung.is_over.set()


def test_steps_return_while_a_replica_hangs_if_another_one_answers_and_only_then(
    begin, monkeypatch
):
    monkeypatch.setattr(replicated_core, "HEARTBEAT_S", 0.05)
    trial = begin(2, step_s=0.001)
    trial.clock = trial.core._clock = trial.core._group._clock = time.monotonic
    hang(trial, 0, "a", "b")
    trial.core.abort(["b"])
    eventually(lambda: trial.core.check_health() or trial.core._group.replicas[1].stall_s is None)
    outputs = [trial.core.step() for _ in range(5)][-1]
    assert (outputs.outputs, trial.core.has_work()) == ([], True)
    trial.engine(1).go.clear()
    monkeypatch.setattr(replica, "SILENCE_S", 0.0)
    add(trial.core, "c")
    threading.Timer(0.5, trial.core.wake).start()
    num_returned = 0  # steps before the hang; one in each 0.05 s if a hang were no reason to wait
    while trial.core.step() is not None:
        num_returned += 1
    assert num_returned < 5


def test_a_timeout_is_kept_for_requests_that_are_held_or_on_a_replica_that_hangs(begin):
    trial = begin(1, request_timeout_s=3.0)
    trial.engine(0).go.clear()
    add(trial.core, "hung")
    trial.core.check_health()
    trial.clock.now_s += 3.0
    trial.core.check_health()
    assert trial.core._open, "its engine may report it first"
    trial.clock.now_s += ENGINE_FIRST_S
    error = finish(trial.core)["hung"][-1].error
    assert error.code == RequestTimeoutError.code
    assert "replica 0 does not answer" in error.message
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    trial.core._group.replicas[0].next_start_s += 100
    trial.core._request_timeout_s = trial.clock.now_s + 3.0  # messages arrive at 0
    add(trial.core, "held")
    trial.core.check_health()
    trial.clock.now_s += 4.0
    error = finish(trial.core)["held"][-1].error
    assert error.code == RequestTimeoutError.code
    assert "it waited for a replica" in error.message


def test_while_no_replica_is_up_only_so_many_requests_wait(begin):
    trial = begin(1, max_num_open=2)
    add(trial.core, "a", "b", "c")  # a replica is up, which has a limit of its own
    assert [parts[-1].error for parts in finish(trial.core).values()] == [None] * 3
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    add(trial.core, "a", "b", "c")
    (refused,) = trial.core.step().outputs
    assert (refused.request_id, refused.error.code) == ("c", OverloadedError.code)
    trial.clock.now_s += FIRST_PAUSE_S
    assert sorted(finish(trial.core)) == ["a", "b"]


def test_while_all_replicas_hang_only_so_many_requests_wait(begin):
    trial = begin(2, max_num_open=3)
    for index in (0, 1):
        trial.engine(index).go.clear()
    add(trial.core, "a", "b")
    trial.core.check_health()
    trial.clock.now_s += SILENCE_S
    add(trial.core, "c", "d")
    (refused,) = trial.core.step().outputs
    assert (refused.request_id, refused.error.code) == ("d", OverloadedError.code)
    assert "3 requests wait for a replica to answer" in refused.error.message
    trial.engine(0).go.set()
    eventually(lambda: trial.core.check_health() or trial.core._has_answering())
    add(trial.core, "e")  # that replica has a limit of its own
    trial.engine(1).go.set()
    outputs = finish(trial.core)
    assert {name: parts[-1].error for name, parts in outputs.items()} == dict.fromkeys("abce")


def test_a_replica_that_hangs_costs_its_part_of_the_requests_of_a_few_seconds(begin):
    trial = begin(3)
    trial.engine(0).go.clear()
    lost, per_s = [], 10
    for number in range(20 * per_s):
        trial.clock.now_s += 1 / per_s
        add(trial.core, name := str(number), prompt=[number % 7] * 13, max_tokens=2)
        trial.core.check_health()
        if trial.core._open[name].replica.index == 0:
            lost.append(name)
        while name in trial.core._open.keys() - lost:
            trial.core.step()
    assert 0 < len(lost) <= SILENCE_S * per_s / 3
    assert float(lost[-1]) <= (SILENCE_S + 1) * per_s


def test_requests_that_have_ended_leave_no_deadlines_behind(begin):
    trial = begin(1, request_timeout_s=3600.0)
    add(trial.core, "first", max_tokens=10**6)
    for number in range(5 * MIN_DEADLINES):
        add(trial.core, name := f"{number % 3}")
        trial.core.abort([name])
    assert len(trial.core._deadlines) <= MIN_DEADLINES
    assert "first" in [request_id for _, request_id in trial.core._deadlines]


def test_a_control_alone_is_work_and_steps_complete_it(begin):
    trial = begin(2)
    outcome = trial.core.begin_control(LoadAdapter(AdapterRef("x", "nowhere")))
    assert trial.core.has_work()
    assert finish(trial.core) == {}
    with pytest.raises(AdapterError):
        outcome.result(0)
    assert trial.core._group.adapters == {}


def test_a_refused_adapter_leaves_the_one_that_was_loaded_after_it(begin):
    trial = begin(1)
    outcome = trial.core.begin_control(LoadAdapter(AdapterRef("x", "nowhere")))
    loaded = AdapterRef("x", "x")
    trial.core.control(LoadAdapter(loaded))
    assert isinstance(outcome.exception(0), AdapterError)
    assert trial.core._group.adapters == {"x": loaded}


def test_a_control_goes_on_without_a_replica_that_hangs_and_loses_no_step(begin):
    trial = begin(2, step_s=0.001, clock=time.monotonic, limits=ReplicaLimits(1.0))
    hung = HungControl()
    trial.engine(0).control = hung.control
    add(trial.core, "a", "b", max_tokens=50)
    seen = {}
    for output in trial.core.step().outputs:
        seen.setdefault(output.request_id, []).append(output)
    assert trial.core.control(ResetPrefixCache()) is None
    hung.is_over.set()
    for name, parts in finish(trial.core).items():
        seen.setdefault(name, []).extend(parts)
    whole = [parts for parts in seen.values() if parts[-1].finish_reason == "length"]
    assert whole
    assert all(tokens_of(parts) == [13 + i for i in range(50)] for parts in whole)
    assert not trial.router.loads.is_up(0)


def test_a_replica_that_cannot_start_again_is_tried_with_growing_pauses_and_then_stays_down(
    begin, caplog
):
    trial = begin(2)
    trial.refusals[0] = [EngineDeadError("no memory")] * 100
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    for num_starts in range(2, MAX_STARTS + 2):
        trial.clock.now_s += 31.0
        trial.core.check_health()
        assert len(trial.threads[0]) == num_starts
        eventually(lambda: trial.core.check_health() or trial.core.pids[0] is None)
    trial.clock.now_s += 31.0
    trial.core.check_health()
    assert len(trial.threads[0]) == MAX_STARTS + 1
    assert "it stays down, because it died too often" in caplog.text
    add(trial.core, "a")
    assert tokens_of(finish(trial.core)["a"]) == [13, 14, 15, 16]


def test_when_all_replicas_stay_down_the_engine_is_dead(begin):
    trial = begin(2)
    add(trial.core, "a")
    for index in (0, 1):
        trial.refusals[index] = [EngineDeadError("no memory")] * 100
        trial.current(index).kill()
    with pytest.raises(EngineDeadError, match=r"all 2 replicas are dead: .*no memory"):
        step_until_dead(trial.core, trial.clock)
    for verb in (trial.core.step, trial.core.stats, trial.core.check_health):
        with pytest.raises(EngineDeadError, match="all 2 replicas are dead"):
            verb()
    with pytest.raises(EngineDeadError, match="all 2 replicas are dead"):
        trial.core.control(ResetPrefixCache())
    trial.core.abort(["a"])


def test_a_start_at_which_one_fails_raises_its_reason_and_ends_the_others():
    trial = ReplicaTrial(3)
    trial.refusals[1] = [AdapterError("no such thing")]
    with pytest.raises(AdapterError, match="no such thing"):
        trial.core.start()
    assert all(thread.num_ends for (thread,) in trial.threads)
    trial.close()


def test_a_first_start_that_hangs_is_an_error_after_its_timeout():
    limits = ReplicaLimits(start_timeout_s=0.3)
    trial = ReplicaTrial(2, clock=time.monotonic, limits=limits, hanging={1})
    with pytest.raises(EngineDeadError, match=r"replica 1: .* 0.3 s .*worker_start_timeout_s"):
        trial.core.start()
    assert all(thread.num_ends for (thread,) in trial.threads)
    trial.close()


def test_a_restart_that_hangs_is_ended_and_tried_again(begin):
    trial = begin(2)
    trial.hanging = {0}
    trial.current(0).kill()
    eventually(lambda: trial.core.check_health() or not trial.router.loads.is_up(0))
    trial.clock.now_s += FIRST_PAUSE_S
    trial.core.check_health()
    trial.clock.now_s += ReplicaLimits().start_s - 1
    trial.core.check_health()
    assert (trial.current(0).num_ends, trial.core.pids[0]) == (0, trial.current(0).pid)
    trial.clock.now_s += 1
    trial.core.check_health()
    assert (trial.current(0).num_ends, trial.core.pids[0]) == (1, None)
    trial.hanging = set()
    wait_until_up(trial, 0, 3)
    trial.clock.now_s += 1000
    trial.core.check_health()
    assert trial.router.loads.is_up(0)
    assert trial.core._group._seconds_to_deadline() == math.inf


def test_a_wake_ends_a_step_that_waits(begin):
    trial = begin(2, step_s=1.0)
    add(trial.core, "a", max_tokens=1)
    threading.Timer(0.1, trial.core.wake).start()
    started = time.monotonic()
    assert trial.core.step() is None
    assert time.monotonic() - started < 0.9


def test_a_kill_ends_a_step_that_waits_and_nothing_is_started_again(begin):
    trial = begin(2)
    for index in (0, 1):
        trial.engine(index).go.clear()
    add(trial.core, "a", "b")
    threading.Timer(0.1, trial.core.kill).start()
    with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
        step_until_dead(trial.core)
    assert [len(threads) for threads in trial.threads] == [1, 1]


def test_after_a_shutdown_every_verb_says_so(begin):
    trial = begin(2)
    trial.core.shutdown()
    trial.core.shutdown()
    trial.core.wake()
    assert all(trial.engine(index).is_shut_down for index in (0, 1))
    for verb in (trial.core.step, trial.core.stats, trial.core.check_health):
        with pytest.raises(EngineDeadError, match="shut down"):
            verb()


def test_in_a_fork_every_verb_says_so_and_ending_does_nothing(begin):
    trial = begin(2)
    core = trial.core
    pid = os.fork()
    if pid == 0:
        refused = 0
        for verb in (
            core.step, core.stats, core.check_health,
            lambda: core.control(ResetPrefixCache()), lambda: add(core, "a"),
        ):  # fmt: skip
            with contextlib.suppress(EngineDeadError):
                verb()
                break
            refused += 1
        core.abort(["a"])
        core.wake()
        core.kill()
        core.shutdown()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    add(core, "a")
    assert tokens_of(finish(core)["a"]) == [13, 14, 15, 16]


@pytest.mark.parametrize("seed", range(6))
def test_with_deaths_at_any_time_every_request_ends_once(begin, seed):
    rng = random.Random(seed)
    trial = begin(3, step_s=0.001, clock=time.monotonic)
    names, ended, tokens = [], {}, {}
    deadline = time.monotonic() + 20
    while len(names) < 60 or trial.core.has_work():
        assert time.monotonic() < deadline, "still busy"
        if len(names) < 60:
            names.append(f"r{len(names)}")
            add(
                trial.core, names[-1], prompt=[rng.randrange(5)] * 9, max_tokens=rng.randrange(1, 9)
            )
        if rng.random() < 0.05 and sum(trial.router.loads.is_up(i) for i in range(3)) > 1:
            index = rng.choice([i for i in range(3) if trial.router.loads.is_up(i)])
            if not trial.current(index).num_kills:
                trial.current(index).kill()
        for output in trial.core.step().outputs:
            assert output.request_id not in ended
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                ended[output.request_id] = output
    assert set(ended) == set(names)
    runs = [r for threads in trial.threads for thread in threads for r in thread.core.requests]
    assert all(sum(r.request_id == name for r in runs) <= 2 for name in names)
    for request in runs:
        output, found = ended[request.request_id], tokens[request.request_id]
        first = request.token_ids[-1] + 1
        assert found == list(range(first, first + len(found)))
        if output.error is None:
            assert len(found) == request.max_tokens
        else:
            assert output.error.code == ReplicaDeadError.code


def test_the_first_output_and_each_step_name_their_replica(begin):
    core = begin().core
    add(core, "a", "b")
    outputs, steps = [], []
    while core.has_work():
        step = core.step()
        if step is not None:
            outputs += step.outputs
            steps += step.steps
    firsts = {output.request_id: output.replica for output in outputs if output.started_s}
    assert sorted(firsts.values()) == [0, 1]
    assert {step.replica for step in steps} == {0, 1}
