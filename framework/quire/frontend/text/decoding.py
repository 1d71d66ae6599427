"""Decoders of token ids, chosen by the decoder that tokenizer.json describes.

Byte-level BPE and the SentencePiece variants (Metaspace; Replace, ByteFallback, Fuse, Strip) have
exact incremental decoders. Any other decoder is applied to a window of tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any

from quire.frontend.text.byte_spelling import byte_level_bytes, flat_steps, single_byte
from quire.frontend.text.text_stream import (
    ByteLevelStream,
    Piece,
    PieceRules,
    PieceStream,
    TextStream,
    WindowStream,
)
from quire.frontend.text.tokenizer_backend import TokenizerBackend


class Decoding(ABC):
    """Conversion of one tokenizer's tokens to text."""

    def __init__(self, backend: TokenizerBackend) -> None:
        self.backend = backend
        self.special_token_ids = backend.special_token_ids()

    @staticmethod
    def of(backend: TokenizerBackend) -> "Decoding":
        """Return the decoding for a tokenizer's decoder."""
        steps = [*flat_steps(backend.decoder(), "decoders")]
        if [step["type"] for step in steps] == ["ByteLevel"]:
            return ByteLevelDecoding(backend)
        rules = _piece_rules(steps)
        return WindowDecoding(backend) if rules is None else PieceDecoding(backend, rules)

    @abstractmethod
    def stream(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> TextStream:
        """Return an incremental decoder that continues a prompt."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token adds to a text."""


class ByteLevelDecoding(Decoding):
    """Decoding of tokens that are bytes, written as 256 printable characters."""

    def __init__(self, backend: TokenizerBackend) -> None:
        super().__init__(backend)
        self._lookup = cache(lambda token_id: byte_level_bytes(backend.id_to_token(token_id) or ""))
        self._lookup_visible = cache(
            lambda i: b"" if i in self.special_token_ids else self._lookup(i)
        )

    def stream(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> TextStream:
        """Return an incremental decoder that continues a prompt."""
        bytes_of = self._lookup_visible if skip_special_tokens else self._lookup
        return ByteLevelStream(bytes_of, prompt_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for an id that does not exist."""
        return self._lookup(token_id)


class PieceDecoding(Decoding):
    """Decoding of tokens that are text in which a mark stands for the space."""

    def __init__(self, backend: TokenizerBackend, rules: PieceRules) -> None:
        super().__init__(backend)
        self._rules = rules
        self._lookup = cache(self._piece)
        self._lookup_visible = cache(
            lambda i: None if i in self.special_token_ids else self._lookup(i)
        )

    def stream(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> TextStream:
        """Return an incremental decoder that continues a prompt."""
        piece_of = self._lookup_visible if skip_special_tokens else self._lookup
        return PieceStream(piece_of, self._rules, prompt_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for an id that does not exist."""
        piece = self._lookup(token_id)
        if isinstance(piece, str):
            return piece.replace(self._rules.mark, " ").encode()
        return piece or b""

    def _piece(self, token_id: int) -> Piece:
        token = self.backend.id_to_token(token_id)
        byte = single_byte(token) if token and self._rules.has_byte_tokens else None
        return token if byte is None else byte


class WindowDecoding(Decoding):
    """Decoding with the tokenizer's own `decode`, for any other tokenizer."""

    def stream(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> TextStream:
        """Return an incremental decoder that continues a prompt."""

        def decode(token_ids: Sequence[int]) -> str:
            return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

        return WindowStream(decode, prompt_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of the token decoded alone."""
        return self.backend.decode([token_id], skip_special_tokens=False).encode()


def _piece_rules(steps: list[dict[str, Any]]) -> PieceRules | None:
    """Return the rules if `PieceStream` reproduces the decoder steps exactly."""
    kinds = [step["type"] for step in steps]
    if kinds == ["Metaspace"]:
        drops_marks = steps[0].get("prepend_scheme", "always") != "never"
        return PieceRules(steps[0]["replacement"], drops_first_marks=drops_marks)
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or len(kinds) > 4:
        return None
    mark = steps[0]["pattern"].get("String")
    if mark is None or steps[0]["content"] != " ":
        return None
    if len(kinds) == 3:
        return PieceRules(mark, has_byte_tokens=True)
    strip = steps[3]
    if strip["type"] != "Strip" or strip["content"] != " " or strip["stop"]:
        return None
    return PieceRules(mark, has_byte_tokens=True, num_strip=strip["start"])
