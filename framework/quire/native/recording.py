"""Calls of compiled functions: noted while they are made, and made again.

A call from Python takes about as long as the work that a small model gives it. What is noted is a
list of functions and their arguments, so making it again is all that is left of a pass over layers.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Function = Callable[..., object]


class Recording:
    """Calls in their order.

    Attributes:
        reason: Why they cannot be made again, if so.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Function, tuple[object, ...]]] = []
        self.reason: str | None = None

    def note(self, function: Function, arguments: tuple[object, ...]) -> None:
        """Note a call."""
        self._calls.append((function, arguments))

    def refuse(self, why: str) -> None:
        """Tell why the calls cannot be made again; the first reason is kept."""
        self.reason = self.reason or why

    def repeat(self) -> None:
        """Make the calls again; what their pointers point to must still be there."""
        for function, arguments in self._calls:
            function(*arguments)


class _Current(threading.local):
    recording: Recording | None = None


_CURRENT = _Current()


@contextmanager
def recording() -> Iterator[Recording]:
    """Note the calls that this thread makes meanwhile."""
    outer, made = _CURRENT.recording, Recording()
    _CURRENT.recording = made
    try:
        yield made
    finally:
        _CURRENT.recording = outer


def traceable(function: Function, name: str, repeats: bool) -> Function:
    """Return the same function, whose calls are noted.

    Args:
        function: As ctypes has it.
        name: For people.
        repeats: Whether its calls may be made again.
    """
    current = _CURRENT

    @functools.wraps(function, assigned=())
    def call(*arguments: object) -> None:
        function(*arguments)
        noted = current.recording
        if noted is not None:
            if repeats:
                noted.note(function, arguments)
            else:
                noted.refuse(f"{name} is called, which cannot be repeated")

    return call
