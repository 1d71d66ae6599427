"""POST /v1/chat/completions: render, generate, parse, and respond in full or as a stream."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.chat.custom_input import input_of
from quire.frontend.chat.parsing.completion_parser import ParsedCompletion
from quire.outputs import CompletionOutput, PromptLogprobs, ToolCall
from quire.server.http.json_response import in_thread_if, json_of
from quire.server.routes.chat.chat_turn import ChatTurn, ChatTurns
from quire.server.routes.chat.reasoning_tokens import num_reasoning_tokens
from quire.server.routes.generation import Generation
from quire.server.routes.openai.chat_pieces import ChatPieces
from quire.server.routes.respond import respond
from quire.server.wire.bodies import Body
from quire.server.wire.finish_reason import finish_reason_of
from quire.server.wire.openai_logprobs import Positions, TokenSpelling, chat_logprobs
from quire.server.wire.params import StreamUsage, stream_usage
from quire.server.wire.protocol import (
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    CompletionDetails,
    CustomCall,
    FinishReason,
    FunctionCall,
    MessageCustomCall,
    MessageToolCall,
    Usage,
)
from quire.server.wire.sender import Sender

End = TypeVar("End", FinishReason, FinishReason | None)

_EMPTY = ChatDelta()


class ChatRoute:
    """Endpoint of /v1/chat/completions."""

    def __init__(self, turns: ChatTurns) -> None:
        self._turns = turns

    async def create(self, request: Request) -> Response:
        """Return the response to a conversation, in full or as a stream."""
        turns = self._turns
        return await respond(request, turns.frontend, ChatBody, turns.unknown, self._prepare)

    async def _prepare(
        self, body: Body[ChatBody], sender: Sender, extra_args: dict[str, Any]
    ) -> "Chat":
        turn, typed = await self._turns.prepare(body, sender, extra_args), body.typed
        return Chat(
            turn.generation,
            turn,
            turn.generation.num_top_logprobs or 0,
            ChatOptions(
                stream_usage(typed),
                bool(typed.return_token_ids),
                bool(typed.return_tokens_as_token_ids),
                typed.include_reasoning is not False,
            ),
            turn.generation.envelope("chatcmpl"),
        )


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Optional parts of a response.

    Attributes:
        stream_usage: Events of a stream that have the token counts.
        token_ids: True if the fields `prompt_token_ids` and `token_ids` are present.
        tokens_as_ids: True if log probabilities show tokens by their ids.
        reasoning: True if the reasoning is shown.
    """

    stream_usage: StreamUsage = "none"
    token_ids: bool = False
    tokens_as_ids: bool = False
    reasoning: bool = True


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat request, ready to run."""

    generation: Generation
    turn: ChatTurn
    num_top_logprobs: int
    options: ChatOptions
    envelope: dict[str, Any]

    async def whole(self, outputs: Sequence[CompletionOutput]) -> bytes:
        """Return the full response as JSON."""
        is_large = self.generation.is_large
        make = partial(self._completion, outputs)
        completion, reasoning = await in_thread_if(is_large, make)
        completion.usage = await self._final_usage(reasoning)
        return await in_thread_if(is_large, partial(json_of, completion))

    def _completion(self, outputs: Sequence[CompletionOutput]) -> tuple[ChatCompletion, list[str]]:
        """Return the full response, and the reasoning of each choice, shown or not."""
        parsed = [self.turn.parsed(output) for output in outputs]
        choices = zip(outputs, parsed, strict=True)
        completion = ChatCompletion(
            **self.envelope,
            choices=[self._choice(index, *each) for index, each in enumerate(choices)],
            usage=self.generation.usage(),
            prompt_logprobs=self.generation.prompt_logprobs(0) or UNSET,
            prompt_token_ids=self._prompt_token_ids(),
        )
        return completion, [each.reasoning or "" for each in parsed]

    async def events(self) -> AsyncGenerator[bytes]:
        """Generate; yield the chunks of a stream as JSON."""
        reasoning, custom = self.options.reasoning, self.turn.tools.custom
        pieces = [ChatPieces(events, reasoning, custom) for events in self.turn.events()]
        role_sent = [False] * len(pieces)
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                if not role_sent[index]:
                    prompt_ids = UNSET if any(role_sent) else self._prompt_token_ids()
                    role_sent[index] = True
                    opening = ChatDelta(role="assistant", content="")
                    choice = ChunkChoice(index=index, delta=opening)
                    yield self._chunk(choice, prompt_token_ids=prompt_ids)
                if delta.prompt_logprobs is not None:
                    choice = ChunkChoice(index=index, delta=_EMPTY)
                    chunk = partial(self._chunk, choice, prompt_logprobs=delta.prompt_logprobs)
                    yield await in_thread_if(self.generation.is_large_delta(delta), chunk)
                piece, make = pieces[index].read(delta), partial(self._logprobs, delta.logprobs)
                logprobs = await in_thread_if(self.generation.is_large_delta(delta), make)
                end = self._shown_end(pieces[index].finish_reason)
                token_ids = delta.token_ids if self.options.token_ids else UNSET
                if piece == _EMPTY and logprobs is None and end is None and not token_ids:
                    continue  # the parser holds text back
                choice = ChunkChoice(index=index, delta=piece, logprobs=logprobs)
                choice.token_ids = token_ids
                if end is not None and piece.tool_calls:
                    yield await in_thread_if(
                        self.generation.is_large_delta(delta), partial(self._chunk, choice)
                    )
                    choice = ChunkChoice(index=index, delta=_EMPTY)  # by which clients end the call
                choice.finish_reason = end
                if end is not None and delta.stop_reason is not None:
                    choice.stop_reason = delta.stop_reason
                make_chunk = partial(self._chunk, choice)
                yield await in_thread_if(self.generation.is_large_delta(delta), make_chunk)
        if self.options.stream_usage != "none":
            texts = ["".join(each.reasoning) for each in pieces]
            yield self._chunk(usage=await self._final_usage(texts))

    async def _final_usage(self, reasoning: Sequence[str]) -> Usage:
        """Return the token counts at the end.

        Args:
            reasoning: Text of the reasoning of each choice.
        """
        usage, frontend = self.generation.usage(), self.generation.frontend
        if frontend.completion_parsers.reads_reasoning:
            num = await num_reasoning_tokens(frontend, reasoning, usage.completion_tokens)
            usage.completion_tokens_details = CompletionDetails(num)
        return usage

    def _choice(self, index: int, output: CompletionOutput, parsed: ParsedCompletion) -> ChatChoice:
        calls = parsed.calls
        message = ChatMessage(content=parsed.text or (None if calls else ""))
        if parsed.reasoning is not None and self.options.reasoning:
            message.reasoning = message.reasoning_content = parsed.reasoning
        if calls:
            message.tool_calls = [self._call(call) for call in calls]
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(output.logprobs),
            finish_reason=self._shown_end(finish_reason_of(output, bool(calls))),
            stop_reason=output.stop_reason,
            token_ids=output.token_ids if self.options.token_ids else UNSET,
        )

    def _call(self, call: ToolCall) -> MessageToolCall | MessageCustomCall:
        if call.name in self.turn.tools.custom:
            custom = CustomCall(input_of(call.arguments), call.name)
            return MessageCustomCall(id=call.id, custom=custom)
        return MessageToolCall(id=call.id, function=FunctionCall(call.name, call.arguments))

    def _shown_end(self, end: End) -> End | Literal["stop"]:
        """Return a finish reason; the call of a named function is no reason, as in OpenAI's API."""
        return "stop" if end == "tool_calls" and self.turn.tools.is_named else end

    def _prompt_token_ids(self) -> list[int] | UnsetType:
        return self.generation.encoded[0].token_ids if self.options.token_ids else UNSET

    def _logprobs(self, rows: Positions | None) -> ChatLogprobs | None:
        if rows is None:
            return None
        tokenizer = self.generation.frontend.tokenizer
        spelling = TokenSpelling(tokenizer, self.options.tokens_as_ids)
        return chat_logprobs(rows, self.num_top_logprobs, spelling)

    def _chunk(
        self,
        choice: ChunkChoice | None = None,
        usage: Usage | None = None,
        prompt_logprobs: PromptLogprobs | UnsetType = UNSET,
        prompt_token_ids: list[int] | UnsetType = UNSET,
    ) -> bytes:
        """Return one event; it has a field `usage` only with `include_usage`."""
        chunk = ChatChunk(
            **self.envelope,
            choices=[] if choice is None else [choice],
            prompt_logprobs=prompt_logprobs,
            prompt_token_ids=prompt_token_ids,
        )
        if self.options.stream_usage == "all":
            chunk.usage = usage or self.generation.usage()
        elif self.options.stream_usage == "last":
            chunk.usage = usage
        return json_of(chunk)
