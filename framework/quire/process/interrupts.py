"""Ctrl-C that waits until work is complete which cannot be left half done."""

# `signal` without its enums, whose conversion takes 10 us: an engine sets the handler twice a step.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any]


class Interrupts:
    """A context in which the first SIGINT waits, and a second one does not.

        with interrupts:
            plan()                    # the first SIGINT waits,
            with interrupts.allowed:
                compute()             # and comes here at the latest
            apply()                   # or at the end

    So work that hangs can be interrupted, too. Threads other than the main one are never
    interrupted, and nothing changes for them. Contexts of different objects may be nested.

    Attributes:
        allowed: Context of a part in which an interrupt does not wait.
    """

    __slots__ = ("_handler", "_has_waited", "_is_allowed", "allowed")

    def __init__(self) -> None:
        self.allowed = _Allowed(self)
        self._handler: Handler | None = None  # that was there before
        self._is_allowed = False
        self._has_waited = False

    def __enter__(self) -> Self:
        if threading.get_ident() != threading.main_thread().ident:
            return self
        handler = _signal.getsignal(signal.SIGINT)
        self._is_allowed = self._has_waited = False
        if handler == self._receive:  # another interrupt cut the end of the last context
            return self
        if callable(handler):  # else it is ignored, or ends the process
            self._handler = handler
            _signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        _signal.signal(signal.SIGINT, handler)
        has_waited, self._has_waited, self._is_allowed = self._has_waited, False, False
        if has_waited and not isinstance(error, KeyboardInterrupt):
            handler(signal.SIGINT, None)

    def allow(self, *, is_allowed: bool) -> None:
        """Let an interrupt come now and from now on, or let it wait; see `allowed`."""
        if self._handler is None:
            return
        self._is_allowed = is_allowed
        if is_allowed and self._has_waited:
            self._has_waited = False
            self._handler(signal.SIGINT, None)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._handler is not None and (self._is_allowed or self._has_waited):
            self._has_waited = False
            self._handler(number, frame)
        else:
            self._has_waited = True


class _Allowed:
    """The context of a part of the work that may be interrupted."""

    __slots__ = ("_interrupts",)

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> None:
        self._interrupts.allow(is_allowed=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._interrupts.allow(is_allowed=False)
