"""Calls of compiled functions, stored with their converted arguments and made again by one call.

The interpreter and ctypes take about a microsecond for a call, as long as a small layer. A stored
call is the function's address and its arguments as C++ reads them (`replay.h`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import CDLL, c_char, c_char_p, c_int, c_int64, c_void_p
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
        self._arguments = bytearray()  # of all calls, in order
        self._stored: tuple[ctypes.Array[_StoredCall], ctypes.Array[c_char]] | None = None
        self._succeeded = c_int64()

    def append(
        self, replayable: ReplayableFunction, function: Any, arguments: tuple[Any, ...]
    ) -> None:
        """Append a call; what its pointers point to must stay.

        Args:
            replayable: Function to call.
            function: The same function in ctypes, with its argument types and its error check.
            arguments: Arguments of the call.

        Raises:
            TypeError: An argument does not have its type, or cannot be converted.
        """
        if len(arguments) != len(function.argtypes):
            raise TypeError(f"{len(arguments)} arguments for {len(function.argtypes)} parameters")
        self._stored = None
        for kind, value in zip(function.argtypes, arguments, strict=True):
            self._arguments += _bytes_of(kind, value)
        self._calls.append((replayable, function, arguments))

    def replay(self) -> None:
        """Make all calls; an error check raises what it raises for a call from Python."""
        stored, _ = self._stored or self._store()
        status = self._calls[0][0].replay_calls(
            ctypes.addressof(stored), len(stored), ctypes.addressof(self._succeeded)
        )
        if status:
            _, function, arguments = self._calls[self._succeeded.value]
            function.errcheck(status, function, arguments)

    def _store(self) -> tuple[ctypes.Array[_StoredCall], ctypes.Array[c_char]]:
        given = (c_char * len(self._arguments)).from_buffer_copy(self._arguments)
        stored, address = (_StoredCall * len(self._calls))(), ctypes.addressof(given)
        for call, (replayable, _, arguments) in zip(stored, self._calls, strict=True):
            call.make_call, call.arguments = replayable.make_call, address
            address += ARGUMENT_BYTES * len(arguments)
        self._stored = stored, given
        return self._stored


def letters_of(types: Sequence[type[Any]]) -> str:
    """Return a letter for each ctypes type, as `replay.h` does for those of C++."""
    return "".join(map(_letter, types))


def _letter(kind: type[Any]) -> str:
    if _is_pointer(kind):
        return "P"
    return FLOATS.get(kind) or INTEGERS[ctypes.sizeof(kind)]


def _is_pointer(kind: type[Any]) -> bool:
    return issubclass(kind, (c_void_p, c_char_p, ctypes._Pointer))


def _bytes_of(kind: type[Any], value: Any) -> bytes:
    """Return an argument as ctypes would pass it, with zeros behind it."""
    kind.from_param(value)  # raises for what ctypes refuses
    if not _is_pointer(kind):
        converted = value if isinstance(value, kind) else kind(value)
    elif value is None or isinstance(value, int):
        converted = c_void_p(value)
    else:
        converted = ctypes.cast(value, c_void_p)
    return bytes(converted).ljust(ARGUMENT_BYTES, b"\0")
