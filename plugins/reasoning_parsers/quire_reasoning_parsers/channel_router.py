"""The channels of gpt-oss: messages on `analysis` are reasoning, all others are content.

A completion is a series of messages, each a header and a text:

    <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.

Models write headers that the format does not allow, so a header is all up to `<|message|>`. What
cannot be a header is content.
"""

import re
from collections.abc import Callable, Iterator

from quire.interfaces.markers import Markers
from quire.interfaces.reasoning import (
    ContentDelta,
    ReasoningDelta,
    ReasoningEvent,
    ReasoningParser,
)

CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
STARTS = ("<|start|>", CHANNEL)
ENDS = ("<|end|>", "<|return|>", "<|call|>")
WORDS = ("assistant", "to=", "analysis", "commentary", "final")  # of a header without its markers
MAX_HEADER = 256  # characters; a longer one is none
BETWEEN_MESSAGES = "\n"

_TEXT_ENDS = Markers({*STARTS, *ENDS})
_HEADER_ENDS = Markers({MESSAGE, *ENDS})
_MARKERS = Markers({*STARTS, "<|constrain|>", MESSAGE, *ENDS})
_ROLE = re.compile(r"\s*(?:assistant)?\s*(?:to=[^\s<]*)?\s*")
_RECIPIENT = re.compile(r"to=[^\s<]*")
_NAME = re.compile("analysis|commentary|final")
_KNOWN = re.compile(r"<\|\w+\|>|to=[^\s<]*|(?:assistant|analysis|commentary|final|json|code|text)")
_LETTER = re.compile(r"\w")

Events = Iterator[ReasoningEvent]


class ChannelRouter(ReasoningParser):
    """Parser with two states: the header of a message, and its text."""

    def __init__(self, prompt_text: str = "") -> None:
        super().__init__(prompt_text)
        start = max(map(prompt_text.rfind, (*STARTS, *ENDS)))
        header, marker, _ = prompt_text[max(start, 0) :].partition(MESSAGE)
        self._begun = "" if marker or CHANNEL not in header else header  # in the prompt
        self._is_header = not marker
        self._is_analysis = bool(marker) and _is_analysis(header)
        self._state: Callable[[bool], Events] = self._read_text if marker else self._read_header
        self._text, self._at = "", 0  # read up to there
        self._needs_more = False
        self._kinds: set[type[ReasoningEvent]] = set()
        self._is_new = False  # whether the text is that of a message that has just begun

    @property
    def is_thinking(self) -> bool:
        """Whether the content is still to come."""
        return self._is_analysis or (self._is_header and ContentDelta not in self._kinds)

    def feed(self, delta: str) -> list[ReasoningEvent]:
        """Parse the next piece of output; return the events that are certain by now."""
        self._text, self._at = self._text[self._at :] + delta, 0
        return [*self._run(is_last=False)]

    def close(self) -> list[ReasoningEvent]:
        """Return what was held back; a header without a text is dropped."""
        return [*self._run(is_last=True)]

    def _run(self, *, is_last: bool) -> Events:
        self._needs_more = False
        while self._at < len(self._text) and not self._needs_more:
            yield from self._state(is_last)

    def _read_header(self, is_last: bool) -> Events:
        text, at = self._text, self._at
        near = text[at : at + MAX_HEADER + len(MESSAGE) + 1]
        found = _HEADER_ENDS.find(near, is_last=is_last)
        header = near[: found[0] if found else _HEADER_ENDS.num_certain(near)]
        ending = found[1] if found else ""
        is_over = bool(found) or (is_last and at + len(near) == len(text))
        if not self._may_be_header(header) or (is_over and self._is_text(header, ending)):
            self._begin_text(is_analysis=False)
            marker = _MARKERS.at_start(text, at) or ""
            self._at += len(marker)
            yield from self._emit(marker)
        elif is_over:
            self._at += len(header if found else near) + len(ending)
            if ending == MESSAGE:
                self._begin_text(is_analysis=_is_analysis(self._begun + header))
            yield from self._emit(_words_beside(header))
            self._begun = ""
        else:
            self._needs_more = True

    def _may_be_header(self, text: str) -> bool:
        """Whether a text is the beginning of a header."""
        if len(text) > MAX_HEADER:
            return False
        if self._begun:
            return True
        role = _ROLE.match(text)
        start = 0 if role is None else role.end()
        is_marked = bool(_MARKERS.at_start(text, start)) or _MARKERS.may_begin(text, start)
        return is_marked or any(word.startswith(text[start:]) for word in WORDS)

    def _is_text(self, header: str, ending: str) -> bool:
        """Whether the words before a marker are no header, as they have no marker of one."""
        is_marked = bool(self._begun) or ending == MESSAGE or _MARKERS.find(header, is_last=True)
        return bool(header.strip()) and not is_marked

    def _begin_text(self, *, is_analysis: bool) -> None:
        self._is_header, self._is_analysis, self._is_new = False, is_analysis, True
        self._state = self._read_text

    def _begin_header(self) -> None:
        self._is_header, self._is_analysis = True, False
        self._state = self._read_header

    def _read_text(self, is_last: bool) -> Events:
        text, at = self._text, self._at
        if found := _TEXT_ENDS.find(text, at, is_last=is_last):
            start, marker = found
            self._at = start + len(marker) if marker in ENDS else start
            yield from self._emit(text[at:start])
            self._begin_header()
            return
        self._needs_more = True
        self._at = len(text) if is_last else _TEXT_ENDS.num_certain(text, at)
        yield from self._emit(text[at : self._at])

    def _emit(self, text: str) -> Events:
        if not text:
            return
        kind = ReasoningDelta if self._is_analysis else ContentDelta
        separator = BETWEEN_MESSAGES if self._is_new and kind in self._kinds else ""
        self._is_new = False
        self._kinds.add(kind)
        yield kind(separator + text)


def _is_analysis(header: str) -> bool:
    """Return whether a header is that of a message on the channel `analysis`."""
    channel = _RECIPIENT.sub("", header.rpartition(CHANNEL)[2])
    name = _NAME.search(channel)
    return name is not None and name.group() == "analysis"


def _words_beside(header: str) -> str:
    """Return the words of a header that are none of the format's, so that no text is lost."""
    words = _KNOWN.sub(" ", header).split()
    return " ".join(word for word in words if _LETTER.search(word) and not _may_be_known(word))


def _may_be_known(word: str) -> bool:
    return any(known.startswith(word) for known in WORDS)
