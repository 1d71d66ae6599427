"""Incremental decoders from token ids to text; returned text never changes afterwards.

Each family of decoders has a stream that reproduces it, with a state of a few bytes, so a token
costs the same at any length. A stream continues a prompt: a character that starts in the prompt and
ends in the completion belongs to the completion, as does the space before its first word.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from quire.frontend.text.tokenizer_backend import TokenizerBackend

MAX_CHARACTER_BYTES = 4
NUM_REMEMBERED = 8  # sets of hidden tokens
REPLACEMENT = "\ufffd"


class TextStream(Protocol):
    """An incremental decoder."""

    def feed(self, token_id: int) -> str:
        """Add one token; return the text that is certain by now and was not returned before."""

    def close(self) -> str:
        """Return the text held back."""


class Decoding(ABC):
    """Conversion of one tokenizer's tokens to text."""

    def __init__(self, backend: TokenizerBackend) -> None:
        self.backend = backend
        self.special_token_ids = backend.special_token_ids()

    @abstractmethod
    def stream(self, prompt_token_ids: Sequence[int], hidden: frozenset[int]) -> TextStream:
        """Return an incremental decoder that continues a prompt.

        Args:
            prompt_token_ids: Token ids of the prompt.
            hidden: Ids of tokens that are left out.
        """

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token adds to a text."""
