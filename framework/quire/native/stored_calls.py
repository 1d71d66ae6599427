"""Calls of compiled functions, stored with their converted arguments and made again by one call.

The interpreter and ctypes take about a microsecond for a call, as long as a small layer. A stored
call is the function's address and its arguments as C++ reads them (`replay.h`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import CDLL, c_char_p, c_int, c_int64, c_uint64, c_void_p
from typing import Any, ClassVar

Check = Callable[[int, Any, tuple[Any, ...]], None]

ARGUMENT_BYTES = 8
FLOATS = {ctypes.c_float: "f", ctypes.c_double: "d"}
INTEGERS = {1: "b", 2: "h", 4: "i", 8: "q"}  # by size


class _Function(ctypes.Structure):
    """The C struct `Function`."""

    _fields_: ClassVar = [("types", c_char_p), ("make_call", c_void_p)]


class _StoredCall(ctypes.Structure):
    """The C struct `StoredCall`."""

    _fields_: ClassVar = [("make_call", c_void_p), ("arguments", c_void_p)]


class ReplayableFunction:
    """A function of a library whose calls can be stored.

    Args:
        library: Library that was compiled with this function as replayable.
        name: Name of the function.

    Attributes:
        types: A letter for the type of each parameter in C++.
        make_call: Address of the C++ function that makes a stored call.
        replay_calls: Function of the library that makes stored calls of any libraries.
    """

    def __init__(self, library: CDLL, name: str) -> None:
        describe = library[f"replayable_{name}"]
        describe.argtypes, describe.restype = (), ctypes.POINTER(_Function)
        described = describe().contents
        self.types: str = described.types.decode()
        self.make_call: int = described.make_call
        self.replay_calls = library["replay_calls"]
        self.replay_calls.argtypes = (c_void_p, c_int64, c_void_p)
        self.replay_calls.restype = c_int


class StoredCalls:
    """Calls in order, which may be of several libraries."""

    def __init__(self) -> None:
        self._calls: list[tuple[ReplayableFunction, Any, tuple[Any, ...]]] = []
        self._stored: ctypes.Array[_StoredCall] | None = None
        self._arguments: ctypes.Array[c_uint64]
        self._succeeded = c_int64()

    def append(
        self, replayable: ReplayableFunction, function: Any, arguments: tuple[Any, ...]
    ) -> None:
        """Append a call; what its pointers point to must stay.

        Args:
            replayable: Function to call.
            function: The same function in ctypes, with its argument types and its error check.
            arguments: Arguments of the call.
        """
        self._calls.append((replayable, function, arguments))
        self._stored = None

    def replay(self) -> None:
        """Make all calls; an error check raises what it raises for a call from Python."""
        stored = self._stored or self._store()
        status = self._calls[0][0].replay_calls(
            ctypes.addressof(stored), len(stored), ctypes.addressof(self._succeeded)
        )
        if status:
            _, function, arguments = self._calls[self._succeeded.value]
            function.errcheck(status, function, arguments)

    def _store(self) -> ctypes.Array[_StoredCall]:
        counts = [len(arguments) for _, _, arguments in self._calls]
        self._arguments = (c_uint64 * sum(counts))()
        stored = (_StoredCall * len(self._calls))()
        address = ctypes.addressof(self._arguments)
        for call, (replayable, function, arguments) in zip(stored, self._calls, strict=True):
            call.make_call, call.arguments = replayable.make_call, address
            for kind, value in zip(function.argtypes, arguments, strict=True):
                _write(address, kind, value)
                address += ARGUMENT_BYTES
        self._stored = stored
        return stored


def letters_of(types: Sequence[type[Any]]) -> str:
    """Return a letter for each ctypes type, as `replay.h` does for those of C++."""
    return "".join(map(_letter, types))


def _letter(kind: type[Any]) -> str:
    if _is_pointer(kind):
        return "P"
    return FLOATS.get(kind) or INTEGERS[ctypes.sizeof(kind)]


def _is_pointer(kind: type[Any]) -> bool:
    return issubclass(kind, (c_void_p, c_char_p, ctypes._Pointer))


def _write(address: int, kind: type[Any], value: Any) -> None:
    """Write an argument as ctypes would pass it."""
    if not _is_pointer(kind):
        converted = value if isinstance(value, kind) else kind(value)
    elif value is None or isinstance(value, int):
        converted = c_void_p(value)
    else:
        converted = ctypes.cast(value, c_void_p)
    ctypes.memmove(address, ctypes.addressof(converted), ctypes.sizeof(converted))
