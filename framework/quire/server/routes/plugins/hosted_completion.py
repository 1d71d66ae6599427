"""Completions that a route of a plugin generates, with the limits of its client.

Any task of the plugin may read them, and any number at a time. They end with the request.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, aclosing
from types import AsyncGeneratorType
from typing import NamedTuple

from quire.errors import InvalidRequestError, PluginError
from quire.interfaces.http_route import CompletionPiece, TokenUsage
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.chat.completion_pieces import CompletionPieces, whole_piece
from quire.server.routes.generation import Generation

NO_TOKENS = TokenUsage(num_prompt_tokens=0, num_cached_tokens=0, num_completion_tokens=0)


OVER = (
    "the request is over, so nothing is generated for it any more; read its completions before its "
    "response has ended"
)


class Prepared(NamedTuple):
    """Completions that are ready to run.

    Attributes:
        generation: The completions.
        turn: Turn of a conversation that they are; None: they are text.
    """

    generation: Generation
    turn: ChatTurn | None = None


class HostedCompletion:
    """The `RouteCompletion` of one call of `generate` or `chat`; it is read once.

    Args:
        prepare: Function that checks everything and returns the completions.
        counted: Context in which the limits of the client's key count them; entering it raises a
            `RequestError` if they refuse.
    """

    def __init__(
        self,
        prepare: Callable[[], Awaitable[Prepared]],
        counted: AbstractContextManager[None],
    ) -> None:
        self._prepare = prepare
        self._counted = counted
        self._limits = ExitStack()
        self._generation: Generation | None = None
        self._pieces: AsyncGenerator[CompletionPiece] | None = None
        self._is_read = False
        self._is_over = False

    def __aiter__(self) -> AsyncIterator[CompletionPiece]:
        """Generate; yield the pieces as they come."""
        self._read_once()
        self._pieces = self._streamed()
        return self._pieces

    async def whole(self) -> list[CompletionPiece]:
        """Generate; return the whole completions."""
        self._read_once()
        with self._limits:
            generation, turn = await self._prepared()
            return [whole_piece(output, turn) for output in await generation.outputs()]

    @property
    def token_counts(self) -> TokenUsage:
        """Token counts so far."""
        if self._generation is None:
            return NO_TOKENS
        usage = self._generation.usage()
        return TokenUsage(
            num_prompt_tokens=usage.prompt_tokens,
            num_cached_tokens=usage.prompt_tokens_details.cached_tokens,
            num_completion_tokens=usage.completion_tokens,
        )

    async def aclose(self) -> None:
        """Abort what still runs, whichever task reads it, and release what it holds."""
        self._is_over = True
        try:
            if self._generation is not None:
                await self._generation.abort()
            if isinstance(self._pieces, AsyncGeneratorType) and not self._pieces.ag_running:
                await self._pieces.aclose()  # if it runs, the task that reads it gets an error
        finally:
            self._limits.close()
            if self._generation is not None:
                self._generation.release()

    async def _streamed(self) -> AsyncGenerator[CompletionPiece]:
        with self._limits:
            generation, turn = await self._prepared()
            readers = _readers(generation, turn)
            async with aclosing(generation.deltas()) as deltas:
                async for index, delta in deltas:
                    yield readers[index].read(delta)

    async def _prepared(self) -> Prepared:
        """Count the completions, and make them ready.

        Raises:
            RequestError: They are refused, or the request is over.
        """
        self._check_not_over()
        self._limits.enter_context(self._counted)
        prepared = await self._prepare()
        self._check_not_over()
        self._generation = prepared.generation
        return prepared

    def _check_not_over(self) -> None:
        if self._is_over:
            raise PluginError(OVER)

    def _read_once(self) -> None:
        if self._is_read:
            raise PluginError("a completion is read once: iterate over it, or await whole()")
        self._is_read = True


def _readers(generation: Generation, turn: ChatTurn | None) -> list[CompletionPieces]:
    """Return what makes pieces of the deltas of each choice."""
    if generation.params.best_of is not None:
        raise InvalidRequestError(
            "best_of cannot be streamed: the best completions are known once all have ended; "
            "ask for whole completions, or for n",
            param="best_of",
        )
    return [CompletionPieces(turn) for _ in range(generation.num_choices)]
