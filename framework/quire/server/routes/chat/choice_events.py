"""The events of one streamed choice: text, reasoning and tool calls, as far as they are kept."""

from collections.abc import Iterator

from quire.frontend.chat.completion_parser import CompletionEvent, CompletionParser
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from quire.outputs import CompletionOutput, Delta
from quire.server.wire.finish_reason import finish_reason_of
from quire.server.wire.protocol import FinishReason


class ChoiceEvents:
    """Converts the deltas of one choice to events.

    Args:
        parser: Parser that splits the text into reasoning, content and tool calls; None if all of
            it is content.
        allows_parallel: Whether calls after the first complete one are kept.

    Attributes:
        finish_reason: Finish reason in OpenAI's terms; None while the choice is incomplete.
    """

    def __init__(self, parser: CompletionParser | None, allows_parallel: bool) -> None:
        self.finish_reason: FinishReason | None = None
        self._parser = parser
        self._allows_parallel = allows_parallel
        self._ended: set[int] = set()  # the other calls broke off

    def read(self, delta: Delta) -> list[CompletionEvent]:
        """Return the events that a delta adds."""
        if self._parser is None:
            events: list[CompletionEvent] = [TextDelta(delta.text)] if delta.text else []
        else:
            events = list(self._kept(self._parser, delta))
        self.finish_reason = finish_reason_of(delta, bool(self._ended))
        return events

    def _kept(self, parser: CompletionParser, delta: Delta) -> Iterator[CompletionEvent]:
        for event in _events(parser, delta):
            match event:
                case ToolCallStart(index) | ToolCallArguments(index) | ToolCallEnd(index):
                    if not self._is_kept(index):
                        continue
                    if isinstance(event, ToolCallEnd):
                        self._ended.add(index)
            yield event

    def _is_kept(self, index: int) -> bool:
        """Whether a call is kept; one that broke off does not exclude the next."""
        return self._allows_parallel or self._ended <= {index}


def one_delta(output: CompletionOutput) -> Delta:
    """Return a whole completion as one delta, without its log probabilities."""
    return Delta(
        index=output.index,
        text=output.text,
        token_ids=output.token_ids,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )


def _events(parser: CompletionParser, delta: Delta) -> list[CompletionEvent]:
    events = parser.feed(delta.text) if delta.text else []
    return events if delta.finish_reason is None else [*events, *parser.close()]
