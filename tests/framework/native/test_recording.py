"""Calls of compiled functions are noted by the thread that asks, and made again in order."""

import ctypes
import threading
from pathlib import Path

import pytest
from cpp_compilers import NEEDS_COMPILER

from quire.native.library import NativeLibrary
from quire.native.recording import recording, traceable

DOUBLING = Path(__file__).with_name("doubling.cpp")
FUNCTIONS = {"twice": (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)}


def test_calls_are_made_again_in_their_order():
    made = []
    first = traceable(lambda *given: made.append(("first", given)), "first", repeats=True)
    second = traceable(lambda *given: made.append(("second", given)), "second", repeats=True)
    with recording() as calls:
        first(1, 2)
        second()
        first(3)
    second("not noted")
    del made[:]
    for _ in range(2):
        calls.repeat()
    assert made == [("first", (1, 2)), ("second", ()), ("first", (3,))] * 2
    assert calls.reason is None


def test_a_call_that_cannot_be_repeated_is_a_flaw_and_the_first_one_is_told():
    function = traceable(lambda: None, "draws: one", repeats=False)
    other = traceable(lambda: None, "draws: other", repeats=False)
    with recording() as calls:
        function()
        other()
    assert calls.reason == "draws: one is called, which cannot be repeated"


def test_what_fails_is_not_noted():
    calls_made = []

    def fails(given):
        calls_made.append(given)
        raise ctypes.ArgumentError("wrong type")

    function = traceable(fails, "fails", repeats=True)
    with pytest.raises(ctypes.ArgumentError), recording() as calls:
        function("x")
    calls.repeat()
    assert calls_made == ["x"]


def test_each_thread_notes_its_own_calls():
    made = []
    function = traceable(made.append, "append", repeats=True)
    with recording() as calls:
        thread = threading.Thread(target=function, args=("elsewhere",))
        thread.start()
        thread.join()
        function("here")
    del made[:]
    calls.repeat()
    assert made == ["here"]


def test_a_recording_within_another_has_its_calls_alone():
    made = []
    function = traceable(made.append, "append", repeats=True)
    with recording() as outer:
        function("before")
        with recording() as inner:
            function("within")
        function("after")
    del made[:]
    inner.repeat()
    assert made == ["within"]
    outer.repeat()
    assert made == ["within", "before", "after"]


@NEEDS_COMPILER
def test_functions_of_a_library_are_noted_if_it_says_so():
    numbers = (ctypes.c_float * 3)(1, 2, 3)
    twice = NativeLibrary("doubling", DOUBLING, FUNCTIONS, repeats=True).load().twice
    with recording() as calls:
        twice(ctypes.addressof(numbers), 3, 1)
    calls.repeat()
    assert list(numbers) == [4, 8, 12]
    plain = NativeLibrary("doubling", DOUBLING, FUNCTIONS).load().twice
    with recording() as refused:
        plain(ctypes.addressof(numbers), 3, 1)
    assert refused.reason == "doubling: twice is called, which cannot be repeated"
