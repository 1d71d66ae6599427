"""Slow grammars do not keep quick ones waiting, and failed ones are not compiled again."""

import os
import time
from pathlib import Path

import pytest
from grammar_hosts import WORDS, fork_server_of, ready, wait_for_outcome
from processes import eventually, workers_of

from quire.errors import GrammarError, OverloadedError
from quire.sampling_params import StructuredOutputsParams as Params

QUICK = Params(regex="[0-9]{35}")
BAD = Params(regex="(")


def slow(index):
    return Params(regex=f"[ab]*a[ab]{{24}}{index}")  # never within its time


def seconds_until_ready(host, request_id):
    start = time.monotonic()
    assert wait_for_outcome(host, request_id, within_s=120.0) is None
    return time.monotonic() - start


@pytest.mark.parametrize("client", ["another", ""], ids=["named", "nameless"])
def test_a_quick_grammar_does_not_wait_for_24_slow_ones(make_host, client):
    host = make_host(timeout_s=60.0, max_compiling=2)
    ready(host, "warm", WORDS)
    for index in range(24):
        host.submit(f"slow {index}", slow(index), client=client and "one")
    host.submit("quick", QUICK, client=client)
    assert seconds_until_ready(host, "quick") < 60.0  # usual is 2.5, and without turns 1,440


def test_a_client_that_has_had_less_time_comes_first(make_host):
    host = make_host(timeout_s=60.0, max_compiling=1, turn_s=1.0)
    for index in range(5):
        host.submit(f"slow {index}", slow(index), client="one")
    time.sleep(0.3)
    host.submit("quick", Params(choice=("quick",)), client="another")
    assert wait_for_outcome(host, "quick") is None
    times = [host._requests[f"slow {index}"].compile_s for index in range(5)]
    assert sum(seconds > 0 for seconds in times) <= 2, "it starts before those that came first"


def test_a_grammar_whose_turn_was_too_short_gets_longer_ones(make_host):
    host = make_host(timeout_s=60.0, max_compiling=1, turn_s=0.02)
    host.submit("slow 0", slow(0))
    host.submit("slow 1", slow(1))
    turns, had, until = [], 0.0, time.monotonic() + 20.0
    while max(turns, default=0.0) < 0.06:
        assert time.monotonic() < until, f"the turns of a slow grammar stay short: {turns}"
        host.wait_for_compile(0.05)
        assert host.poll() == []
        if (now_had := host._requests["slow 0"].compile_s) > had:
            turns.append(now_had - had)
            had = now_had
    assert turns[0] < max(turns)


def test_a_new_grammar_does_not_wait_for_the_long_turn_of_a_slow_one(make_host):
    host = make_host(timeout_s=60.0, max_compiling=1)
    host.submit("slow", slow(0), client="one")
    host._requests["slow"].compile_s = 30.0
    host.submit("quick", QUICK, client="another")
    assert seconds_until_ready(host, "quick") < 10.0
    assert host._requests["slow"].compile_s < 40.0


def test_no_grammar_makes_way_while_none_waits(make_host):
    host = make_host(timeout_s=60.0, max_compiling=1, turn_s=0.01)
    host.submit("slow", slow(0))
    for _ in range(20):
        assert not host.wait_for_compile(0.01)
        host.poll()
    assert host._requests["slow"].compile_s == 0.0


def test_slow_grammars_end_though_quick_ones_keep_coming(make_host):
    host = make_host(timeout_s=0.8, max_compiling=2)
    host.submit("slow", slow(0), client="one")
    outcomes, count, until = {}, 0, time.monotonic() + 30.0
    waiting = set()
    while "slow" not in outcomes:
        assert time.monotonic() < until, "it never had the time to reach its limit"
        while len(waiting) < 6:  # so that one is always in the queue
            count += 1
            host.submit(f"quick {count}", Params(choice=(str(count),)), client=str(count))
            waiting.add(f"quick {count}")
        host.wait_for_compile(0.1)
        outcomes.update(host.poll())
        for name in waiting & outcomes.keys():
            host.release(name)
            waiting.remove(name)
    assert "0.8 s of CPU time" in str(outcomes["slow"])


def test_time_of_requests_that_leave_while_they_compile_is_counted(make_host):
    host = make_host(timeout_s=60.0)
    host.submit("slow", slow(0), client="one")
    time.sleep(0.2)
    host.release("slow")
    assert host._shares["one"] > 0.15


@pytest.mark.parametrize("params", [BAD, slow(0)], ids=["refused", "too slow"])
def test_a_grammar_that_failed_is_not_compiled_again(make_host, params):
    host = make_host(timeout_s=0.3)
    host.submit("first", params)
    error = wait_for_outcome(host, "first")
    assert isinstance(error, GrammarError)
    host.release("first")
    host.submit("second", params)
    assert host.poll() == [("second", error)]
    host.release("second")


def test_a_client_whose_grammars_wait_is_refused_more_and_others_are_not(make_host):
    host = make_host(timeout_s=60.0, max_compiling=1, max_waiting=8)
    for index in range(4):
        host.submit(f"slow {index}", slow(index), client="one")
    refused = dict(host.poll())
    assert list(refused) == ["slow 3"], "one compiles and two wait, a quarter of eight"
    error = refused["slow 3"]
    assert isinstance(error, OverloadedError)
    assert "2 new grammars of this client are waiting" in str(error)
    assert error.retry_after_s > 0
    host.submit("slow 2 again", slow(2), client="one")  # no further grammar
    host.submit("quick", QUICK, client="another")
    assert wait_for_outcome(host, "quick") is None
    host.release("slow 3")
    host.submit("quick again", QUICK, client="one")
    assert ("quick again", None) in host.poll(), "what is compiled needs no place"


def test_grammars_of_nameless_requests_may_all_wait(make_host):
    host = make_host(timeout_s=60.0, max_compiling=1, max_waiting=4)
    for index in range(12):
        host.submit(f"slow {index}", slow(index))
    assert host.poll() == []


def test_a_client_that_waits_is_served_before_one_that_has_had_time(make_host):
    host = make_host(timeout_s=60.0, max_compiling=1)
    for index in range(3):
        host.submit(f"slow {index}", slow(index), client="one")
    outcomes = []
    while host._shares["one"] < 0.05:  # until the first of them has had a turn
        host.wait_for_compile(0.05)
        outcomes += host.poll()
    for index in range(3):
        choice = Params(choice=(f"quick {index}",))
        host.submit(f"quick {index}", choice, client="another")
    until = time.monotonic() + 30.0
    while len(outcomes) < 3:
        assert time.monotonic() < until
        host.wait_for_compile(0.05)
        outcomes += host.poll()
    assert sorted(outcomes) == [(f"quick {index}", None) for index in range(3)]


def test_only_so_many_errors_are_kept(make_host):
    host = make_host(max_failures=2)
    for name in ("(", "(a", "(b"):
        host.submit(name, Params(regex=name))
        wait_for_outcome(host, name)
    assert len(host._failures) == 2
    host.submit("again", Params(regex="("))
    assert host.poll() == [], "the oldest was forgotten, so it compiles once more"


def test_compiling_is_idle_work_and_filling_masks_is_not(make_host):
    host = make_host(timeout_s=60.0)
    ready(host, "good", WORDS)
    host.submit("slow", slow(0))

    def policies():
        threads = [
            int(task.name)
            for pid in workers_of(fork_server_of(host).pid)
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
        return sorted(os.sched_getscheduler(thread) for thread in threads)

    eventually(lambda: policies() == [os.SCHED_OTHER, os.SCHED_OTHER, os.SCHED_IDLE])
