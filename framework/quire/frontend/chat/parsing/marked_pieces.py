"""Pieces of a text that arrives in deltas, each of which ends where a marker does."""

from collections.abc import Iterator

from quire.interfaces.markers import Markers


class MarkedPieces:
    """Cuts deltas behind each marker, also behind one that an earlier delta has begun.

    Args:
        markers: The markers.
    """

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._num_kept = max(map(len, markers.texts), default=1) - 1
        self._last = ""  # characters, of which a part may be the beginning of a marker

    def of(self, delta: str) -> Iterator[str]:
        """Return the pieces of the next delta, none of them empty."""
        text, start = self._last + delta, len(self._last)
        self._last = text[-self._num_kept :] if self._num_kept else ""
        at = 0
        while (found := self._markers.find(text, at, is_last=True)) is not None:
            at = found[0] + len(found[1])
            if at > start:
                yield text[start:at]
                start = at
        if start < len(text):
            yield text[start:]
