"""Injection: calls are counted for each point, and each fault does what its name says."""

import logging
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from quire_faults.injection import EXIT_STATUS, Injection, injection_of
from quire_faults.rules import parse


def made(text):
    return Injection(parse(text))


def outcome(injection, point):
    try:
        return injection.reach(point)
    except (RuntimeError, MemoryError) as error:
        return type(error).__name__


def test_points_without_a_rule_do_nothing():
    injection = made("sampler:raise")
    assert [outcome(injection, "policy.order") for _ in range(3)] == [None] * 3
    assert injection.concerns("sampler", "policy.order")
    assert not injection.concerns("policy.order")
    assert not made("").rules


def test_calls_are_counted_for_each_point():
    injection = made("sampler:raise@2,policy.order:exhaust@3+")
    assert [outcome(injection, "sampler") for _ in range(3)] == [None, "RuntimeError", None]
    orders = [outcome(injection, "policy.order") for _ in range(4)]
    assert orders == [None, None, "MemoryError", "MemoryError"]


def test_calls_of_several_threads_are_counted_once_each():
    injection = made("sampler:raise@500")
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: outcome(injection, "sampler"), range(1000)))
    assert outcomes.count("RuntimeError") == 1


def test_a_corrupt_or_withheld_result_is_left_to_the_caller():
    injection = made("kv_store.report:corrupt@1,kv_store.report:withhold@2")
    assert [injection.reach("kv_store.report") for _ in range(3)] == ["corrupt", "withhold", None]


def test_two_faults_of_one_call_are_both_injected():
    injection = made("sampler:delay@1:30ms,sampler:raise@1")
    started = time.monotonic()
    assert outcome(injection, "sampler") == "RuntimeError"
    assert time.monotonic() - started >= 0.03


def test_the_first_injection_of_a_rule_is_logged(caplog):
    injection = made("sampler:delay:0.1ms")
    for _ in range(3):
        injection.reach("sampler")
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "sampler:delay:0.1ms at call 1" in caplog.text


def test_the_rules_are_logged_with_the_option_that_they_need(caplog):
    injection_of({"QUIRE_FAULTS": "sampler:raise,request_received:raise"})
    first, second = caplog.messages
    assert "if the engine runs with --samplers default faults" in first
    assert second.endswith("will be injected")
    assert not injection_of({}).rules


END = """
import sys
from quire_faults.injection import Injection
from quire_faults.rules import parse
Injection(parse(sys.argv[1])).reach("sampler")
print("lives")
"""


def run(rule):
    command = [sys.executable, "-c", END, rule]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("fault", "status"), [("crash", -9), ("exit", EXIT_STATUS)])
def test_a_process_dies(fault, status):
    done = run(f"sampler:{fault}")
    assert (done.returncode, done.stdout) == (status, "")


@pytest.mark.parametrize("fault", ["hang", "freeze", "delay"])
def test_a_call_takes_time_and_ends(fault):
    assert run(f"sampler:{fault}:5ms").stdout == "lives\n"


COUNT = """
import threading, time
from quire_faults.injection import Injection
from quire_faults.rules import parse
ticks = [time.monotonic()]
def tick():
    while len(ticks) < 10_000:
        time.sleep(0.001)
        ticks.append(time.monotonic())
threading.Thread(target=tick, daemon=True).start()
time.sleep(0.05)
Injection(parse("sampler:FAULT:600ms")).reach("sampler")
print(max(later - earlier for earlier, later in zip(ticks, ticks[1:])) > 0.5)
"""


@pytest.mark.parametrize(("fault", "stops_threads"), [("hang", "False"), ("freeze", "True")])
def test_only_a_freeze_stops_the_other_threads(fault, stops_threads):
    command = [sys.executable, "-c", COUNT.replace("FAULT", fault)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == stops_threads
