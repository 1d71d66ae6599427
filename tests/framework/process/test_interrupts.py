"""Ctrl-C comes after a piece of work, or in a part that allows it, unless it comes twice."""

import contextlib
import signal
import sys
import threading

import pytest

from quire.process import interrupts as interrupts_module
from quire.process.interrupts import Interrupts


@pytest.fixture(autouse=True)
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def press():
    signal.raise_signal(signal.SIGINT)


def work(num_presses, done):
    with Interrupts():
        for _ in range(num_presses):
            press()
            done.append("work")


def test_work_without_an_interrupt_is_done():
    done = []
    work(0, done)
    with Interrupts() as interrupts, interrupts.allowed:
        done.append("more")
    assert done == ["more"]


def test_an_interrupt_waits_for_the_end_of_the_work():
    done = []
    with pytest.raises(KeyboardInterrupt):
        work(1, done)
    assert done == ["work"]


def test_a_second_interrupt_does_not_wait():
    done = []
    with pytest.raises(KeyboardInterrupt):
        work(3, done)
    assert done == ["work"]


def test_an_interrupt_waits_for_a_part_that_allows_it_and_comes_there_once():
    interrupts, done = Interrupts(), []

    def in_parts():
        with interrupts:
            press()
            done.append("plan")
            with interrupts.allowed:
                done.append("never")

    with pytest.raises(KeyboardInterrupt):
        in_parts()
    assert done == ["plan"]
    with interrupts, interrupts.allowed:  # again, and nothing has remained
        done.append("more")
    assert done == ["plan", "more"]


def test_an_interrupt_comes_at_once_in_a_part_that_allows_it_and_waits_after_it():
    interrupts, done = Interrupts(), []

    def in_parts(num_within, num_after):
        with interrupts:
            done.append("plan")
            with interrupts.allowed:
                for _ in range(num_within):
                    press()
                done.append("compute")
            for _ in range(num_after):
                press()
            done.append("apply")

    with pytest.raises(KeyboardInterrupt):
        in_parts(1, 0)
    assert done == ["plan"]
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        in_parts(0, 1)
    assert done == ["plan", "compute", "apply"]


def test_work_within_other_work_waits_for_what_the_other_allows():
    outer, done = Interrupts(), []

    def nested():
        with outer:
            work(1, done)
            done.append("outer")
            with outer.allowed:
                done.append("never")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert done == ["work", "outer"]
    done.clear()

    def within_allowed():
        with outer, outer.allowed:
            work(1, done)
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        within_allowed()
    assert done == ["work"]


@pytest.mark.parametrize(
    ("num_presses", "raised"), [(0, ZeroDivisionError), (1, KeyboardInterrupt)]
)
def test_an_error_of_the_work_is_no_reason_to_forget_an_interrupt(num_presses, raised):
    def fail():
        with Interrupts():
            for _ in range(num_presses):
                press()
            raise ZeroDivisionError

    with pytest.raises(raised):
        fail()


def test_another_handler_gets_the_interrupt_once():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        work(1, seen)
        with Interrupts() as interrupts:
            press()
            with interrupts.allowed:
                seen.append("compute")
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["work", signal.SIGINT, signal.SIGINT, "compute"]


def test_an_interrupt_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work(2, done := [])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["work", "work"]


def test_other_threads_let_nothing_wait():
    found = []

    def look():
        with Interrupts() as interrupts, interrupts.allowed:
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    assert found == [signal.default_int_handler]


class PressAtLine:
    """A trace that presses once, before a line of those that begin or end a context."""

    FUNCTIONS = ("__enter__", "__exit__", "allow")

    def __init__(self, line):
        self.line = line
        self.num_lines = 0

    def __call__(self, frame, event, argument):
        is_wanted = frame.f_code.co_filename == interrupts_module.__file__
        if is_wanted and frame.f_code.co_name in self.FUNCTIONS and event == "line":
            self.num_lines += 1
            if self.num_lines == self.line:
                press()
        return self


@pytest.mark.parametrize("waits", [False, True], ids=["one", "a second one"])
@pytest.mark.parametrize("line", range(1, 25))
def test_an_interrupt_at_any_line_leaves_the_next_work_in_order(line, waits):
    interrupts, before, done = Interrupts(), sys.gettrace(), []

    def in_parts(num_presses):
        with interrupts:
            for _ in range(num_presses):
                press()
            done.append("plan")
            with interrupts.allowed:
                done.append("compute")

    sys.settrace(PressAtLine(line))
    with contextlib.suppress(KeyboardInterrupt):
        in_parts(num_presses=waits)
    sys.settrace(before)
    done.clear()
    in_parts(num_presses=0)
    assert done == ["plan", "compute"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        in_parts(num_presses=1)
    assert done == ["plan", "compute", "plan"]
