"""The format of a model family's reasoning, as data: the texts that mark it."""

import msgspec


class TagFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The format of reasoning between two markers.

    Attributes:
        open: Spellings of the marker that opens the reasoning.
        close: Spellings of the marker that ends it.
        label: First line of the reasoning, which is not shown.
        wrapper_open: Spellings of a marker before the content, which may be missing.
        wrapper_close: Spellings of the marker behind such content.
        opens_anywhere: Whether the reasoning may be opened within the content. If not, only at the
            start of the completion and directly behind other reasoning.
        is_content: Whether the reasoning, markers included, is left in the content.
    """

    open: tuple[str, ...]
    close: tuple[str, ...]
    label: str = ""
    wrapper_open: tuple[str, ...] = ()
    wrapper_close: tuple[str, ...] = ()
    opens_anywhere: bool = False
    is_content: bool = False

    def last_marker(self, text: str) -> tuple[str, str]:
        """Return the last marker of a text, and what follows it; empty if there is none."""
        markers = (*self.open, *self.close, *self.wrapper_open)
        start, marker = max((text.rfind(marker), marker) for marker in markers)
        return (marker, text[start + len(marker) :]) if start >= 0 else ("", "")
