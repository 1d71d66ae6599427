"""The turns of one response: the model's first one, and one after each round of calls of tools.

    turn -> calls of tools of tool servers -> turn -> ... -> turn without such calls

A turn that also calls a function of the client, or needs its approval, is the last one.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from quire.errors import PromptTooLongError, RequestFailedError
from quire.server.http.json_response import in_thread_if
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.generation import Generation
from quire.server.routes.observed_generations import ObservedGenerations
from quire.server.routes.responses.mcp.tool_rounds import ToolRounds
from quire.server.routes.responses.output import Change, Output
from quire.server.routes.responses.turn_reader import TurnReader
from quire.server.wire.responses import IncompleteReason

_CALLS = "the calls of tools"


class TurnLoop:
    """Generates the turns of one response, once.

    Args:
        turn: The first turn.
        output: Output of the response.
        tools: Tools of tool servers; None without any.

    Attributes:
        observed: The completions of all turns.
        reader: Reader of the last turn.
    """

    def __init__(self, turn: ChatTurn, output: Output, tools: ToolRounds | None) -> None:
        self._output = output
        self._tools = tools
        self._limit: IncompleteReason | None = None  # what ended the turns
        self._is_first = True
        self.observed = ObservedGenerations(turn.generation)
        self._turn = turn
        self.reader = TurnReader(turn, output)

    @property
    def generation(self) -> Generation:
        """The completion of the last turn."""
        return self._turn.generation

    @property
    def is_single(self) -> bool:
        """Whether there is one turn."""
        return self._tools is None

    @property
    def is_complete(self) -> bool:
        """Whether the model has ended its last turn, and no limit did.

        Raises:
            RequestFailedError: The last turn has no end.
        """
        if self._limit is not None:
            return False
        if self.reader.finish_reason is None:
            raise RequestFailedError("the completion ended without a finish reason")
        return self.reader.is_complete

    @property
    def incomplete_reason(self) -> IncompleteReason | None:
        """Which limit has ended the response; None for a repeated pattern."""
        if self._limit is None and self.reader.finish_reason == "length":
            return "max_output_tokens"
        return self._limit

    def changes(self) -> AsyncGenerator[list[Change]]:
        """Generate; yield the changes of the output, and raise what `Generation.deltas` raises."""
        return self._turn_changes() if self._tools is None else self._rounds(self._tools)

    async def _rounds(self, tools: ToolRounds) -> AsyncGenerator[list[Change]]:
        held = self._output.list_tools(tools.lists())  # they wait for the first token
        if tools.approved:
            tools.claim()
            for call in tools.approved:
                held += self._output.begin_call(call)
            yield held
            held = []
            async with aclosing(self._results(tools)) as results:
                async for changes in results:
                    yield changes
            await self._go_on(tools)
        while self._limit is None:
            async with aclosing(self._turn_changes()) as all_changes:
                async for changes in all_changes:
                    yield held + changes
                    held = []
            if not self._output.calls:
                return
            if not self.reader.is_complete or not tools.has_rounds_left:
                if self.reader.is_complete:
                    self._limit = "max_tool_rounds"
                yield self._output.drop_calls()
                return
            async with aclosing(self._results(tools)) as results:
                async for changes in results:
                    yield changes
            if self._output.awaits_client:
                return
            await self._go_on(tools)

    async def _turn_changes(self) -> AsyncGenerator[list[Change]]:
        """Generate one turn; a later one that has no room ends the response."""
        generation, reader = self.generation, self.reader
        try:
            async with aclosing(generation.deltas()) as deltas:
                async for _, delta in deltas:
                    logprobs = None
                    if delta.logprobs is not None:
                        make = partial(reader.logprobs, delta.logprobs)
                        logprobs = await in_thread_if(generation.is_large_delta(delta), make)
                    yield reader.read(delta, logprobs)
        except PromptTooLongError:
            if self._is_first:
                raise
            self._limit = "max_output_tokens"

    async def _results(self, tools: ToolRounds) -> AsyncGenerator[list[Change]]:
        """Run the calls that have no result yet."""
        limit = self.generation.time_limit
        async with aclosing(tools.run([*self._output.calls])) as results:
            while True:
                async with limit.hold(_CALLS):
                    result = await anext(results, None)
                if result is None:
                    return
                yield [self._output.end_call(*result)]

    async def _go_on(self, tools: ToolRounds) -> None:
        """Prepare the next turn, unless there is no room for it."""
        self._is_first = False
        self._output.begin_turn()
        num_tokens = self.observed.usage().completion_tokens
        try:
            async with self.generation.time_limit.hold(_CALLS):
                turn = await tools.next_turn(self._output.turns, num_tokens)
        except PromptTooLongError:
            turn = None
        if turn is None:
            self._limit = "max_output_tokens"
            return
        self._turn = turn
        self.reader = TurnReader(turn, self._output)
        self.observed.add(turn.generation)
