"""Replies of Ollama's API: pieces of a stream, or a whole completion, which is one piece."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.frontend.chat.surrogate_halves import without_halves
from quire.interfaces.http_route import CompletionPiece
from quire.outputs import CompletionOutput, ToolCall
from quire.server.http.json_response import in_thread_if, json_of
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.chat.completion_pieces import CompletionPieces, whole_piece
from quire.server.routes.chat.strict_arguments import strict_arguments
from quire.server.routes.generation import Generation
from quire.server.routes.ollama.ollama_protocol import (
    CalledFunction,
    ChatReply,
    GenerateReply,
    OllamaCall,
    OllamaMessage,
    OllamaReply,
)
from quire.server.wire.openai_logprobs import TokenSpelling, chat_logprobs
from quire.server.wire.protocol import TokenLogprob

NANOSECONDS = 1_000_000_000
NOTHING = CompletionPiece(index=0)

LoadReason = Literal["load", "unload"]
# From the model's name, a piece, and the number of calls in the pieces before it.
MakeReply = Callable[[str, CompletionPiece, int], OllamaReply]


def chat_reply(model: str, piece: CompletionPiece, num_calls_before: int) -> OllamaReply:
    """Return a reply of /api/chat."""
    message = OllamaMessage(content=piece.text, thinking=piece.reasoning or UNSET)
    if piece.tool_calls:
        message.tool_calls = [
            _call(index, call) for index, call in enumerate(piece.tool_calls, num_calls_before)
        ]
    return ChatReply(model=model, created_at=_now(), message=message)


def generate_reply(model: str, piece: CompletionPiece, num_calls_before: int) -> OllamaReply:
    """Return a reply of /api/generate, which has no calls."""
    del num_calls_before
    return GenerateReply(
        model=model, created_at=_now(), response=piece.text, thinking=piece.reasoning or UNSET
    )


def load_reply(make: MakeReply, model: str, reason: LoadReason) -> OllamaReply:
    """Return the reply to a request without a prompt, which asks to load or unload the model."""
    reply = make(model, NOTHING, 0)
    reply.done, reply.done_reason = True, reason
    return reply


@dataclass(frozen=True, slots=True)
class OllamaRun:
    """One request, ready to run.

    Attributes:
        generation: Its completion.
        turn: Turn of a conversation that it is; None: it is raw text.
        make: Function that makes a reply.
        model: Name of the model, as the client wrote it.
        shows_thinking: Whether the thinking is shown.
    """

    generation: Generation
    turn: ChatTurn | None
    make: MakeReply
    model: str
    shows_thinking: bool

    async def whole(self, outputs: Sequence[CompletionOutput]) -> bytes:
        """Return the full response as JSON."""
        make = partial(self._whole, outputs)
        return await in_thread_if(self.generation.is_large, make)

    def _whole(self, outputs: Sequence[CompletionOutput]) -> bytes:
        piece = whole_piece(outputs[0], self.turn)
        return json_of(self._ended(self._reply(piece), piece.finish_reason))

    async def events(self) -> AsyncGenerator[bytes]:
        """Generate; yield the lines of a stream."""
        pieces = CompletionPieces(self.turn)
        num_calls, end = 0, None
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                piece = pieces.read(delta)
                end = piece.finish_reason or end
                reply = self._reply(piece, num_calls)
                num_calls += len(piece.tool_calls)
                if piece.text or self._thinking(piece) or piece.tool_calls or reply.logprobs:
                    yield json_of(reply)
        yield json_of(self._ended(self.make(self.model, NOTHING, num_calls), end))

    def _thinking(self, piece: CompletionPiece) -> str:
        return piece.reasoning if self.shows_thinking else ""

    def _reply(self, piece: CompletionPiece, num_calls_before: int = 0) -> OllamaReply:
        shown = msgspec.structs.replace(piece, reasoning=self._thinking(piece))
        reply = self.make(self.model, shown, num_calls_before)
        reply.logprobs = self._logprobs(piece)
        return reply

    def _logprobs(self, piece: CompletionPiece) -> list[TokenLogprob] | UnsetType:
        if piece.logprobs is None:
            return UNSET
        spelling = TokenSpelling(self.generation.frontend.tokenizer)
        num_top = self.generation.num_top_logprobs or 0
        return chat_logprobs(piece.logprobs, num_top, spelling).content

    def _ended(self, reply: OllamaReply, finish_reason: str | None) -> OllamaReply:
        """Add to the last reply why the completion ended, its counts and its durations."""
        usage, record = self.generation.usage(), self.generation.records[0]
        reply.done = True
        reply.done_reason = "length" if finish_reason == "length" else "stop"
        reply.prompt_eval_count = usage.prompt_tokens
        reply.eval_count = usage.completion_tokens
        reply.total_duration = _nanoseconds(time.monotonic() - record.arrival_s)
        reply.load_duration = _nanoseconds(record.queue_s)
        reply.prompt_eval_duration = _nanoseconds(record.prefill_s)
        reply.eval_duration = _nanoseconds(record.decode_s)
        return reply


def _call(index: int, call: ToolCall) -> OllamaCall:
    arguments = msgspec.Raw(without_halves(strict_arguments(call.arguments)).encode())
    return OllamaCall(call.id, CalledFunction(index, call.name, arguments))


def _nanoseconds(seconds: float | None) -> int:
    return round((seconds or 0.0) * NANOSECONDS)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
