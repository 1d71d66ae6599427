"""The events of one streamed choice: text, reasoning and tool calls, as far as they are kept."""

from collections.abc import Callable, Iterator

from quire.frontend.chat.parsing.completion_parser import CompletionEvent, CompletionParser
from quire.interfaces.tool_parsing import TextDelta, ToolCallEnd
from quire.outputs import CompletionOutput, Delta
from quire.server.wire.finish_reason import finish_reason_of
from quire.server.wire.protocol import FinishReason


class ChoiceEvents:
    """Converts the deltas of one choice to events.

    Args:
        parser: Parser that splits the text into reasoning, content and tool calls; None if all of
            it is content.
        allows_parallel: Whether there may be several calls; otherwise the choice ends with the
            first complete one, and what is behind it is left out.
        keeps_cut_call: Whether a call that was cut counts as far as it goes; otherwise its text is
            content.
        on_no_call: Called if the model ends the choice without a call; None: it may do so.

    Attributes:
        finish_reason: Finish reason in OpenAI's terms; None while the choice is incomplete.
    """

    def __init__(
        self,
        parser: CompletionParser | None,
        allows_parallel: bool,
        *,
        keeps_cut_call: bool = True,
        on_no_call: Callable[[], None] | None = None,
    ) -> None:
        self._on_no_call = on_no_call
        self._keeps_cut_call = keeps_cut_call
        self.finish_reason: FinishReason | None = None
        self._parser = parser
        self._allows_parallel = allows_parallel
        self._has_call = False  # that is complete

    def read(self, delta: Delta) -> list[CompletionEvent]:
        """Return the events that a delta adds."""
        if self._parser is None:
            events: list[CompletionEvent] = [TextDelta(delta.text)] if delta.text else []
        else:
            events = list(self._kept(self._parser, delta))
        self.finish_reason = finish_reason_of(delta, self._has_call)
        is_over = self.finish_reason == "stop" and delta.stop_reason is None
        if is_over and not self._has_call and self._on_no_call is not None:
            self._on_no_call()
        return events

    def _kept(self, parser: CompletionParser, delta: Delta) -> Iterator[CompletionEvent]:
        events = parser.feed(delta.text) if delta.text else []
        if delta.finish_reason is not None:
            is_cut = self._keeps_cut_call and delta.finish_reason != "stop"
            events += parser.close(is_cut=is_cut)
        for event in events:
            if self._has_call and not self._allows_parallel:
                return
            self._has_call |= isinstance(event, ToolCallEnd)
            yield event


class FirstCall:
    """Finds the end of the first tool call of a completion; one that breaks off is none.

    Args:
        parser: Parser of the completion.
    """

    def __init__(self, parser: CompletionParser) -> None:
        self._parser = parser

    def is_in(self, delta: Delta) -> bool:
        """Read the next delta; return whether it has the end of the call."""
        events = self._parser.feed(delta.text) if delta.text else []
        return any(isinstance(event, ToolCallEnd) for event in events)


def one_delta(output: CompletionOutput) -> Delta:
    """Return a whole completion as one delta, without its log probabilities."""
    return Delta(
        index=output.index,
        text=output.text,
        token_ids=output.token_ids,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )
