"""What the text of a value may not have, so that the parser reads the value as it is written."""

import re

from quire.interfaces.tool_parsing import Piece, RegexPiece
from quire_tool_parsers.call_format import CallFormat
from quire_tool_parsers.json_scan import BLANKS

_ANY = r"[\s\S]*"


class TextLimits:
    """Texts that cannot be in a value of a format.

    A closing tag of the value ends it. What closes the call ends it only if something follows that
    closes or opens a section or a call. A line break beside a tag may belong to the tag.

    Args:
        form: Format of the calls.
    """

    def __init__(self, form: CallFormat) -> None:
        self._trims_newline = form.tags is not None and form.tags.trims_newline
        self._ends: tuple[str, ...] = ()
        self.excluded: tuple[str, ...] = ()
        if form.tags is not None:
            self.excluded = form.tags.parameter_close
            closers = (*form.call_close, *form.section_close)
            followers = _one_of((*closers, *form.call_open, *form.section_open))
            self._ends = (f"{_ANY}{_one_of(closers)}[{BLANKS}]*{followers}{_ANY}",)

    def barred(self, before: Piece, after: str) -> tuple[str, ...]:
        """Return regular expressions of texts that cannot be values.

        Args:
            before: What is before the value.
            after: Text behind the value.
        """
        if not self._trims_newline:
            return self._ends
        head = before if isinstance(before, str) else _behind_name(before)
        breaks = [] if head.endswith("\n") else [rf"\r?\n{_ANY}"]
        return (*self._ends, *breaks, rf"{_ANY}\r" if after.startswith("\n") else rf"{_ANY}\n")


def _behind_name(before: Piece) -> str:
    return before.after if isinstance(before, RegexPiece) else ""


def _one_of(texts: tuple[str, ...]) -> str:
    return f"(?:{'|'.join(map(_escaped, dict.fromkeys(texts)))})"


def _escaped(text: str) -> str:
    """Return the regex of a text, in the dialect of clients' regular expressions."""
    return re.sub(r"[.^$*+?{}()|\[\]\\]", r"\\\g<0>", text)
