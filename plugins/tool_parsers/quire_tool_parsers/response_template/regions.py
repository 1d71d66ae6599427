"""Regions of a completion, found while its text arrives.

Outside of regions, all that opens one is looked for; within one, only what closes it.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from quire_tool_parsers.response_template.anchor import Anchor
from quire_tool_parsers.response_template.pattern import Found
from quire_tool_parsers.response_template.template import Field


@dataclass(frozen=True, slots=True)
class Text:
    """Next text of a region; `field` is None outside of all."""

    field: Field | None
    text: str


@dataclass(frozen=True, slots=True)
class Opened:
    """Start of a region, with the text that opened it."""

    field: Field
    marker: str
    captures: dict[str, str]


@dataclass(frozen=True, slots=True)
class Closed:
    """End of a region, with the text that closed it; it is empty at the end of a completion."""

    field: Field
    marker: str
    captures: dict[str, str]


Part = Text | Opened | Closed


class Regions:
    """Splits the text of one completion into regions.

    Args:
        fields: Fields whose regions are found. One without an opening has the text of no region.

    Attributes:
        field: Field of the next text; None outside of all.
    """

    def __init__(self, fields: Collection[Field]) -> None:
        self._openers = [(each, each.open) for each in fields if each.open is not None]
        self._rest = next((each for each in fields if each.open is None), None)
        self.field = self._rest
        self._text, self._at = "", 0

    def feed(self, delta: str) -> Iterator[Part]:
        """Return the parts that are certain by now; they must all be taken."""
        self._text, self._at = self._text[self._at :] + delta, 0
        return self._run(is_last=False)

    def close(self) -> Iterator[Part]:
        """Return what was held back, and the end of a region that is still open."""
        yield from self._run(is_last=True)
        while self.field is not None and self.field is not self._rest:
            closed, self.field = self.field, self._rest
            yield Closed(closed, "", {})
            yield from self._run(is_last=True)

    @property
    def next_field(self) -> Field | None:
        """Field of the next text, if what was held back is followed by other text."""
        found, _ = self._next(is_last=True)
        return self.field if found is None else found[0] or self._rest

    @property
    def num_held(self) -> int:
        """Number of characters that were held back, as more text may make them a marker."""
        return len(self._text) - self._at

    def stay(self, in_field: Field) -> None:
        """Go on in a region whose end was returned last, as if nothing had closed it."""
        self.field = in_field

    def read_again(self, text: str) -> None:
        """Read text once more, which parts that were returned had, before what follows."""
        self._text, self._at = text + self._text[self._at :], 0

    def _run(self, *, is_last: bool) -> Iterator[Part]:
        while True:
            found, certain = self._next(is_last=is_last)
            end = certain if found is None else found[1].start
            if end > self._at:
                text, self._at = self._text[self._at : end], end
                yield Text(self.field, text)
            if found is None:
                return
            yield from self._pass(*found)

    def _pass(self, opened: Field | None, found: Found) -> Iterator[Part]:
        """Go on behind what opens or closes a region."""
        marker, self._at = self._text[found.start : found.end], found.end
        if self.field is not None:
            closed, self.field = self.field, self._rest
            is_own = opened is None
            yield Closed(closed, marker if is_own else "", found.captures if is_own else {})
        if opened is not None:
            self.field = opened
            yield Opened(opened, marker, found.captures)

    def _next(self, *, is_last: bool) -> tuple[tuple[Field | None, Found] | None, int]:
        """Return what opens a field, or closes this one; and how far the text is certain."""
        certain, best = len(self._text), None
        for number, (opened, anchor) in enumerate(self._watched()):
            found, at = anchor.find(
                self._text, self._at, is_last=is_last, may_be_empty=self.field is not self._rest
            )
            if found is None:
                certain = min(certain, at)
                continue
            rank = (found.start, -found.end, number)
            if best is None or rank < best[0]:
                best = rank, opened, found
        if best is None or best[2].start >= certain:
            return None, certain
        return (best[1], best[2]), certain

    def _watched(self) -> list[tuple[Field | None, Anchor]]:
        field = self.field
        closing = [] if field is None or field.close is None else [(None, field.close)]
        return [*self._openers, *closing] if field is self._rest else [*closing]
