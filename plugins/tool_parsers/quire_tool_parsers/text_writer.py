"""The text between calls, without the blanks beside them."""

from quire.interfaces.tool_parsing import TextDelta
from quire_tool_parsers.json_scan import BLANKS


class TextWriter:
    """Holds back blanks at the end of text, which are dropped if a call follows.

    Blanks behind a call are dropped, too, unless text before the call goes on there.
    """

    def __init__(self) -> None:
        self._blanks: list[str] = []
        self._has_text = False
        self._is_behind_call = False

    def write(self, text: str) -> list[TextDelta]:
        """Return the text that is certain by now."""
        end = len(text.rstrip(BLANKS))
        if not end:
            self._blanks.append(text)
            return []
        content, self._blanks = "".join([*self._blanks, text[:end]]), [text[end:]]
        if self._is_behind_call and not self._has_text:
            content = content.lstrip(BLANKS)
        self._has_text, self._is_behind_call = True, False
        return [TextDelta(content)] if content else []

    def end_call(self) -> None:
        """Note that a call has ended here."""
        self._blanks.clear()
        self.leave_marker()

    def leave_marker(self) -> None:
        """Note that a marker of calls was here: blanks behind it are as behind a call."""
        self._is_behind_call = True

    def close(self) -> list[TextDelta]:
        """Return the blanks at the end, unless they are behind a call."""
        blanks = "".join(self._blanks)
        self._blanks.clear()
        return [TextDelta(blanks)] if blanks and not self._is_behind_call else []
