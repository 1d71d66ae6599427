"""`DeltaStream`: an unbounded queue of deltas between the engine and one asyncio reader."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from quire.errors import QuireError
from quire.frontend.completions.completion import PromptState
from quire.outputs import Delta

MAX_AT_ONCE = 4  # deltas that a reader gets before other tasks have their turn


class DeltaStream:
    """The deltas of one prompt's completions, in the order in which the engine made them.

    An async iterator and an async context manager. Leaving the context, `aclose`, or cancelling the
    task that waits for the next delta aborts the unfinished completions.

    Args:
        completions: State of the completions that the deltas add up to.
        loop: Event loop of the reader.
        on_close: Function called once if the reader leaves before the end.
        is_whole: Whether a completion is one delta, at its end.

    Attributes:
        is_whole: Whether a completion is one delta, at its end.
    """

    def __init__(
        self,
        completions: PromptState,
        loop: asyncio.AbstractEventLoop,
        on_close: Callable[["DeltaStream"], object],
        *,
        is_whole: bool = False,
    ) -> None:
        self.completions = completions
        self.is_whole = is_whole
        self.loop = loop
        self._on_close = on_close
        self._deltas: deque[Delta] = deque()
        self._num_at_once = 0  # deltas since the reader has last waited
        self._error: QuireError | None = None
        self._is_over = False
        self._reader: asyncio.Future[None] | None = None  # waits for a delta
        self._timer: asyncio.TimerHandle | None = None

    @property
    def request_id(self) -> str:
        """The internal id of the prompt's requests."""
        return self.completions.admission.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        """The token ids of the prompt."""
        return self.completions.admission.prompt.token_ids

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be added."""
        return self._is_over

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call a function after a delay, unless the stream is over by then. On the event loop."""
        self._timer = self.loop.call_later(delay_s, call)

    def push(self, delta: Delta) -> None:
        """Add a delta. Called on the event loop."""
        self._deltas.append(delta)
        if delta.finish_reason is not None and self.completions.is_finished:
            self._end()
        self._wake()

    def take_unread(self, index: int) -> list[Delta]:
        """Remove and return the deltas of one completion that the reader has not read."""
        unread = [delta for delta in self._deltas if delta.index == index]
        self._deltas = deque(delta for delta in self._deltas if delta.index != index)
        return unread

    def end_if_finished(self) -> None:
        """End the stream after the queued deltas if the reader has stopped its last completion."""
        if self.completions.is_finished and not self._is_over:
            self._end()

    def fail(self, error: QuireError) -> None:
        """End the stream with an error after the queued deltas. Called on the event loop."""
        if not self._is_over:
            self._error = error
            self._end()
            self._wake()

    async def aclose(self) -> None:
        """Abort the unfinished completions. May be called twice."""
        self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._num_at_once >= MAX_AT_ONCE:  # a reader that lags behind is not alone
            await self._wait(asyncio.sleep(0))
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            self._reader = self.loop.create_future()
            await self._wait(self._reader)
        self._num_at_once += 1
        return self._deltas.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    async def _wait(self, event: Awaitable[None]) -> None:
        self._num_at_once = 0
        try:
            await event
        except asyncio.CancelledError:
            self._close()
            raise

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _close(self) -> None:
        self._deltas.clear()
        if not self._is_over:
            self._on_close(self)
            self._end()
        self._wake()

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
