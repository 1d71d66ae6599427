"""Log probabilities of the tokens that wrote the text of messages, and of the end after it.

The parser reads a completion token by token, so the same tokens are found however they came. The
text of an event is looked for in that of the tokens since the event before: a parser leaves out
marks, and holds back what may become one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.frontend.chat.parsing.completion_parser import CompletionEvent
from quire.frontend.text.text_stream import TextStream
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta, ToolCallEnd
from quire.outputs import Delta
from quire.server.routes.chat.choice_events import ChoiceEvents
from quire.server.routes.responses.token_splitter import TokenSplitter, TokenText
from quire.server.wire.protocol import TokenLogprob

LoggedEvent = tuple[CompletionEvent, Sequence[TokenLogprob]]


class MessageLogprobs:
    """Reads the deltas of one completion with log probabilities.

    Args:
        parts: Events of the completion.
        stream: Decoder of the completion.
    """

    def __init__(self, parts: ChoiceEvents, stream: TextStream) -> None:
        self._parts = parts
        self._texts = TokenSplitter(stream)
        self._unread = _UnreadTokens()

    def read(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> list[LoggedEvent]:
        """Return the events that a delta adds, with the tokens that wrote the text of each."""
        found: list[LoggedEvent] = []
        for token in self._texts.split(delta, logprobs):
            self._unread.add(token)
            part = Delta(index=delta.index, text=token.text, token_ids=[])
            found += self._unread.read(self._parts.read(part))
        if delta.finish_reason is not None:
            end = Delta(index=delta.index, text="", token_ids=[], finish_reason=delta.finish_reason)
            found += self._unread.read(self._parts.read(end))
        return found

    @property
    def end(self) -> list[TokenLogprob]:
        """Tokens without a text after the last event, such as the end of the text."""
        return self._unread.end


@dataclass(slots=True)
class _Token:
    """A token at a place of the text that no event has read."""

    begin: int
    end: int
    logprob: TokenLogprob | None  # None: it was given to an event

    def is_in(self, begin: int, end: int) -> bool:
        """Whether it wrote some of the text of a range, or a part of a character that is there."""
        return self.begin < end and (begin < self.end or begin <= self.begin)


class _UnreadTokens:
    """The tokens from the end of the last event on."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._num_characters = 0
        self._tokens: list[_Token] = []

    @property
    def end(self) -> list[TokenLogprob]:
        """Tokens without a text that follow the last event."""
        after = [token for token in self._tokens if token.end == 0]
        return [token.logprob for token in after if token.logprob is not None]

    def add(self, token: TokenText) -> None:
        """Add the next token."""
        begin = self._num_characters
        self._num_characters += len(token.text)
        self._pieces.append(token.text)
        self._tokens.append(_Token(begin, self._num_characters, token.logprob))

    def read(self, events: Sequence[CompletionEvent]) -> list[LoggedEvent]:
        """Return events with the tokens of the texts of messages, and forget what they have read.

        The last event is looked for first, as it is nearest to the end.
        """
        if not events:
            return []
        text, found = "".join(self._pieces), list[LoggedEvent]()
        limit, num_read = len(text), 0
        for event in reversed(events):
            logprobs: Sequence[TokenLogprob] = ()
            match event:
                case TextDelta(piece) | ReasoningDelta(piece):
                    begin = _place(text[:limit], piece)
                    end = min(begin + len(piece), limit)
                    if isinstance(event, TextDelta):
                        logprobs = self._given(begin, end)
                    num_read, limit = max(num_read, end), begin
                case ToolCallEnd():
                    num_read = max(num_read, limit)
            found.append((event, logprobs))
        self._forget(text, num_read)
        return found[::-1]

    def _given(self, begin: int, end: int) -> list[TokenLogprob]:
        found: list[TokenLogprob] = []
        for token in self._tokens:
            if token.logprob is not None and token.is_in(begin, end):
                found.append(token.logprob)
                token.logprob = None
        return found

    def _forget(self, text: str, num_read: int) -> None:
        rest = [t for t in self._tokens if t.end > num_read or t.begin >= num_read]
        for token in rest:
            token.begin, token.end = max(0, token.begin - num_read), token.end - num_read
        self._tokens, self._pieces = rest, [text[num_read:]]
        self._num_characters = len(text) - num_read


def _place(text: str, piece: str) -> int:
    """Return where the text of an event begins in that of the tokens since the one before."""
    if text.endswith(piece):
        return len(text) - len(piece)
    if text.startswith(piece):
        return 0
    found = text.rfind(piece)
    return found if found >= 0 else max(0, len(text) - len(piece))
