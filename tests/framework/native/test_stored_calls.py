"""A stored call passes what ctypes passes, and a failure raises what it raises in Python."""

import ctypes
from ctypes import c_char, c_double, c_float, c_int, c_int32, c_int64, c_long, c_void_p
from pathlib import Path

import pytest
from cpp_compilers import NEEDS_COMPILER
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import PluginLoadError
from quire.native.library import NativeLibrary
from quire.native.stored_calls import letters_of
from quire.native.tracing import trace_calls, traceable

pytestmark = NEEDS_COMPILER

SOURCE = Path(__file__).with_name("replayed.cpp")
DOUBLING = Path(__file__).with_name("doubling.cpp")
NOTE = (
    c_void_p, c_int32, c_float, c_int64, c_double, c_void_p, c_float, c_int32, c_int64, c_int64,
    c_float,
)  # fmt: skip
FAIL_BELOW = (ctypes.POINTER(c_int64), c_int64)
NOTED_BYTES = 4 + 4 + 8 + 8 + 8 + 4 + 4 + 8 + 8 + 4


class FailedError(Exception):
    pass


def raise_failed(status, function, arguments):
    if status:
        raise FailedError(status, arguments[1])


@pytest.fixture(scope="module")
def note():
    return NativeLibrary("notes", SOURCE, {"note": NOTE}, repeats=True).load().note


@pytest.fixture(scope="module")
def fail_below():
    functions = {"fail_below": FAIL_BELOW}
    library = NativeLibrary("failing", SOURCE, functions, repeats=True, check=raise_failed)
    return library.load().fail_below


class Notes:
    """What the calls of `note` have received."""

    def __init__(self, num_calls):
        self._bytes = (c_char * (8 + num_calls * NOTED_BYTES))()
        self.address = ctypes.addressof(self._bytes)
        self.clear()

    def clear(self):
        ctypes.memset(self.address, 0, len(self._bytes))
        self._bytes[0] = bytes([8])

    def read(self):
        return bytes(self._bytes)


INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32)
POINTERS = st.one_of(st.none(), st.integers(0, 2**64 - 1))
CALLS = st.tuples(
    INT32, FLOATS, INT64, st.floats(), POINTERS, FLOATS, INT32, INT64, INT64, st.integers(0, 9)
)


@settings(deadline=None, max_examples=50)
@given(calls=st.lists(CALLS, min_size=1, max_size=5))
def test_stored_calls_pass_what_ctypes_passes(note, calls):
    notes = Notes(len(calls))
    for arguments in calls:
        note(notes.address, *arguments)
    expected = notes.read()
    with trace_calls() as trace:
        for arguments in calls:
            note(notes.address, *arguments)
    for _ in range(2):
        notes.clear()
        trace.replay()
        assert notes.read() == expected


def test_the_pointers_of_ctypes_are_passed(note):
    notes, number = Notes(3), c_int64(5)
    rest, pointers = (c_float(2), 1, 2, 3, 4), (ctypes.byref(number), ctypes.pointer(number), None)
    for pointer in pointers:
        note(notes.address, True, 1, 2, 3, pointer, *rest)
    expected = notes.read()
    notes.clear()
    with trace_calls() as trace:
        for pointer in pointers:
            note(notes.address, True, 1, 2, 3, pointer, *rest)
    trace.replay()
    assert notes.read() == expected
    assert expected.count(ctypes.addressof(number).to_bytes(8, "little")) == 2


@settings(deadline=None, max_examples=30)
@given(limits=st.lists(st.integers(0, 20), min_size=1, max_size=12))
def test_a_replay_ends_at_the_call_that_fails_with_its_error(fail_below, limits):
    number = c_int64(0)
    with trace_calls() as trace:
        for limit in limits:
            fail_below(ctypes.byref(number), limit)
    failing = [i for i, limit in enumerate(limits) if i + 1 < limit]
    if not failing:
        trace.replay()
        assert number.value == len(limits)
        return
    with pytest.raises(FailedError) as caught:
        trace.replay()
    assert caught.value.args == (7, limits[failing[0]])
    assert number.value == failing[0] + 1


def test_compiled_and_python_functions_are_replayed_in_their_order(fail_below):
    number, seen = c_int64(0), []
    look = traceable(lambda: seen.append(number.value), "look", repeats=True)
    functions = {"twice": (c_void_p, c_int64, c_int64)}
    twice = NativeLibrary("doubling", DOUBLING, functions, repeats=True).load().twice
    halves = (c_float * 1)(0.5)
    with trace_calls() as trace:
        fail_below(ctypes.byref(number), 0)
        twice(ctypes.addressof(halves), 1, 1)
        look()
        fail_below(ctypes.byref(number), 0)
        fail_below(ctypes.byref(number), 0)
        look()
    trace.replay()
    assert seen == [1, 3]
    assert halves[0] == 1


@pytest.mark.parametrize("arguments", [(1,), (1, 2, 3), ("text", 1), (1, 2.5), (1, None)])
def test_arguments_that_ctypes_refuses_are_refused_when_they_are_traced(fail_below, arguments):
    with pytest.raises((TypeError, ctypes.ArgumentError)):
        fail_below(*arguments)
    with pytest.raises((TypeError, ctypes.ArgumentError)), trace_calls():
        fail_below(*arguments)


@pytest.mark.parametrize(
    ("types", "declared"),
    [((c_void_p, c_int), "Pi"), ((c_void_p,), "P"), ((c_int64, c_int64), "qq")],
)
def test_types_that_are_declared_wrongly_are_refused(types, declared):
    library = NativeLibrary("failing", SOURCE, {"fail_below": types}, repeats=True)
    with pytest.raises(PluginLoadError, match=f"fail_below are 'Pq' in C.* '{declared}' in Python"):
        library.load()


def test_types_are_letters():
    types = (c_void_p, FAIL_BELOW[0], ctypes.c_char_p, c_float, c_double, c_int, c_long)
    assert letters_of(types) == "PPPfdi" + ("q" if ctypes.sizeof(c_long) == 8 else "i")
    assert letters_of((ctypes.c_bool, ctypes.c_uint16, ctypes.c_uint64, ctypes.c_size_t)) == "bhqq"
