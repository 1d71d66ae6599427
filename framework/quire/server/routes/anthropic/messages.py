"""POST /v1/messages: a chat in Anthropic's API, in full or as a stream."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.random_bytes import random_bytes
from quire.outputs import CompletionOutput
from quire.server.http.json_response import in_thread_if, json_of
from quire.server.routes.anthropic.bodies import REFUSED_OF_MESSAGES, MessagesBody
from quire.server.routes.anthropic.chat_body import Translated, translated_body
from quire.server.routes.anthropic.content_blocks import ContentBlocks, folded
from quire.server.routes.anthropic.message import (
    Block,
    Message,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
)
from quire.server.routes.chat.chat_turn import ChatTurn, ChatTurns
from quire.server.routes.chat.choice_events import one_delta
from quire.server.routes.generation import Generation
from quire.server.routes.respond import respond
from quire.server.wire.bodies import Body
from quire.server.wire.finish_reason import finish_reason_of
from quire.server.wire.protocol import FinishReason
from quire.server.wire.sender import Sender

_END = json_of(MessageStop())


class MessagesRoute:
    """Endpoint of /v1/messages."""

    def __init__(self, turns: ChatTurns) -> None:
        self._turns = turns

    async def create(self, request: Request) -> Response:
        """Return the message that follows a conversation, in full or as a stream."""
        turns = self._turns
        return await respond(
            request,
            turns.frontend,
            MessagesBody,
            turns.unknown,
            self._prepare,
            REFUSED_OF_MESSAGES,
        )

    async def _prepare(
        self, body: Body[MessagesBody], sender: Sender, extra_args: dict[str, Any]
    ) -> "MessageRun":
        turns = self._turns
        found = await translated_body(body, turns)
        turn = await turns.prepare(Body(found.chat, {}, body.num_bytes), sender, extra_args)
        return MessageRun(turn, found, body.typed.max_tokens, f"msg_{random_bytes.hex(12)}")


@dataclass(frozen=True, slots=True)
class MessageRun:
    """One message, ready to be generated."""

    turn: ChatTurn
    translated: Translated
    max_tokens: int
    id: str

    @property
    def generation(self) -> Generation:
        """The completion."""
        return self.turn.generation

    async def whole(self, outputs: Sequence[CompletionOutput]) -> bytes:
        """Return the full response as JSON."""
        make = partial(self._whole, outputs)
        return await in_thread_if(self.generation.is_large, make)

    def _whole(self, outputs: Sequence[CompletionOutput]) -> bytes:
        (output,) = outputs
        (choice,), blocks = self.turn.events(), self._blocks(None)
        events = blocks.read(choice.read(one_delta(output)))
        content = folded([*events, *blocks.close()])
        reason = finish_reason_of(output, has_calls=choice.finish_reason == "tool_calls")
        stop = self._stop(reason, output.stop_reason)
        return json_of(self._message(content, stop))

    async def events(self) -> AsyncGenerator[bytes]:
        """Generate; yield the events of a stream as JSON."""
        (choice,), has_begun = self.turn.events(), False
        blocks, stop = self._blocks(self.translated.held_tools), MessageEnd("end_turn")
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                if not has_begun:
                    has_begun = True
                    yield json_of(MessageStart(self._message([], None)))
                for event in blocks.read(choice.read(delta)):
                    yield json_of(event)
                if choice.finish_reason is not None:
                    stop = self._stop(choice.finish_reason, delta.stop_reason)
        for event in blocks.close():
            yield json_of(event)
        yield json_of(MessageDelta(stop, self._usage()))
        yield _END

    def _blocks(self, held: frozenset[str] | None) -> ContentBlocks:
        return ContentBlocks(held, shows_thinking=self.translated.shows_thinking)

    def _message(self, content: list[Block], stop: MessageEnd | None) -> Message:
        return Message(
            id=self.id,
            model=self.generation.model,
            content=content,
            stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence,
            usage=self._usage(),
        )

    def _usage(self) -> MessageUsage:
        usage = self.generation.usage()
        num_cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(usage.prompt_tokens - num_cached, num_cached, usage.completion_tokens)

    def _stop(self, reason: FinishReason, by: int | str | None) -> MessageEnd:
        """Return how the message has ended, in Anthropic's terms.

        Args:
            reason: Finish reason in OpenAI's terms.
            by: Stop string or stop token that ended it.
        """
        match reason:
            case "tool_calls":
                return MessageEnd("tool_use")
            case "stop" if isinstance(by, str):
                return MessageEnd("stop_sequence", by)
            case "stop":
                return MessageEnd("end_turn")
            case "length" if self.generation.usage().completion_tokens < self.max_tokens:
                return MessageEnd("model_context_window_exceeded")
            case _:
                return MessageEnd("max_tokens")
