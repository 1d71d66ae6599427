"""What is searched for in calls whose arguments stand between tags, built once for a format."""

from quire.interfaces.markers import Markers
from quire_tool_parsers.call_format import Tags


class TagMarkers:
    """Markers within a call.

    Args:
        tags: Markers of the format.
        closers: Markers that close a call or a section.
        openers: Markers that open the next call or section.

    Attributes:
        tags: Markers of the format.
        steps: What is between two arguments: the tag of the next one, or what closes the call.
        openings: What is before a value.
        value_ends: What may end a value.
        after_value: What follows the closing tag of a value.
        closers: What closes a call or a section.
        after_call: What follows a value without a closing tag, behind what closes the call.
    """

    def __init__(self, tags: Tags, closers: tuple[str, ...], openers: tuple[str, ...]) -> None:
        self.tags = tags
        self.steps = self.after_value = Markers((*tags.parameter_open, *closers))
        self.openings = Markers(tuple(each for each in (tags.value_open, tags.key_close) if each))
        self.value_ends = Markers((*tags.parameter_close, *closers))
        self.closers = Markers(closers)
        self.after_call = Markers((*closers, *openers))
