"""Tracing and replay of calls of compiled functions.

For a small model, the Python around a call takes about as long as the call's work. A trace is a
list of functions with their arguments, so a replay is a forward pass without that Python. Calls of
compiled functions that follow each other are replayed by one call.

While a thread traces, the functions are not called: a trace costs the time of its Python, and has
no effect on what the calls would write to.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.native.stored_calls import ReplayableFunction, StoredCalls

Function = Callable[..., object]


class CallTrace:
    """Traced calls in order.

    Attributes:
        reason: Reason why the calls cannot be replayed; None: they can.
    """

    def __init__(self) -> None:
        self._parts: list[StoredCalls | Callable[[], object]] = []
        self.reason: str | None = None

    def append(self, function: Function, arguments: tuple[object, ...]) -> None:
        """Append a call of a Python function."""
        self._parts.append(functools.partial(function, *arguments))

    def append_compiled(
        self, replayable: ReplayableFunction, function: Function, arguments: tuple[object, ...]
    ) -> None:
        """Append a call of a compiled function; `function` is the same one in ctypes."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, StoredCalls):
            last = StoredCalls()
            self._parts.append(last)
        last.append(replayable, function, arguments)

    def mark_unreplayable(self, reason: str) -> None:
        """Set the reason why the calls cannot be replayed; the first reason is kept."""
        self.reason = self.reason or reason

    def replay(self) -> None:
        """Make the calls; the memory behind their pointers must still be allocated."""
        for part in self._parts:
            part.replay() if isinstance(part, StoredCalls) else part()


class _ThreadState(threading.local):
    trace: CallTrace | None = None


_THREAD = _ThreadState()


@contextmanager
def trace_calls() -> Iterator[CallTrace]:
    """Trace the calls of traceable functions in the `with` block, in place of making them.

    Calls of other threads are made.
    """
    outer, trace = _THREAD.trace, CallTrace()
    _THREAD.trace = trace
    try:
        yield trace
    finally:
        _THREAD.trace = outer


def traceable(function: Function, name: str, repeats: bool) -> Function:
    """Return a wrapper of a function whose calls are traced.

    Args:
        function: Python function, or function of a ctypes library.
        name: Name of the function for messages.
        repeats: Whether its calls may be replayed.
    """
    thread = _THREAD

    @functools.wraps(function, assigned=())
    def call(*arguments: object) -> None:
        trace = thread.trace
        if trace is None:
            function(*arguments)
        elif repeats:
            trace.append(function, arguments)
        else:
            trace.mark_unreplayable(f"{name} is called, which cannot be replayed")

    return call


def traceable_compiled(function: Function, replayable: ReplayableFunction) -> Function:
    """Return a wrapper of a compiled function whose calls are traced.

    Args:
        function: The function in ctypes.
        replayable: The same function for replays.
    """
    thread = _THREAD

    @functools.wraps(function, assigned=())
    def call(*arguments: object) -> None:
        trace = thread.trace
        if trace is None:
            function(*arguments)
        else:
            trace.append_compiled(replayable, function, arguments)

    return call
