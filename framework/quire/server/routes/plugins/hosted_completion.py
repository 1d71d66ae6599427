"""Completions that a route of a plugin generates, with the limits of its client."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

from quire.errors import InvalidRequestError, PluginError
from quire.interfaces.http_route import CompletionPiece, TokenUsage
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.chat.choice_events import ChoiceEvents
from quire.server.routes.chat.completion_pieces import CompletionPieces, whole_piece
from quire.server.routes.generation import Generation

NO_TOKENS = TokenUsage(num_prompt_tokens=0, num_cached_tokens=0, num_completion_tokens=0)


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
    """

    def __init__(self, prepare: Callable[[], Awaitable[Prepared]]) -> None:
        self._prepare = prepare
        self._generation: Generation | None = None
        self._pieces: AsyncGenerator[CompletionPiece] | None = None
        self._is_read = False

    def __aiter__(self) -> AsyncIterator[CompletionPiece]:
        """Generate; yield the pieces as they come."""
        self._read_once()
        self._pieces = self._streamed()
        return self._pieces

    async def whole(self) -> list[CompletionPiece]:
        """Generate; return the whole completions."""
        self._read_once()
        generation, turn = await self._prepare()
        self._generation = generation
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
        """Abort what still runs, and release what it holds."""
        if self._pieces is not None:
            await self._pieces.aclose()
        if self._generation is not None:
            self._generation.release()

    async def _streamed(self) -> AsyncGenerator[CompletionPiece]:
        generation, turn = await self._prepare()
        self._generation = generation
        if generation.params.best_of is not None:
            raise InvalidRequestError(
                "best_of cannot be streamed: the best completions are known once all have ended; "
                "ask for whole completions, or for n",
                param="best_of",
            )
        plain = [ChoiceEvents(None, True) for _ in range(generation.num_choices)]
        readers = [CompletionPieces(e) for e in (plain if turn is None else turn.events())]
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                yield readers[index].read(delta)

    def _read_once(self) -> None:
        if self._is_read:
            raise PluginError("a completion is read once: iterate over it, or await whole()")
        self._is_read = True
