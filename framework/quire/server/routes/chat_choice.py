"""One answer of a chat: parser events in, OpenAI's pieces out; a whole answer is its pieces joined.

Streamed and whole answers come through the same class, so they cannot differ, but for one thing. A
call that breaks off had begun in the stream already; its text follows, and a whole answer has only
the text.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import UNSET

from quire.errors import RequestFailedError
from quire.frontend.chat.completion_parser import CompletionEvent, CompletionParser
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from quire.outputs import Delta
from quire.server.wire.protocol import (
    ChatChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    FinishReason,
    FunctionCall,
    FunctionDelta,
    MessageToolCall,
    TokenLogprob,
    ToolCallDelta,
)


class ChatChoiceBuilder:
    """Reads one choice.

    Args:
        index: Which of the choices.
        parser: Splits the text into thinking, content and calls.
        allows_parallel: Whether calls after the first that ends are kept.
    """

    def __init__(self, index: int, parser: CompletionParser, allows_parallel: bool) -> None:
        self.index = index
        self._parser = parser
        self._allows_parallel = allows_parallel
        self._whole = _Whole()

    def read(self, delta: Delta, logprobs: ChatLogprobs | None) -> ChatDelta:
        """Take one delta; return what it adds, as a stream sends it."""
        events = self._parser.feed(delta.text) if delta.text else []
        if delta.finish_reason is not None:
            events = [*events, *self._parser.close()]
        piece = self._piece(events)
        self._whole.add(piece, logprobs)
        self._whole.finish_reason = self._ending(delta)
        self._whole.stop_reason = delta.stop_reason
        return piece

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the answer ended, in OpenAI's words; None while it goes on."""
        return self._whole.finish_reason

    def choice(self) -> ChatChoice:
        """Return the whole answer."""
        return self._whole.choice(self.index)

    def _piece(self, events: Iterable[CompletionEvent]) -> ChatDelta:
        piece = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        for event in events:
            match event:
                case TextDelta(text):
                    piece.content = (piece.content or "") + text
                case ReasoningDelta(text):
                    piece.reasoning = piece.reasoning_content = (piece.reasoning or "") + text
                case ToolCallStart(index, name) if self._keeps(index):
                    calls[index] = _started(index, name)
                case ToolCallArguments(index, arguments) if self._keeps(index):
                    call = calls.setdefault(index, _continued(index))
                    call.function.arguments += arguments
                case ToolCallEnd(index) if self._keeps(index):
                    self._whole.ended.add(index)
        if calls:
            piece.tool_calls = list(calls.values())
        return piece

    def _ending(self, delta: Delta) -> FinishReason | None:
        if delta.finish_reason == "stop":
            return "tool_calls" if self._whole.ended else "stop"
        return "length" if delta.finish_reason == "length" else None

    def _keeps(self, index: int) -> bool:
        """A call counts when it ends: one that breaks off does not shut out the next."""
        return self._allows_parallel or self._whole.ended <= {index}


@dataclass
class _Whole:
    """The pieces of an answer, until it is complete."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, MessageToolCall] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)  # the others broke off
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, piece: ChatDelta, logprobs: ChatLogprobs | None) -> None:
        """Append one piece."""
        if piece.content is not UNSET:
            self.content.append(piece.content)
        if piece.reasoning is not UNSET:
            self.reasoning.append(piece.reasoning)
        for call in piece.tool_calls or ():
            self._add_call(call)
        if logprobs is not None:
            self.logprobs = (self.logprobs or []) + logprobs.content

    def choice(self, index: int) -> ChatChoice:
        """Return the answer.

        Raises:
            RequestFailedError: It has not ended.
        """
        if self.finish_reason is None:
            raise RequestFailedError("the answer has no end")
        content = "".join(self.content)
        calls = [call for i, call in self.calls.items() if i in self.ended]
        message = ChatMessage(content=content or (None if calls else ""))
        if self.reasoning:
            message.reasoning = message.reasoning_content = "".join(self.reasoning)
        if calls:
            message.tool_calls = calls
        return ChatChoice(
            index=index,
            message=message,
            logprobs=None if self.logprobs is None else ChatLogprobs(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _add_call(self, piece: ToolCallDelta) -> None:
        if piece.id is not UNSET:
            call = FunctionCall(name=piece.function.name or "", arguments="")
            self.calls[piece.index] = MessageToolCall(id=piece.id, function=call)
        self.calls[piece.index].function.arguments += piece.function.arguments


def _started(index: int, name: str) -> ToolCallDelta:
    return ToolCallDelta(
        index=index,
        id=f"call_{secrets.token_hex(12)}",
        type="function",
        function=FunctionDelta(name=name, arguments=""),
    )


def _continued(index: int) -> ToolCallDelta:
    return ToolCallDelta(index=index, function=FunctionDelta(arguments=""))
