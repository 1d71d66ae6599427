"""The text of each token of a completion, however its tokens come: alone, or many in a delta."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from quire.frontend.text.text_stream import TextStream
from quire.outputs import Delta
from quire.server.wire.protocol import TokenLogprob


class TokenText(NamedTuple):
    """A token's text, which is empty while a character or the end is incomplete."""

    text: str
    logprob: TokenLogprob | None


class TokenSplitter:
    """Splits deltas into the texts of their tokens.

    The text of a delta may be less than that of its tokens: what may become a stop string is held
    back. A token waits for its text, and at the end it has what there is of it.

    Args:
        stream: Decoder of the completion, which says how long the text of each token is.
    """

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._text = ""  # that no token has yet
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()  # length of the text, token

    def split(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> list[TokenText]:
        """Return the tokens whose text is complete with a delta; all, if it is the last one."""
        lengths = (len(self._stream.feed(token_id)) for token_id in delta.token_ids)
        self._waiting += zip(lengths, logprobs, strict=True)
        text, position, found = self._text + delta.text, 0, list[TokenText]()
        is_last = delta.finish_reason is not None
        while self._waiting and (is_last or self._waiting[0][0] <= len(text) - position):
            length, logprob = self._waiting.popleft()
            found.append(TokenText(text[position : position + length], logprob))
            position = min(len(text), position + length)
        self._text = text[position:]
        if is_last and self._text:
            found.append(TokenText(self._text, None))
        return found
