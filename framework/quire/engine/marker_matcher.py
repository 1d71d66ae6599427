"""Search for a marker in the tokens of a completion, however they spell it.

A marker is one token of some models and several of others, and a model may spell it in more ways
than its tokenizer does: `>` and a line break behind it may be one token. So the bytes of tokens are
compared.
"""

from collections.abc import Iterable
from functools import cached_property

from quire.messages import MarkerTokens


class MarkerMatcher:
    """Looks for a marker, token by token.

    Args:
        marker: The marker.
    """

    def __init__(self, marker: MarkerTokens) -> None:
        self._marker = marker
        self._longest = max(map(len, marker.texts))
        self._beginnings = frozenset(
            text[:end] for text in marker.texts for end in range(1, len(text))
        )
        self._overrunning: dict[bytes, list[int]] = {}  # by the beginning that there is
        self._held = b""  # the last bytes, of which a part may be the beginning of the marker

    def accept(self, token_id: int) -> bool:
        """Read the next token; return whether the marker is complete with it."""
        piece = self._marker.pieces.get(token_id)
        if piece is None:
            self._held = b""
            return False
        text = self._held + piece
        self._held = text[-self._longest :]
        return any(spelling in text for spelling in self._marker.texts)

    def overrunning(self) -> list[int]:
        """Return the tokens that would complete the marker and go on behind it, blanks aside."""
        begun = self._begun()
        if (found := self._overrunning.get(begun)) is None:
            pieces = self._overlong.items()
            found = [token_id for token_id, piece in pieces if self._overruns(begun + piece)]
            self._overrunning[begun] = found
        return found

    def _begun(self) -> bytes:
        """Return the longest beginning of a spelling with which the text ends so far."""
        ends = (self._held[start:] for start in range(len(self._held)))
        return next((end for end in ends if end in self._beginnings), b"")

    @cached_property
    def _overlong(self) -> dict[int, bytes]:
        """The tokens that have the end of a spelling and more than blanks behind it."""
        texts = self._marker.texts
        ends = [text[start:] for text in texts for start in range(len(text))]
        return {
            token_id: piece
            for token_id, piece in self._marker.pieces.items()
            if any(piece.startswith(end) and piece[len(end) :].strip() for end in ends)
            or self._overruns(piece)
        }

    def _overruns(self, text: bytes) -> bool:
        found = [(text.find(each), each) for each in self._marker.texts]
        ends = [start + len(spelling) for start, spelling in found if start >= 0]
        return bool(ends) and bool(text[min(ends) :].strip())

    def is_in(self, token_ids: Iterable[int]) -> bool:
        """Read the next tokens up to the marker; return whether it is complete."""
        return any(map(self.accept, token_ids))
