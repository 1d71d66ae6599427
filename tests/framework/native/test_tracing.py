"""Calls are traced by the thread that asks for it, without making them, and replayed in order."""

import ctypes
import threading
from pathlib import Path

from cpp_compilers import NEEDS_COMPILER

from quire.native.library import NativeLibrary
from quire.native.tracing import trace_calls, traceable

DOUBLING = Path(__file__).with_name("doubling.cpp")
FUNCTIONS = {"twice": (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)}


def test_calls_are_replayed_in_order():
    made = []
    first = traceable(lambda *given: made.append(("first", given)), "first", repeats=True)
    second = traceable(lambda *given: made.append(("second", given)), "second", repeats=True)
    with trace_calls() as calls:
        first(1, 2)
        second()
        first(3)
    assert made == []
    second("not traced")
    assert made == [("second", ("not traced",))]
    del made[:]
    for _ in range(2):
        calls.replay()
    assert made == [("first", (1, 2)), ("second", ()), ("first", (3,))] * 2
    assert calls.reason is None


def test_of_calls_that_cannot_be_replayed_the_first_is_the_reason():
    function = traceable(lambda: None, "samplers: one", repeats=False)
    other = traceable(lambda: None, "samplers: other", repeats=False)
    with trace_calls() as calls:
        function()
        other()
    assert calls.reason == "samplers: one is called, which cannot be replayed"


def test_a_call_that_cannot_be_replayed_is_not_made():
    made = []
    function = traceable(made.append, "append", repeats=False)
    with trace_calls():
        function(1)
    assert made == []


def test_each_thread_traces_its_own_calls():
    made = []
    function = traceable(made.append, "append", repeats=True)
    with trace_calls() as calls:
        thread = threading.Thread(target=function, args=("elsewhere",))
        thread.start()
        thread.join()
        function("here")
    assert made == ["elsewhere"]
    calls.replay()
    assert made == ["elsewhere", "here"]


def test_a_trace_within_another_has_its_calls_alone():
    made = []
    function = traceable(made.append, "append", repeats=True)
    with trace_calls() as outer:
        function("before")
        with trace_calls() as inner:
            function("within")
        function("after")
    inner.replay()
    assert made == ["within"]
    outer.replay()
    assert made == ["within", "before", "after"]


@NEEDS_COMPILER
def test_functions_of_a_library_are_traced_if_it_declares_repeats():
    numbers = (ctypes.c_float * 3)(1, 2, 3)
    twice = NativeLibrary("doubling", DOUBLING, FUNCTIONS, repeats=True).load().twice
    twice(ctypes.addressof(numbers), 3, 1)
    with trace_calls() as calls:
        twice(ctypes.addressof(numbers), 3, 1)
    assert list(numbers) == [2, 4, 6]
    calls.replay()
    assert list(numbers) == [4, 8, 12]
    plain = NativeLibrary("doubling", DOUBLING, FUNCTIONS).load().twice
    with trace_calls() as refused:
        plain(ctypes.addressof(numbers), 3, 1)
    assert refused.reason == "doubling: twice is called, which cannot be replayed"
