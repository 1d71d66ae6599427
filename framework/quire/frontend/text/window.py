"""Decoding with a tokenizer's own `decode`, applied to a window of tokens."""

from collections.abc import Callable, Sequence

from quire.frontend.text.text_stream import (
    MAX_CHARACTER_BYTES,
    REPLACEMENT,
    Decoding,
    TextStream,
)

WINDOW = 8  # tokens of context that `WindowStream` keeps


class WindowDecoding(Decoding):
    """Decoding with the tokenizer's own `decode`, for any other tokenizer."""

    def stream(self, prompt_token_ids: Sequence[int], hidden: frozenset[int]) -> TextStream:
        """Return an incremental decoder that continues a prompt."""

        def decode(token_ids: Sequence[int]) -> str:
            visible = [i for i in token_ids if i not in hidden]
            return self.backend.decode(visible, skip_special_tokens=False)

        return WindowStream(decode, prompt_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of the token decoded alone."""
        return self.backend.decode([token_id], skip_special_tokens=False).encode()


class WindowStream:
    """The stream of any other decoder: decode the last few tokens again and return the new text.

    Exact if a token's text depends on its near neighbours only, which holds for WordPiece and for
    the decoders of transformers' slow tokenizers.

    Args:
        decode: Function that decodes token ids.
        prompt_token_ids: Token ids of the prompt.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int]
    ) -> None:
        self._decode = decode
        self._token_ids = list(prompt_token_ids[-WINDOW:])
        self._num_sent = _stable_length(decode(self._token_ids))

    def feed(self, token_id: int) -> str:
        """Add one token; a suffix that may be an incomplete character is held back."""
        self._token_ids.append(token_id)
        text = self._decode(self._token_ids)
        delta = text[self._num_sent : _stable_length(text)]
        self._num_sent += len(delta)
        if len(self._token_ids) > 3 * WINDOW:
            self._move_window(len(text) - self._num_sent)
        return delta

    def close(self) -> str:
        """Return the text held back."""
        text = self._decode(self._token_ids)
        delta = text[self._num_sent :]
        self._num_sent = len(text)
        return delta

    def _move_window(self, num_held: int) -> None:
        del self._token_ids[:-WINDOW]
        self._num_sent = max(0, len(self._decode(self._token_ids)) - num_held)


def _stable_length(text: str) -> int:
    """Return the length of the text that later tokens cannot change.

    A few U+FFFD at the end may still become one character.
    """
    num_open = len(text) - len(text.rstrip(REPLACEMENT))
    return len(text) - min(num_open, MAX_CHARACTER_BYTES - 1)
