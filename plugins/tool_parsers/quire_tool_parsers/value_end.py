"""Search for the end of a value between tags.

A closing tag ends a value only if the call goes on behind it, so that one within a value is text.
The tag may be missing: then what closes the call ends the value, if another call follows, or if the
section of calls is closed as well and nothing follows. So an argument that breaks off is not taken
for a whole one. What is within a JSON object or list ends nothing, unless that is broken.
"""

from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import CLOSERS, Characters, read_container, skip_blanks
from quire_tool_parsers.tag_markers import TagMarkers

MAX_GAP = 1000  # blanks before a JSON object, or between a closing tag and what follows it
MAX_CLOSERS = 4  # behind a value without a closing tag

_BREAKS = ("\r\n", "\n")
_PARTS_OF_BREAKS = (*_BREAKS, "\r")


class ValueEnd:
    """Search in a text that arrives in pieces, one value after the other.

    Args:
        markers: Markers within and behind the call.
    """

    def __init__(self, markers: TagMarkers) -> None:
        self._markers, self._tags = markers, markers.tags
        self._num_searched = 0  # characters of the value that have no end
        self._may_be_container = False
        self._container: _Container | None = None
        self._num_read = 0  # characters of the value up to where the container was read

    def begin(self, *, may_be_container: bool) -> None:
        """Note that a value begins, and whether it may be a JSON object or list."""
        self._may_be_container = may_be_container
        self._container = None

    def search(self, text: str, start: int, is_last: bool) -> tuple[int, int | None]:
        """Return the end of a value, and the place behind its closing tag.

        If the end is not there yet, the second is None, and the value goes on at the first.

        Args:
            text: Text from the part of the value on that was not consumed.
            start: Place where it begins.
            is_last: Whether nothing follows the text.
        """
        if self._may_be_container and self._is_in_container(text, start, is_last):
            return start, None
        place = start + self._num_searched
        while (found := self._markers.value_ends.find(text, place, is_last=is_last)) is not None:
            at, marker = found
            behind = at + len(marker)
            is_end = self._goes_on(text, behind, marker, is_last)
            if is_end is None:
                return self._wait(text, start, at)
            if is_end:
                self._num_searched = 0
                is_tag = marker in self._tags.parameter_close
                end = self._without_break(text, start, at, _BREAKS)
                return end, behind if is_tag else at
            place = behind
        return self._wait(text, start, max(place, self._markers.value_ends.num_certain(text)))

    def _is_in_container(self, text: str, start: int, is_last: bool) -> bool:
        """Whether the text ends within a JSON object or list, which may still become whole."""
        if self._container is None:
            place = skip_blanks(text, start)
            is_near = place - start <= MAX_GAP
            if place == len(text) and is_near:
                return not is_last
            if is_near and text[place] in CLOSERS:
                self._container, self._num_read = _Container(), place - start
        if self._container is not None:
            unread = text[start + self._num_read :]
            self._num_read += self._container.read(unread, is_last=is_last)
            if not (self._container.is_broken or self._container.is_complete or is_last):
                return True
            if self._container.is_complete:
                self._num_searched = self._num_read
        self._may_be_container = False
        return False

    def _wait(self, text: str, start: int, searched: int) -> tuple[int, None]:
        """Return the end of what is certain: a line break there may be the last one."""
        end = self._without_break(text, start, searched, _PARTS_OF_BREAKS)
        self._num_searched = searched - end
        return end, None

    def _goes_on(self, text: str, place: int, marker: str, is_last: bool) -> bool | None:
        """Whether what stands behind a marker shows that it ends the value; None: not yet."""
        is_tag = marker in self._tags.parameter_close
        start = skip_blanks(text, place)
        behind = start if is_tag else self._behind_closers(text, start)
        followers = self._markers.after_value if is_tag else self._markers.after_call
        if behind - place > MAX_GAP:
            return False
        if followers.at_start(text, behind) is not None:
            return True
        if behind == len(text) or followers.may_begin(text, behind):
            return None if not is_last else is_tag or start < len(text)
        return False

    def _behind_closers(self, text: str, place: int) -> int:
        """Return the place behind all that closes the call, which is what follows a value."""
        for _ in range(MAX_CLOSERS):
            if (closer := self._markers.closers.at_start(text, place)) is None:
                break
            place = skip_blanks(text, place + len(closer))
        return place

    def _without_break(self, text: str, start: int, end: int, breaks: tuple[str, ...]) -> int:
        """Return the end of a value without the line break that does not belong to it."""
        if self._tags.trims_newline:
            for each in breaks:
                if text.endswith(each, start, end):
                    return end - len(each)
        return end


class _Container(ScanningReader):
    """Reader of one JSON object or list."""

    def scan(self) -> Characters:
        """Read the object or list."""
        yield from read_container((yield), self._arguments)
