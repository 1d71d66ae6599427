"""The reasoning of one completion, which goes on behind a tool call if a marker ends it there.

    <think>A<tool_call>...</tool_call>B</think>C        A and B are reasoning, C is content
    <think>A<tool_call>...</tool_call>B                 A is reasoning, B is content

A model may call a tool in its reasoning without a word about the end of it, and many stop thinking
then. So what is behind such a call is held back until the marker shows what it is, or the end of
the completion.
"""

from collections.abc import Callable, Iterable
from itertools import groupby

from quire.frontend.chat.parsing.parser_guard import guarded
from quire.interfaces.reasoning import ReasoningDelta, ReasoningEvent, ReasoningParser
from quire.interfaces.tool_parsing import TextDelta
from quire.plugins.registry import Source

TextEvent = ReasoningDelta | TextDelta


class ReasoningStage:
    """A reasoning parser whose errors are those of its plugin.

    Args:
        make: Function that makes the parser from the end of the prompt; None: all is content.
        opening: End of the prompt; see `ReasoningParser`.
        source: Plugin of the parser.
        is_content: Whether the parser leaves the reasoning in the content, behind calls as well.

    Raises:
        RequestFailedError: The parser cannot be built.
    """

    def __init__(
        self,
        make: Callable[[str], ReasoningParser] | None = None,
        opening: str = "",
        source: Source | None = None,
        *,
        is_content: bool = False,
    ) -> None:
        self._is_content = is_content
        self._make = make
        self._source = source
        self._read = [opening]
        self._parser = self._made()
        self._behind: list[str] | None = None  # text behind a call in the reasoning
        self._held: list[TextEvent] = []  # its events if it is reasoning

    @property
    def is_thinking(self) -> bool:
        """Whether the next text belongs to the reasoning, as far as is known."""
        return self._behind is None and self._is_open

    def feed(self, text: str) -> list[TextEvent]:
        """Return the reasoning and the content of the next text."""
        if not text:
            return []
        if self._behind is not None:
            return self._feed_behind(self._behind, text)
        if self._parser is not None:
            self._read.append(text)
        return self._fed(text)

    def end_call(self) -> list[TextEvent]:
        """Return what was held back, at the end of a call; open reasoning may end behind it."""
        if self._behind is not None:
            return []
        may_go_on = self._is_open and not self._is_content
        events = self.close()
        if may_go_on:
            self._parser, self._behind = self._made(), []
            if not self._is_open:
                self.close()
        return events

    def close(self) -> list[TextEvent]:
        """Return what was held back; what follows is content."""
        parser, self._parser = self._parser, None
        behind, self._behind = self._behind, None
        if behind is not None:
            return [TextDelta("".join(behind))] if behind else []
        return [] if parser is None else _text_events(guarded(parser.close, self._source))

    @property
    def _is_open(self) -> bool:
        parser = self._parser
        return parser is not None and guarded(lambda: parser.is_thinking, self._source)

    def _made(self) -> ReasoningParser | None:
        """Return a parser of what follows the text that was read."""
        if (make := self._make) is None:
            return None
        return guarded(lambda: make("".join(self._read)), self._source)

    def _fed(self, text: str) -> list[TextEvent]:
        parser = self._parser
        if parser is None:
            return [TextDelta(text)]
        return _text_events(guarded(lambda: parser.feed(text), self._source))

    def _feed_behind(self, behind: list[str], text: str) -> list[TextEvent]:
        """Read text behind a call character by character, as its kind may change at any of them."""
        for at, character in enumerate(text):
            behind.append(character)
            self._held += self._fed(character)
            if not self._is_open:
                held, self._held, self._behind = self._held, [], None
                self._read += behind
                return [*_joined(held), *self.feed(text[at + 1 :])]
        return []


def _joined(events: Iterable[TextEvent]) -> list[TextEvent]:
    """Return events of which no two of one kind follow each other."""
    kinds = groupby(events, type)
    return [kind("".join(event.text for event in run)) for kind, run in kinds]


def _text_events(events: Iterable[ReasoningEvent]) -> list[TextEvent]:
    return [
        event if isinstance(event, ReasoningDelta) else TextDelta(event.text)
        for event in events
        if event.text
    ]
