"""Removal of special tokens' texts from a text that arrives in pieces."""

from quire.interfaces.markers import Markers


class MarkerRemover:
    """Removes some texts, and holds back what may become one of them.

    Args:
        markers: The texts.
    """

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._held = ""

    def feed(self, piece: str) -> str:
        """Add a piece; return the text that is certain by now."""
        kept, rest = self._without_markers(self._held + piece, is_last=False)
        certain = self._markers.num_certain(rest)
        self._held = rest[certain:]
        return kept + rest[:certain]

    def close(self) -> str:
        """Return what was held back, as far as it is no marker."""
        kept, rest = self._without_markers(self._held, is_last=True)
        self._held = ""
        return kept + rest

    def _without_markers(self, text: str, *, is_last: bool) -> tuple[str, str]:
        """Return the text up to the last marker, without those in it, and the rest."""
        kept = list[str]()
        while (found := self._markers.find(text, is_last=is_last)) is not None:
            start, marker = found
            kept.append(text[:start])
            text = text[start + len(marker) :]
        return "".join(kept), text
