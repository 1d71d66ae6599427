"""What is searched for in the completions of a format, built once for all of them."""

from functools import cache

from quire.interfaces.markers import Markers
from quire_reasoning_parsers.tag_format import TagFormat


class TagMarkers:
    """Markers of a format.

    Args:
        form: The format.

    Attributes:
        openers: What opens the reasoning.
        closers: What ends it.
        both: What opens or ends it.
        front: What may be before the content.
        content_ends: What ends the content; None: nothing does.
        wrapped_ends: What ends content behind the marker of a wrapper.
    """

    def __init__(self, form: TagFormat) -> None:
        self.openers, self.closers = Markers(form.open), Markers(form.close)
        self.both = Markers({*form.open, *form.close})
        self.front = Markers({*self.both.texts, *form.wrapper_open})
        self.content_ends = self.openers if form.opens_anywhere else None
        self.wrapped_ends = Markers(form.wrapper_close)


@cache
def markers_of(form: TagFormat) -> TagMarkers:
    """Return the markers of a format."""
    return TagMarkers(form)
