"""`TokenizerBackend`: the tokenizer library's functions that `Tokenizer` and `Decoding` need."""

from collections.abc import Sequence
from typing import Any, Protocol


class TokenizerBackend(Protocol):
    """A tokenizer implementation: a fast tokenizer, or one of transformers' slow ones."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of the joined pieces; no special token spans two of them."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of ids."""

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token as it stands in the vocabulary; None if there is no such id."""

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary."""

    def vocabulary(self) -> dict[str, int]:
        """Return all tokens, the added ones too."""

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that a text has at least, without tokenizing it."""

    def special_token_ids(self) -> frozenset[int]:
        """Return the ids that `skip_special_tokens` leaves out."""

    def decoder(self) -> dict[str, Any] | None:
        """Return the decoder as `tokenizer.json` describes it; None if it has no description."""
