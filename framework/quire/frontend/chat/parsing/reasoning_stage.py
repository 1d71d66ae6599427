"""The reasoning of one completion, which goes on behind a tool call if a marker ends it there.

    <think>A<tool_call>...</tool_call>B</think>C        A and B are reasoning, C is content
    <think>A<tool_call>...</tool_call>B                 A is reasoning, B is content

A model may call a tool in its reasoning without a word about the end of it, and many stop thinking
then. So what is behind such a call is held back until the marker shows what it is, or the end of
the completion.
"""

from collections.abc import Callable, Iterable
from itertools import groupby

from quire.frontend.chat.parsing.event_rules import reasoning_events
from quire.frontend.chat.parsing.marked_pieces import MarkedPieces
from quire.frontend.chat.parsing.parser_guard import ParserOrigin, guarded
from quire.interfaces.markers import Markers
from quire.interfaces.reasoning import ReasoningDelta, ReasoningParser
from quire.interfaces.tool_parsing import TextDelta

TextEvent = ReasoningDelta | TextDelta


class ReasoningStage:
    """A reasoning parser whose errors are those of its plugin.

    Args:
        make: Function that makes the parser from the end of the prompt; None: all is content.
        opening: End of the prompt; see `ReasoningParser`.
        origin: Origin of the parser.
        ends: Texts at which the reasoning may end; None: it may at any character.
        is_content: Whether the parser leaves the reasoning in the content, behind calls as well.

    Attributes:
        is_content: The argument.

    Raises:
        RequestFailedError: The parser cannot be built.
    """

    def __init__(
        self,
        make: Callable[[str], ReasoningParser] | None = None,
        opening: str = "",
        origin: ParserOrigin | None = None,
        *,
        ends: Markers | None = None,
        is_content: bool = False,
    ) -> None:
        self.is_content = is_content
        self._make = make
        self._origin = origin
        self._ends = ends
        self._read = [opening]  # and all that follows, from the last call in the reasoning on
        self._is_behind = False  # such a call, and it is not known yet whether it is reasoning
        self._held: list[TextEvent] = []  # events of the text behind it if it is
        self._parser, self._pieces = self._made(), self._cutter()

    @property
    def is_thinking(self) -> bool:
        """Whether the next text belongs to the reasoning, as far as is known."""
        return self._is_open and not self._is_behind

    @property
    def holds_text(self) -> bool:
        """Whether text behind a call is held back."""
        return self._is_behind and bool(self._read)

    def pieces(self, text: str) -> Iterable[str]:
        """Return the next text in pieces, each of which ends where the reasoning may end."""
        return text if self._pieces is None else self._pieces.of(text)

    def feed(self, text: str) -> list[TextEvent]:
        """Return the reasoning and the content of the next text."""
        if not text:
            return []
        if self._parser is not None:
            self._read.append(text)
        return self._feed_behind(text) if self._is_behind else self._fed(text)

    def end_call(self) -> list[TextEvent]:
        """Return what was held back, at the end of a call; open reasoning may end behind it."""
        if self._is_behind:
            return []
        may_go_on = self._is_open and not self.is_content
        events = self.close()
        if may_go_on:
            self._parser, self._pieces = self._made(), self._cutter()
            self._read, self._is_behind = [], True
            if not self._is_open:
                self.close()
        return events

    def close(self) -> list[TextEvent]:
        """Return what was held back; what follows is content."""
        parser, self._parser = self._parser, None
        if self._is_behind:
            self._is_behind, text = False, "".join(self._read)
            return [TextDelta(text)] if text else []
        if parser is None:
            return []
        return guarded(lambda: reasoning_events(parser.close()), self._origin)

    @property
    def _is_open(self) -> bool:
        parser = self._parser
        return parser is not None and guarded(lambda: parser.is_thinking, self._origin)

    def _made(self) -> ReasoningParser | None:
        """Return a parser of what follows the text that was read.

        Reasoning that has gone on behind a call has ended there, so what opens it is behind it.
        """
        if (make := self._make) is None:
            return None
        return guarded(lambda: make("".join(self._read)), self._origin)

    def _cutter(self) -> MarkedPieces | None:
        return None if self._ends is None else MarkedPieces(self._ends)

    def _fed(self, text: str) -> list[TextEvent]:
        parser = self._parser
        if parser is None:
            return [TextDelta(text)]
        return guarded(lambda: reasoning_events(parser.feed(text)), self._origin)

    def _feed_behind(self, text: str) -> list[TextEvent]:
        """Read text behind a call up to each end, as the reasoning may begin again behind one."""
        for piece in self.pieces(text):
            self._held += self._fed(piece)
            self._is_behind = self._is_behind and self._is_open
        if self._is_behind:
            return []
        held, self._held = self._held, []
        return _joined(held)


def _joined(events: Iterable[TextEvent]) -> list[TextEvent]:
    """Return events of which no two of one kind follow each other."""
    kinds = groupby(events, type)
    return [kind("".join(event.text for event in run)) for kind, run in kinds]
