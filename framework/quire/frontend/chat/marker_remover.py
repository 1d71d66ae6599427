"""Removal of special tokens' texts from a text that arrives in pieces."""

from collections.abc import Collection

from quire.interfaces.markers import Markers


class MarkerRemover:
    """Removes some texts, and holds back what may become one of them.

    Args:
        markers: Texts to remove.
    """

    def __init__(self, markers: Collection[str]) -> None:
        self._markers = Markers(markers)
        self._held = ""

    def feed(self, piece: str) -> str:
        """Add a piece; return the text that is certain by now."""
        text, kept = self._held + piece, list[str]()
        while (found := self._markers.find(text, is_last=False)) is not None:
            start, marker = found
            kept.append(text[:start])
            text = text[start + len(marker) :]
        certain = self._markers.num_certain(text)
        self._held = text[certain:]
        return "".join((*kept, text[:certain]))

    def close(self) -> str:
        """Return what was held back, as far as it is no marker."""
        text, kept, self._held = self._held, list[str](), ""
        while (found := self._markers.find(text, is_last=True)) is not None:
            start, marker = found
            kept.append(text[:start])
            text = text[start + len(marker) :]
        return "".join((*kept, text))
