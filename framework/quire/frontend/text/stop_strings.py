"""Stop strings: a text stream that ends at one, and their search in a text that arrives in pieces.

A text ends at the stop string that is complete first. If two are complete at the same character,
the longer one counts. Text that may be the start of a stop string is held back. So the result
depends on the text alone, not on how it is split into tokens.
"""

from collections.abc import Sequence

from quire.frontend.text.text_stream import TextStream
from quire.sampling_params import SamplingParams


class StoppedStream:
    """A text stream that ends at the first stop string.

    Args:
        stream: Incremental decoder.
        params: Stop strings, and min_tokens, before which none is searched for.
    """

    def __init__(self, stream: TextStream, params: SamplingParams) -> None:
        self._stream = stream
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self._num_unchecked_tokens = max(0, params.min_tokens - 1)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.found

    def feed(self, token_id: int) -> str:
        """Add one token; return the text that is certain by now."""
        text = self._stream.feed(token_id)
        if self._num_unchecked_tokens:
            self._num_unchecked_tokens -= 1
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
        include_in_output: True to keep the stop string in the text.

    Attributes:
        found: The stop string that ended the text, if one did.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self.found: str | None = None
        self._stops = tuple(stops)
        self._include = include_in_output
        self._max_held = max(map(len, stops), default=1) - 1
        self._held = ""

    def feed(self, text: str) -> str:
        """Add the next piece; return the text that cannot be part of a stop string."""
        if not text or self.found is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        if (match := self._first_match(text)) is not None:
            start, end = match
            self.found, self._held = text[start:end], ""
            return text[:end] if self._include else text[:start]
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def close(self) -> str:
        """Return the text held back, which is not a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        matches = []
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                matches.append((start + len(stop), start))
        if not matches:
            return None
        end, start = min(matches)
        return start, end

    def _num_held(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is a prefix of a stop string."""
        for length in range(min(len(text), self._max_held), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
