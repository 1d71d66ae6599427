"""A caller reads deltas at its own pace: the engine fills the stream and never waits for it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from quire.errors import QuireError
from quire.frontend.completions.completion import PromptState
from quire.outputs import Delta, RequestOutput


class DeltaStream:
    """The deltas of one prompt's answers, in the order in which the engine made them.

    An async iterator and an async context manager. Leaving the context, `aclose`, or cancelling the
    task that waits for the next delta aborts what is not over.

    Args:
        answers: What the deltas add up to.
        loop: The event loop that reads.
        on_close: Called once if the caller leaves before the end.
    """

    def __init__(
        self,
        answers: PromptState,
        loop: asyncio.AbstractEventLoop,
        on_close: Callable[["DeltaStream"], object],
    ) -> None:
        self.answers = answers
        self.loop = loop
        self._on_close = on_close
        self._deltas: deque[Delta] = deque()
        self._error: QuireError | None = None
        self._is_over = False
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def request_id(self) -> str:
        """The id of the prompt's requests; made by us."""
        return self.answers.admission.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt, as the model reads it."""
        return self.answers.admission.prompt.token_ids

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be added."""
        return self._is_over

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call something in a while, unless the stream is over by then. On the event loop."""
        self._timer = self.loop.call_later(delay_s, call)

    def push(self, delta: Delta) -> None:
        """Add a delta. Called on the event loop."""
        self._deltas.append(delta)
        if self.answers.is_finished:
            self._end()
        self._wake.set()

    def fail(self, error: QuireError) -> None:
        """End the stream with an error, after the deltas that are there. On the event loop."""
        if not self._is_over:
            self._error = error
            self._end()
            self._wake.set()

    def result(self) -> RequestOutput:
        """Return everything so far."""
        return self.answers.result()

    async def aclose(self) -> None:
        """Abort what is not over. May be called twice."""
        self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wait()
        return self._deltas.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    async def _wait(self) -> None:
        try:
            await self._wake.wait()
        except asyncio.CancelledError:
            self._close()
            raise

    def _close(self) -> None:
        self._deltas.clear()
        if not self._is_over:
            self._on_close(self)
            self._end()
        self._wake.set()

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
