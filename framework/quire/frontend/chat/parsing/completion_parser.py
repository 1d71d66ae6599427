"""Incremental parsing of one completion: reasoning, text and tool calls come out of one stream.

If calls may be in the reasoning, the tool parser reads first, and the reasoning parser its text:
a call that is complete ends the reasoning, unless a marker ends it behind the call, and markup that
is no call stays in it. Otherwise the reasoning is split off first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quire.frontend.chat.parsing.marked_pieces import MarkedPieces
from quire.frontend.chat.parsing.marker_remover import MarkerRemover
from quire.frontend.chat.parsing.reasoning_stage import ReasoningStage, TextEvent
from quire.frontend.chat.parsing.tool_stage import CallEvent, ToolCallCut, ToolStage
from quire.interfaces.markers import Markers
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from quire.outputs import ToolCall

CompletionEvent = ReasoningDelta | CallEvent


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """The parts of a whole completion.

    Attributes:
        text: Text for the user.
        reasoning: Reasoning text; None if there was none.
        calls: The tool calls that are complete, and at the end one that was cut. A call that the
            model breaks off is not included: its text is part of `text`.
    """

    text: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]


class CompletionParser:
    """Parses one completion.

    Args:
        reasoning: Parser of the reasoning.
        tools: Parser of tool calls.
        reads_calls_first: Whether a call may be in the reasoning, and ends it.
        follows_reasoning: Whether a call in reasoning that the prompt has opened is none, as those
            that a constraint forces come behind it.
        call_openers: Texts by which calls begin, if they may be in the reasoning.
        removed: Texts of special tokens, which are shown to the parsers only; None: there are none.
    """

    def __init__(
        self,
        reasoning: ReasoningStage | None = None,
        tools: ToolStage | None = None,
        *,
        reads_calls_first: bool = False,
        follows_reasoning: bool = False,
        call_openers: Markers | None = None,
        removed: Markers | None = None,
    ) -> None:
        self._reasoning = reasoning or ReasoningStage()
        self._tools = tools or ToolStage(None)
        self._reads_calls_first = reads_calls_first
        self._skips_calls = reads_calls_first and follows_reasoning and self._reasoning.is_thinking
        self._call: list[CompletionEvent] = []  # an open one, if text before it is held back
        self._pieces = None if call_openers is None else MarkedPieces(call_openers)
        self._removers = (
            {} if removed is None else {kind: MarkerRemover(removed) for kind in _TEXTS}
        )

    def feed(self, delta: str) -> list[CompletionEvent]:
        """Parse the next part of the completion; return the events that are certain by now.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        if self._skips_calls:
            return self._cleaned(self._read_opened(delta))
        if self._reads_calls_first:
            return self._cleaned(self._read_calls_first(delta))
        return self._cleaned(self._read_calls(self._reasoning.feed(delta)))

    def close(self, *, is_cut: bool = False) -> list[CompletionEvent]:
        """Return the events held back, at the end of the completion.

        Args:
            is_cut: Whether something else than the model has ended it; see `tool_stage`.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        tools, reasoning = self._tools, self._reasoning
        last: list[CompletionEvent]
        if self._reads_calls_first:
            read = [*self._read_reasoning(tools.close(is_cut=is_cut))]
            last = [*read, *reasoning.close(), *self._taken_call()]
        else:
            last = [*self._read_calls(reasoning.close()), *tools.close(is_cut=is_cut)]
        return [*self._cleaned(last), *self._left()]

    def read_whole(self, text: str, *, is_cut: bool = False) -> ParsedCompletion:
        """Parse a whole completion; the parser cannot be used again.

        Args:
            text: The completion.
            is_cut: Whether something else than the model has ended it; see `tool_stage`.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        return gather([*self.feed(text), *self.close(is_cut=is_cut)])

    def _read_calls(self, events: Iterable[TextEvent]) -> Iterator[CompletionEvent]:
        """Read the calls of the content; the reasoning is passed on."""
        for event in events:
            if isinstance(event, ReasoningDelta):
                yield event
            else:
                yield from self._tools.feed(event.text)

    def _read_opened(self, delta: str) -> Iterator[CompletionEvent]:
        """Read reasoning that the prompt has opened, and what is behind its end as ever.

        What is behind its end may be a call, so the reasoning parser does not read on there.
        """
        at = 0
        for piece in self._reasoning.pieces(delta):
            at += len(piece)
            events = self._reasoning.feed(piece)
            self._skips_calls = self._reasoning.is_thinking
            is_thought = self._skips_calls or self._reasoning.is_content
            yield from events if is_thought else self._read_calls(events)
            if not self._skips_calls:
                break
        if at < len(delta):
            yield from self._read_calls_first(delta[at:])

    def _read_calls_first(self, delta: str) -> Iterator[CompletionEvent]:
        """Read calls, and the reasoning of the text; where a call begins, what is before is read.

        So the tool parser knows whether the call is in the reasoning.
        """
        for piece in [delta] if self._pieces is None else self._pieces.of(delta):
            is_in_reasoning = self._reasoning.is_thinking
            yield from self._read_reasoning(
                self._tools.feed(piece, is_in_reasoning=is_in_reasoning)
            )

    def _read_reasoning(self, events: Iterable[CallEvent]) -> Iterator[CompletionEvent]:
        """Read the reasoning of the text; a call that is complete ends it, there or behind it.

        Where text before a call is held back, so is the call until it is complete or breaks off: if
        it is cut, it comes behind the text.
        """
        for event in events:
            if isinstance(event, TextDelta):
                yield from self._taken_call()
                yield from self._reasoning.feed(event.text)
            elif self._reasoning.holds_text:
                self._call.append(event)
            else:
                yield event
            if isinstance(event, ToolCallEnd):
                yield from self._taken_call()
                yield from self._reasoning.end_call()

    def _taken_call(self) -> list[CompletionEvent]:
        taken, self._call = self._call, []
        return taken

    def _cleaned(self, events: Iterable[CompletionEvent]) -> list[CompletionEvent]:
        """Return events whose texts have no special tokens."""
        if not self._removers:
            return [*events]
        cleaned: list[CompletionEvent] = []
        for event in events:
            cleaned += self._left(but=type(event))
            if not isinstance(event, ReasoningDelta | TextDelta):
                cleaned.append(event)
            elif text := self._removers[type(event)].feed(event.text):
                cleaned.append(type(event)(text))
        return cleaned

    def _left(self, but: type | None = None) -> Iterator[TextEvent]:
        """Return what may have become a special token's text, and does not."""
        for kind, remover in self._removers.items():
            if kind is not but and (text := remover.close()):
                yield kind(text)


_TEXTS: tuple[type[TextEvent], ...] = (ReasoningDelta, TextDelta)


def gather(events: Iterable[CompletionEvent]) -> ParsedCompletion:
    """Join all events of one completion."""
    texts: list[str] = []
    reasoning_texts: list[str] = []
    open_calls: dict[int, tuple[ToolCallStart, list[str]]] = {}
    calls: list[ToolCall] = []
    for event in events:
        match event:
            case TextDelta(text):
                texts.append(text)
            case ReasoningDelta(text):
                reasoning_texts.append(text)
            case ToolCallStart(index):
                open_calls[index] = (event, [])
            case ToolCallArguments(index, piece):
                open_calls[index][1].append(piece)
            case ToolCallEnd(index) | ToolCallCut(index):
                start, pieces = open_calls.pop(index)
                calls.append(ToolCall(start.id or "", start.name, "".join(pieces)))
    return ParsedCompletion(
        "".join(texts), "".join(reasoning_texts) if reasoning_texts else None, tuple(calls)
    )
