"""Stop strings: a text stream that ends at one, and their search in a text that arrives in pieces.

A text ends at the stop string, or at the match of a stop regex, that is complete first. If two are
complete at the same character, the longer one counts. Text that may be the start of one is held
back. So the result depends on the text alone, not on how it is split into tokens.
"""

from collections.abc import Sequence

from quire.frontend.text.stop_regex import StopMatch, StopRegexes
from quire.frontend.text.text_stream import TextStream
from quire.sampling_params import SamplingParams

_End = tuple[int, int, str]  # end and start of a stop string in a text, and the stop string


class StoppedStream:
    """A text stream that ends at the first stop string.

    Args:
        stream: Incremental decoder.
        params: Stop strings and regexes, and min_tokens, before which none is searched for.
    """

    def __init__(self, stream: TextStream, params: SamplingParams) -> None:
        self._stream = stream
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output, params.stop_regex)
        self._num_unchecked_tokens = max(0, params.min_tokens - 1)

    @property
    def stop_string(self) -> str | None:
        """The stop string or the stop regex that ended the text, if one did."""
        return self._stops.found

    def feed(self, token_id: int) -> str:
        """Add one token; return the text that is certain by now."""
        text = self._stream.feed(token_id)
        if self._num_unchecked_tokens:
            self._num_unchecked_tokens -= 1
            self._stops.skip(text)
            return text
        return self._stops.feed(text)

    def close(self) -> str:
        """Return the text held back; a stop string may still be found in it."""
        text = self._stops.feed(self._stream.close())
        return text + self._stops.close()


class StopStrings:
    """Searches for stop strings in a text that arrives in pieces.

    Args:
        stops: Stop strings, none of them empty.
        include_in_output: True to keep the stop string, or the match of a regex, in the text.
        regexes: Stop regexes.

    Attributes:
        found: The stop string or the stop regex that ended the text, if one did.
    """

    def __init__(
        self,
        stops: Sequence[str],
        include_in_output: bool = False,
        regexes: tuple[str, ...] = (),
    ) -> None:
        self.found: str | None = None
        self._stops = tuple(stops)
        self._include = include_in_output
        self._max_held = max(map(len, stops), default=1) - 1
        self._held = ""
        self._num_returned = 0
        self._regexes = StopRegexes(regexes) if regexes else None

    def skip(self, text: str) -> None:
        """Pass the beginning of the text, in which nothing is searched for."""
        self._num_returned += len(text)
        if self._regexes is not None:
            self._regexes.skip(text)

    def feed(self, text: str) -> str:
        """Add the next piece; return the text that cannot be part of a stop string."""
        if not text or self.found is not None:
            return ""
        match = None if self._regexes is None else self._regexes.feed(text)
        text = self._held + text
        if (end := self._first_end(text, match)) is not None:
            return self._end(text, end)
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        self._num_returned += len(text) - num_held
        return text[: len(text) - num_held]

    def close(self) -> str:
        """Return the text held back, up to the match of a regex that ends with it."""
        held, self._held = self._held, ""
        if self._regexes is not None and self.found is None and (match := self._regexes.close()):
            return self._end(held, self._relative(match))
        return held

    def _end(self, text: str, match: _End) -> str:
        """End the text; return what is left of it."""
        end, start, self.found = match
        self._held = ""
        return text[:end] if self._include else text[:start]

    def _first_end(self, text: str, match: StopMatch | None) -> _End | None:
        """Return what ends the text first, and of several with one end the longest."""
        ends = [] if match is None else [self._relative(match)]
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                ends.append((start + len(stop), start, stop))
        return min(ends, default=None)

    def _relative(self, match: StopMatch) -> _End:
        """Return a match with positions in the text that was not returned yet."""
        return match.end - self._num_returned, match.start - self._num_returned, match.pattern

    def _num_held(self, text: str) -> int:
        """Return the length of the longest suffix of the text that may begin a stop string."""
        held_by_regex = 0
        if self._regexes is not None:
            held_by_regex = self._num_returned + len(text) - self._regexes.held_from
        for length in range(min(len(text), self._max_held), held_by_regex, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return held_by_regex
