"""Decoding of byte-level BPE: tokens are bytes, written as 256 printable characters."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial

from quire.frontend.text.byte_spelling import byte_level_bytes
from quire.frontend.text.text_stream import (
    MAX_CHARACTER_BYTES,
    NUM_REMEMBERED,
    Decoding,
    TextStream,
)
from quire.frontend.text.tokenizer_backend import TokenizerBackend

_UTF8 = getincrementaldecoder("utf-8")


class ByteLevelDecoding(Decoding):
    """Decoding of tokens that are bytes, written as 256 printable characters."""

    def __init__(self, backend: TokenizerBackend) -> None:
        super().__init__(backend)
        self._lookup = cache(lambda token_id: byte_level_bytes(backend.id_to_token(token_id) or ""))
        self._visible = lru_cache(NUM_REMEMBERED)(
            lambda hidden: cache(partial(self._visible_bytes, hidden))
        )

    def stream(self, prompt_token_ids: Sequence[int], hidden: frozenset[int]) -> TextStream:
        """Return an incremental decoder that continues a prompt."""
        return ByteLevelStream(self._visible(hidden), prompt_token_ids)

    def _visible_bytes(self, hidden: frozenset[int], token_id: int) -> bytes:
        return b"" if token_id in hidden else self._lookup(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for an id that does not exist."""
        return self._lookup(token_id)


class ByteLevelStream:
    """The stream of byte-level BPE: tokens are bytes of UTF-8 text.

    Args:
        bytes_of: Function that returns the bytes of a token; empty for one that is left out.
        prompt_token_ids: Token ids of the prompt.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], prompt_token_ids: Sequence[int]) -> None:
        self._bytes_of = bytes_of
        self._decoder = _UTF8("replace")
        self._decoder.decode(_last_bytes(bytes_of, prompt_token_ids))

    def feed(self, token_id: int) -> str:
        """Add one token; an incomplete character is held back."""
        return self._decoder.decode(self._bytes_of(token_id))

    def close(self) -> str:
        """Return U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)


def _last_bytes(bytes_of: Callable[[int], bytes], token_ids: Sequence[int]) -> bytes:
    """Return at least the last four bytes of a prompt, the longest UTF-8 character."""
    tail = b""
    for token_id in reversed(token_ids):
        tail = bytes_of(token_id) + tail
        if len(tail) >= MAX_CHARACTER_BYTES:
            break
    return tail
