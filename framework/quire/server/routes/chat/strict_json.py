"""JSON text as it comes, without the constants that JSON does not have: parsers let them pass."""

import re

_CONSTANT = re.compile(r"-?\b(?:NaN|Infinity)\b")
_BEGINNING = re.compile(r"[-A-Za-z]+\Z")  # of a word that may go on
_REST_OF_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


class StrictJson:
    """Replaces `NaN`, `Infinity` and `-Infinity` outside strings by null, in text of any pieces."""

    def __init__(self) -> None:
        self._held = ""  # the beginning of a word or an escape
        self._is_in_string = False

    def feed(self, piece: str) -> str:
        """Return what is certain with a further piece."""
        text, self._held = self._held + piece, ""
        found: list[str] = []
        at = 0
        while at < len(text):
            read = self._string if self._is_in_string else self._other
            part, at = read(text, at)
            found.append(part)
        return "".join(found)

    def close(self) -> str:
        """Return what is left."""
        held, self._held = self._held, ""
        return held if self._is_in_string else _CONSTANT.sub("null", held)

    def _string(self, text: str, at: int) -> tuple[str, int]:
        """Return the rest of a string that is there, and where it ends."""
        match = _REST_OF_STRING.match(text, at)
        end = at if match is None else match.end()
        if text[end : end + 1] == "\\":  # what it escapes is in the next piece
            self._held = text[end:]
            return text[at:end], len(text)
        self._is_in_string = end == len(text)
        return text[at : end + 1], end + 1

    def _other(self, text: str, at: int) -> tuple[str, int]:
        """Return what is in front of the next string with its quote, and where that begins."""
        end = text.find('"', at) + 1
        if not end:
            end = len(text)
            if match := _BEGINNING.search(text, at):
                self._held = match.group()
                return _CONSTANT.sub("null", text[at : match.start()]), end
        self._is_in_string = text[end - 1] == '"'
        return _CONSTANT.sub("null", text[at:end]), end
